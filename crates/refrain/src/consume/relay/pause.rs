//! How long to leave alone what does not answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Backoff, Delays};

/// Until somebody else's hands are off what both wanted.
pub(super) const A_MOMENT: Duration = Duration::from_millis(5);
/// The longest delay is also how late a relay may notice that the broker is back.
const SERVER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Between two attempts of one message.
const MESSAGE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));

/// How long a message rests that was tried so many times.
pub(super) fn after(attempts: u32) -> Duration {
    MESSAGE.delay(attempts)
}

/// Pauses that grow until something gets through.
#[derive(Debug)]
pub(super) struct Pause {
    delays: Delays,
    until: Option<Instant>,
    last_success: Option<Instant>,
}

impl Default for Pause {
    fn default() -> Self {
        Self {
            delays: SERVER.delays(),
            until: None,
            last_success: None,
        }
    }
}

impl Pause {
    /// Something got through.
    pub(super) fn end(&mut self) {
        self.delays.reset();
        self.until = None;
        self.last_success = Some(Instant::now());
    }

    /// Nothing gets through: until when to wait. Many who find out at once make one pause.
    pub(super) fn next(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(until) = self.until.filter(|until| now < *until) {
            return until;
        }
        *self.until.insert(now + self.delays.after_failure())
    }

    /// Whether something got through since then.
    pub(super) fn has_ended_since(&self, then: Instant) -> bool {
        self.last_success.is_some_and(|success| success >= then)
    }
}
