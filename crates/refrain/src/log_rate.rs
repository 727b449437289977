//! Rate limit for log messages that can repeat with every request: a dependency that fails under load must not fill the disk
//! with lines.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// At most one line of a kind is logged in this time.
const PAUSE: Duration = Duration::from_secs(10);

/// Rate limit for one kind of message: passes the first line, then one every ten seconds, and counts the others.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct LogRate(Mutex<RateState>);

#[derive(Debug)]
struct RateState {
    /// When the last line passed.
    last: Option<Instant>,
    suppressed: u64,
}

impl Default for RateState {
    fn default() -> Self {
        Self::NEW
    }
}

impl RateState {
    const NEW: Self = Self {
        last: None,
        suppressed: 0,
    };
}

impl LogRate {
    /// A limit that has passed nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(RateState::NEW))
    }

    /// If a line may be written now, returns the number of lines suppressed since the last one.
    pub fn pass(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.last.is_some_and(|last| now - last < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// Logs a line as `tracing::LEVEL!` would, at most once every ten seconds for this place in the code.
///
/// The field `suppressed` is the number of lines that were left out since the last one.
/// For errors that repeat while a dependency fails; not for facts that an operator has to act on one by one,
/// such as unknown outcomes.
#[doc(hidden)]
#[macro_export]
macro_rules! log_rarely {
    ($level:ident, $($line:tt)+) => {{
        static RATE: $crate::LogRate = $crate::LogRate::new();
        if let Some(suppressed) = RATE.pass() {
            tracing::$level!(suppressed, $($line)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    //! One lost database connection wrote a line for every request, until the disk of the logs was full.

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_in_each_pause_and_the_others_are_counted() {
        let rate = LogRate::new();
        assert_eq!(rate.pass(), Some(0));
        for _ in 0..5 {
            assert_eq!(rate.pass(), None);
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(rate.pass(), Some(5));
        assert_eq!(rate.pass(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_place_in_the_code_has_its_own_limit() {
        let rates = [LogRate::new(), LogRate::new()];
        assert!(rates.iter().all(|rate| rate.pass() == Some(0)));
    }
}
