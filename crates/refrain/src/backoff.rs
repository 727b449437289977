//! Exponential backoff: how long to wait between attempts.

use std::time::Duration;

/// Minimum of a jittered delay, for all settings: a loop without a delay would spin.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Enough to reach any longest delay from any first one.
const DOUBLINGS_MAX: u32 = 31;

/// Delays that double from `first` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failed attempt.
    pub first: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for Backoff {
    /// From half a second to a minute.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(60))
    }
}

impl Backoff {
    /// Delays from `first` to `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The delay after the attempt of this number, without jitter; the first attempt is 1.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(DOUBLINGS_MAX);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// The delay after the attempt of this number, with jitter: between half of [`delay`](Self::delay) and all of it,
    /// so that attempts that failed together are not repeated together.
    #[must_use]
    pub fn pause(&self, attempt: u32) -> Duration {
        self.delay(attempt)
            .mul_f64(rand::random_range(0.5..=1.0))
            .max(PAUSE_MIN)
    }

    /// The same with full jitter, for many clients of one server.
    #[cfg(feature = "client")]
    pub(crate) fn pause_anywhere(&self, attempt: u32) -> Duration {
        self.delay(attempt)
            .mul_f64(rand::random_range(0.0..=1.0))
            .max(PAUSE_MIN)
    }

    /// The delays of one series of attempts, without jitter.
    #[must_use]
    pub fn delays(self) -> Delays {
        Delays {
            backoff: self,
            failed: 0,
        }
    }
}

/// The delays of one series of attempts; see [`Backoff::delays`].
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    backoff: Backoff,
    /// The number of attempts that failed since the last success.
    failed: u32,
}

impl Delays {
    /// The delay that [`after_failure`](Self::after_failure) would return.
    #[must_use]
    pub fn peek(&self) -> Duration {
        self.backoff.delay(self.failed.saturating_add(1))
    }

    /// The delay after one more failed attempt.
    pub fn after_failure(&mut self) -> Duration {
        let delay = self.peek();
        self.failed = self.failed.saturating_add(1);
        delay
    }

    /// An attempt succeeded: the next delay is the first one again.
    pub fn reset(&mut self) {
        self.failed = 0;
    }
}

#[cfg(test)]
mod tests {
    //! A delay that overflows, or that is zero, turns an outage of a server into a busy loop.

    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(150));

    #[test]
    fn delays_double_up_to_the_longest_and_start_again_after_a_success() {
        let mut delays = BACKOFF.delays();
        for expected in [20, 40, 80, 150, 150] {
            assert_eq!(delays.peek().as_millis(), expected);
            assert_eq!(delays.after_failure().as_millis(), expected);
        }
        delays.reset();
        assert_eq!(delays.after_failure().as_millis(), 20);
        let endless = Backoff::new(Duration::from_secs(1), Duration::MAX);
        assert_eq!(endless.delay(u32::MAX), Duration::from_secs(1 << 31));
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_half_and_never_to_nothing() {
        for _ in 0..1_000 {
            let pause = BACKOFF.pause(3).as_millis();
            assert!((40..=80).contains(&pause), "{pause} ms");
        }
        let none = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(none.pause(1), PAUSE_MIN);
    }
}
