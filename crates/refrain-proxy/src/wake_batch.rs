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
    /// Number of this thread's batch; 0 if it has none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Queue of the wake-ups for one thread.
#[derive(Debug)]
pub(crate) struct WakeBatch {
    number: usize,
    queue: Mutex<WakeQueue>,
}

#[derive(Debug, Default)]
struct WakeQueue {
    /// Wakers of the tasks to wake.
    wakers: Vec<Waker>,
    /// Waker of the task that wakes them.
    server: Option<Waker>,
}

impl WakeBatch {
    /// Creates the batch of this thread. Its queue is served as long as [`WakeBatch::serve`] runs on this thread.
    pub(crate) fn of_this_thread() -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        HERE.set(number);
        Arc::new(Self {
            number,
            queue: Mutex::default(),
        })
    }

    /// Wakes the queued tasks, forever.
    pub(crate) async fn serve(self: Arc<Self>) {
        poll_fn(|context| {
            let wakers = {
                let mut queue = self.queue();
                queue.server.get_or_insert_with(|| context.waker().clone());
                std::mem::take(&mut queue.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
            Poll::<()>::Pending
        })
        .await;
    }

    /// A waker for the task of this context, which goes through the batch if it is used on another thread.
    pub(crate) fn waker(self: &Arc<Self>, context: &Context<'_>) -> Waker {
        let (wake_batch, waker) = (self.clone(), context.waker().clone());
        Waker::from(Arc::new(BatchedWaker { wake_batch, waker }))
    }

    fn push(&self, waker: Waker) {
        let mut queue = self.queue();
        queue.wakers.push(waker);
        // An earlier caller has already queue.
        let server = queue.server.clone().filter(|_| queue.wakers.len() == 1);
        drop(queue);
        if let Some(server) = server {
            wakes::wake(server);
        }
    }

    fn queue(&self) -> MutexGuard<'_, WakeQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waker of one task.
struct BatchedWaker {
    wake_batch: Arc<WakeBatch>,
    waker: Waker,
}

impl Wake for BatchedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match HERE.get() == self.wake_batch.number {
            true => self.waker.wake_by_ref(),
            false => self.wake_batch.push(self.waker.clone()),
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
        let wake_batch = WakeBatch::of_this_thread();
        tokio::spawn(wake_batch.clone().serve());
        let waits = (0..64).map(|_| {
            let wake_batch = wake_batch.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    let is_done = Arc::new(AtomicBool::new(false));
                    let mut caller = None;
                    poll_fn(|context| {
                        if is_done.load(std::sync::atomic::Ordering::Acquire) {
                            return Poll::Ready(());
                        }
                        let (waker, is_done) = (wake_batch.waker(context), is_done.clone());
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
        let wake_batch = WakeBatch::of_this_thread();
        let signals = Arc::new(Count::default());
        wake_batch.queue().server = Some(signals.clone().into());
        let called = Arc::new(Count::default());
        let waker = wake_batch.waker(&Context::from_waker(&called.clone().into()));
        waker.wake_by_ref();
        assert_eq!(
            (called.get(), signals.get()),
            (1, 0),
            "woken on its own thread"
        );
        thread::scope(|scope| {
            scope.spawn(|| (0..9).for_each(|_| waker.wake_by_ref()));
        });
        assert_eq!((called.get(), signals.get()), (1, 1), "in another");
        let answering = tokio::spawn(wake_batch.serve());
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
