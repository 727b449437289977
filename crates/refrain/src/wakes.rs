//! Batches wakes: wakers are deferred until a store has delivered all replies of a batch.
//!
//! A store that delivers many replies at once would wake the waiting thread with the first reply,
//! and again with each reply that arrives after the thread fell asleep.
//! A waker that stands for many waiters, such as a whole thread, is passed to [`wake`] and woken once, after the last reply.

use std::{cell::RefCell, task::Waker};

thread_local! {
    /// Wakers to wake after the current batch of replies; `None` outside of a batch.
    static LATER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Runs `answer`, which delivers a batch of replies. Wakers passed to [`wake`] meanwhile are woken after it returns.
pub(crate) fn batch_wakes(answer: impl FnOnce()) {
    LATER.set(Some(Vec::new()));
    let _last = BatchGuard;
    answer();
}

/// Wakes at once, or after the last reply if this thread is delivering a batch.
pub fn wake(waker: Waker) {
    let now = LATER.with_borrow_mut(|later| match later {
        None => Some(waker),
        Some(later) => {
            if !later.iter().any(|it| it.will_wake(&waker)) {
                later.push(waker);
            }
            None
        }
    });
    if let Some(waker) = now {
        waker.wake();
    }
}

/// Ends the batch when it is dropped, also after a panic: wakes the deferred wakers.
struct BatchGuard;

impl Drop for BatchGuard {
    fn drop(&mut self) {
        let later = LATER.take();
        later.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn counted() -> (Waker, impl Fn() -> usize) {
        let count = Arc::new(Count::default());
        (count.clone().into(), move || count.0.load(Relaxed))
    }

    #[test]
    fn each_waker_is_woken_once_after_the_last_response() {
        let ((one, ones), (other, others)) = (counted(), counted());
        batch_wakes(|| {
            for _ in 0..3 {
                wake(one.clone());
                wake(other.clone());
            }
            assert_eq!((ones(), others()), (0, 0));
        });
        assert_eq!((ones(), others()), (1, 1));
        wake(one);
        assert_eq!(ones(), 2, "outside of `batch_wakes`, the wake is immediate");
    }

    #[test]
    fn panic_in_a_response_does_not_lose_wakes() {
        let (waker, woken) = counted();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            batch_wakes(|| {
                wake(waker.clone());
                panic!("on purpose");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(woken(), 1);
        wake(waker);
        assert_eq!(woken(), 2, "after the panic, the wake is immediate");
    }
}
