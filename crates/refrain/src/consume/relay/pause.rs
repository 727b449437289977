//! Pauses while the broker or the outbox is unavailable.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Backoff, Delays};

/// Pause after losing a race for messages to another relay.
pub(super) const A_MOMENT: Duration = Duration::from_millis(5);
/// The longest delay is also the maximum delay to notice that the broker is available again.
const SERVER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Between two attempts of one message.
const MESSAGE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));

/// Time that a message rests after this number of attempts.
pub(super) fn delay_after(attempts: u32) -> Duration {
    MESSAGE.delay(attempts)
}

/// Exponential pauses, reset by the first success.
#[derive(Debug)]
pub(super) struct RelayPause {
    delays: Delays,
    until: Option<Instant>,
    last_success: Option<Instant>,
}

impl Default for RelayPause {
    fn default() -> Self {
        Self {
            delays: SERVER.delays(),
            until: None,
            last_success: None,
        }
    }
}

impl RelayPause {
    /// Ends the pause after a success.
    pub(super) fn end(&mut self) {
        self.delays.reset();
        self.until = None;
        self.last_success = Some(Instant::now());
    }

    /// Returns the end of the pause after a failure. Concurrent failures share one pause.
    pub(super) fn next(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(until) = self.until.filter(|until| now < *until) {
            return until;
        }
        *self.until.insert(now + self.delays.after_failure())
    }

    /// Whether there was a success since then.
    pub(super) fn has_ended_since(&self, then: Instant) -> bool {
        self.last_success.is_some_and(|success| success >= then)
    }
}
