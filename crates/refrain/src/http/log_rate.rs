//! `Unclaimed`: rate limit for the log message of failed claims. A store that fails under load must not fill the disk with lines.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// At most one line is logged in this time.
const PAUSE: Duration = Duration::from_secs(1);

/// Passes one line per `PAUSE`, and counts the suppressed ones.
#[derive(Debug, Default)]
pub(super) struct LogRate(Mutex<RateState>);

#[derive(Debug, Default)]
struct RateState {
    /// When the last line passed.
    last: Option<Instant>,
    suppressed: u64,
}

impl LogRate {
    /// Returns the number of lines suppressed since the last one if a line may be written now.
    pub(super) fn pass(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = tokio::time::Instant::now();
        if state.last.is_some_and(|last| now - last < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_a_second_and_the_others_are_counted() {
        let rate = LogRate::default();
        assert_eq!(rate.pass(), Some(0));
        for _ in 0..5 {
            assert_eq!(rate.pass(), None);
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(rate.pass(), Some(5));
        assert_eq!(rate.pass(), None);
    }
}
