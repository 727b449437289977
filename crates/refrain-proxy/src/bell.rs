//! Wakes that come from other threads, taken together.
//!
//! To wake a task of another thread's runtime costs a call to the system, each time.
//! A store that commits what many requests wait for wakes them one after the other; here the first of them rings, and the rest only leave their names.

use std::{
    cell::Cell,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use refrain::wakes;

thread_local! {
    /// The bell of this thread; 0 where there is none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// The bell of one thread.
#[derive(Debug)]
pub(crate) struct Bell {
    number: usize,
    rung: Mutex<Rung>,
}

#[derive(Debug, Default)]
struct Rung {
    /// Who is to be woken.
    names: Vec<Waker>,
    /// Wakes who wakes them.
    ringer: Option<Waker>,
}

impl Bell {
    /// Hangs a bell up in this thread. It is answered as long as [`Bell::answer`] runs here.
    pub(crate) fn hang() -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        HERE.set(number);
        Arc::new(Self {
            number,
            rung: Mutex::default(),
        })
    }

    /// Wakes everybody who is called for, for ever.
    pub(crate) async fn answer(self: Arc<Self>) {
        poll_fn(|context| {
            let names = {
                let mut rung = self.rung();
                rung.ringer.get_or_insert_with(|| context.waker().clone());
                std::mem::take(&mut rung.names)
            };
            names.into_iter().for_each(Waker::wake);
            Poll::<()>::Pending
        })
        .await;
    }

    /// A waker for the task of this context that takes the way over the bell where it is used in another thread.
    pub(crate) fn waker(self: &Arc<Self>, context: &Context<'_>) -> Waker {
        let (bell, waker) = (self.clone(), context.waker().clone());
        Waker::from(Arc::new(Rope { bell, waker }))
    }

    fn ring(&self, name: Waker) {
        let mut rung = self.rung();
        rung.names.push(name);
        // Who came before has rung already.
        let ringer = rung.ringer.clone().filter(|_| rung.names.len() == 1);
        drop(rung);
        if let Some(ringer) = ringer {
            wakes::wake(ringer);
        }
    }

    fn rung(&self) -> MutexGuard<'_, Rung> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one task.
struct Rope {
    bell: Arc<Bell>,
    waker: Waker,
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match HERE.get() == self.bell.number {
            true => self.waker.wake_by_ref(),
            false => self.bell.ring(self.waker.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    //! A wake that gets lost is a request that is never answered.

    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[tokio::test]
    async fn whoever_is_called_from_another_thread_wakes_up() {
        let bell = Bell::hang();
        tokio::spawn(bell.clone().answer());
        let waits = (0..64).map(|_| {
            let bell = bell.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    let is_done = Arc::new(AtomicBool::new(false));
                    let mut caller = None;
                    poll_fn(|context| {
                        if is_done.load(std::sync::atomic::Ordering::Acquire) {
                            return Poll::Ready(());
                        }
                        let (waker, is_done) = (bell.waker(context), is_done.clone());
                        caller.get_or_insert_with(|| {
                            thread::spawn(move || {
                                is_done.store(true, std::sync::atomic::Ordering::Release);
                                waker.wake();
                            })
                        });
                        Poll::Pending
                    })
                    .await;
                }
            })
        });
        for wait in waits.collect::<Vec<_>>() {
            wait.await.unwrap();
        }
    }

    #[tokio::test]
    async fn many_who_are_called_together_cost_one_ring() {
        let bell = Bell::hang();
        let rings = Arc::new(Count::default());
        bell.rung().ringer = Some(rings.clone().into());
        let called = Arc::new(Count::default());
        let waker = bell.waker(&Context::from_waker(&called.clone().into()));
        waker.wake_by_ref();
        assert_eq!((called.get(), rings.get()), (1, 0), "in its own thread");
        thread::scope(|scope| {
            scope.spawn(|| (0..9).for_each(|_| waker.wake_by_ref()));
        });
        assert_eq!((called.get(), rings.get()), (1, 1), "in another");
        let answering = tokio::spawn(bell.answer());
        tokio::task::yield_now().await;
        answering.abort();
        assert_eq!(called.get(), 10);
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Relaxed)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
}
