//! Batches wake-ups that come from other threads.
//!
//! Waking a task of another thread's runtime costs a system call each time.
//! A store that commits a batch wakes the waiting requests one after the other; here only the first of them costs a call,
//! and the rest only queue their wakers.

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
    /// Number of this thread's bell; 0 if it has none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Queue of the wake-ups for one thread.
#[derive(Debug)]
pub(crate) struct Bell {
    number: usize,
    rung: Mutex<Rung>,
}

#[derive(Debug, Default)]
struct Rung {
    /// Wakers of the tasks to wake.
    names: Vec<Waker>,
    /// Waker of the task that wakes them.
    ringer: Option<Waker>,
}

impl Bell {
    /// Creates the bell of this thread. Its queue is served as long as [`Bell::answer`] runs on this thread.
    pub(crate) fn hang() -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        HERE.set(number);
        Arc::new(Self {
            number,
            rung: Mutex::default(),
        })
    }

    /// Wakes the queued tasks, forever.
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

    /// A waker for the task of this context, which goes through the bell if it is used on another thread.
    pub(crate) fn waker(self: &Arc<Self>, context: &Context<'_>) -> Waker {
        let (bell, waker) = (self.clone(), context.waker().clone());
        Waker::from(Arc::new(Rope { bell, waker }))
    }

    fn ring(&self, name: Waker) {
        let mut rung = self.rung();
        rung.names.push(name);
        // An earlier caller has already rung.
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

/// Waker of one task.
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
    //! A lost wake-up is a request that is never answered.

    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[tokio::test]
    async fn task_woken_from_another_thread_wakes_up() {
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
    async fn concurrent_wakes_share_one_signal() {
        let bell = Bell::hang();
        let rings = Arc::new(Count::default());
        bell.rung().ringer = Some(rings.clone().into());
        let called = Arc::new(Count::default());
        let waker = bell.waker(&Context::from_waker(&called.clone().into()));
        waker.wake_by_ref();
        assert_eq!(
            (called.get(), rings.get()),
            (1, 0),
            "woken on its own thread"
        );
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
