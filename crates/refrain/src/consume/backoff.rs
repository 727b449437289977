//! How long to wait before a failed message is tried again.

use std::time::Duration;

/// No pause is shorter, whatever is set: nobody asks again without one.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Pauses that double from the first to the longest, each cut short by chance by up to a half:
/// what failed together does not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for Backoff {
    /// From half a second to a minute.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            max: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// Pauses from `first` to `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The pause after the attempt of this number; the first is 1.
    #[must_use]
    pub fn pause(&self, attempt: u32) -> Duration {
        self.full(attempt)
            .mul_f64(rand::random_range(0.5..=1.0))
            .max(PAUSE_MIN)
    }

    /// The same, cut short by chance by up to all of it, for many callers of one server that know nothing of each other.
    #[cfg(feature = "client")]
    pub(crate) fn pause_anywhere(&self, attempt: u32) -> Duration {
        self.full(attempt)
            .mul_f64(rand::random_range(0.0..=1.0))
            .max(PAUSE_MIN)
    }

    fn full(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }
}
