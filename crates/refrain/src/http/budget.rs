//! `ReadingBody` to `Replied`: the memory budget for buffered bodies.
//!
//! A body is counted as it is read, not by its declared length.
//! Requests beyond the budget are rejected before the claim. Responses of operations are counted too, and never rejected.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Default budget.
const BUFFERED_BYTES_MAX: usize = 256 << 20;
/// An eighth of the budget is reserved for bodies up to this size: a few unfinished uploads must not block all other clients.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Memory budget for buffered bodies, and the bytes in use.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUFFERED_BYTES_MAX)
    }
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used: AtomicUsize::new(0),
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Size of the largest body that fits into the empty budget.
    pub(super) fn body_bytes_max(&self) -> usize {
        let large = self.bytes_max - self.bytes_max / 8;
        large.max(self.bytes_max.min(SMALL_BYTES_MAX))
    }
}

/// Error of a request body that the budget has no room for now.
#[derive(Debug, thiserror::Error)]
#[error("the memory budget for bodies is used up")]
pub(super) struct OverBudget;

/// Bytes of the budget that one body uses, returned on drop. Without a budget nothing is counted.
#[derive(Debug, Default)]
pub(super) struct Share {
    budget: Option<Arc<Budget>>,
    bytes: usize,
    is_refusable: bool,
}

impl Share {
    /// For a request body, which is rejected beyond the budget.
    pub(super) fn refusable(budget: &Arc<Budget>) -> Self {
        let mut share = Self::counted(budget);
        share.is_refusable = true;
        share
    }

    /// For the response of an operation, which is counted and never rejected.
    pub(super) fn counted(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Some(budget.clone()),
            bytes: 0,
            is_refusable: false,
        }
    }

    /// For the body of a replay; `None` if the budget has no room for it.
    ///
    /// Small bodies are not counted, because the number of connections bounds them. A body that never fits is not rejected.
    pub(super) fn of_replay(budget: &Arc<Budget>, bytes: usize) -> Option<Self> {
        if bytes <= SMALL_BYTES_MAX {
            return Some(Self::default());
        }
        let mut share = match bytes <= budget.body_bytes_max() {
            true => Self::refusable(budget),
            false => Self::counted(budget),
        };
        share.take(bytes).then_some(share)
    }

    /// Takes that many more bytes. Takes nothing and returns `false` if the budget has no room for them.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let bytes_max = match self.is_refusable {
            false => usize::MAX,
            true if self.bytes + bytes <= SMALL_BYTES_MAX => budget.bytes_max,
            true => budget.body_bytes_max(),
        };
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= bytes_max);
        let is_taken = budget.used.fetch_update(Relaxed, Relaxed, add).is_ok();
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }

    /// Returns all but `bytes` bytes to the budget.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if let Some(budget) = &self.budget
            && less > 0
        {
            budget.used.fetch_sub(less, Relaxed);
            self.bytes -= less;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_back_and_only_answers_exceed_the_budget() {
        let budget = Arc::new(Budget::new(1 << 20));
        let share = || Share::refusable(&budget);
        let (mut first, mut second, mut third) = (share(), share(), share());
        assert!(first.take(budget.body_bytes_max()));
        assert!(!second.take(SMALL_BYTES_MAX + 1));
        assert!(second.take(SMALL_BYTES_MAX));
        assert!(!second.take(1), "it is not small any more");
        assert!(third.take(SMALL_BYTES_MAX));
        assert!(!share().take(1));
        assert_eq!(budget.used(), 1 << 20);
        let mut answer = Share::counted(&budget);
        assert!(answer.take(1 << 20));
        assert_eq!(budget.used(), 2 << 20);
        answer.shrink(5);
        drop((first, second, third));
        assert_eq!(budget.used(), 5);
        drop(answer);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_largest_body_that_fits_can_be_read() {
        for bytes_max in [1, 1_000, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 1 << 30] {
            let budget = Arc::new(Budget::new(bytes_max));
            let fits = budget.body_bytes_max();
            assert!(Share::refusable(&budget).take(fits), "{bytes_max}");
            assert!(!Share::refusable(&budget).take(fits + 1), "{bytes_max}");
        }
    }
}
