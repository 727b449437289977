//! How much memory the bodies that are held may take together.
//!
//! A body counts as it is read, not by the length that its head promises.
//! Requests are refused beyond the budget, before anything is claimed; what an operation has answered is never refused, and counts all the same.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The budget unless another one is set.
const BUFFERED_BYTES_MAX: usize = 256 << 20;
/// Larger bodies leave an eighth of the budget to bodies up to this size: a few unfinished uploads must not shut everybody out.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// How much the bodies that are held may take together, and how much they take.
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

    /// What is taken now.
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// The largest body that ever fits.
    pub(super) fn body_bytes_max(&self) -> usize {
        let large = self.bytes_max - self.bytes_max / 8;
        large.max(self.bytes_max.min(SMALL_BYTES_MAX))
    }
}

/// One body's share of a budget, given back when it is dropped. Without a budget nothing is counted.
#[derive(Debug, Default)]
pub(super) struct Share {
    budget: Option<Arc<Budget>>,
    bytes: usize,
    is_refusable: bool,
}

impl Share {
    /// For the body of a request, which is refused beyond the budget.
    pub(super) fn refusable(budget: &Arc<Budget>) -> Self {
        let mut share = Self::counted(budget);
        share.is_refusable = true;
        share
    }

    /// For what an operation answers, which counts and is never refused.
    pub(super) fn counted(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Some(budget.clone()),
            bytes: 0,
            is_refusable: false,
        }
    }

    /// For the body of a replay; `None` if the budget has no room for it.
    ///
    /// Small ones are not counted, because the number of connections bounds them. One that never fits is not refused.
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

    /// Whether it counts towards a budget.
    pub(super) fn is_counted(&self) -> bool {
        self.budget.is_some()
    }

    /// Takes so many bytes more. `false` where the budget has not so many: nothing is taken then.
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

    /// Gives back all but so many bytes.
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
