//! How long to leave alone what does not answer.

use std::time::Duration;

use tokio::time::Instant;

/// Until somebody else's hands are off what both wanted.
pub(super) const A_MOMENT: Duration = Duration::from_millis(5);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Also how late a relay may notice that the broker is back.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long one message rests at the longest between two attempts.
const REST_MAX: Duration = Duration::from_secs(60);

/// How long a message rests that was tried so many times.
pub(super) fn after(attempts: u32) -> Duration {
    let doubled = PAUSE_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16));
    doubled.min(REST_MAX)
}

/// Pauses that grow until something gets through.
#[derive(Debug, Default)]
pub(super) struct Pause {
    length: Option<Duration>,
    until: Option<Instant>,
    last_success: Option<Instant>,
}

impl Pause {
    /// Something got through.
    pub(super) fn end(&mut self) {
        self.length = None;
        self.until = None;
        self.last_success = Some(Instant::now());
    }

    /// Nothing gets through: until when to wait. Many who find out at once make one pause.
    pub(super) fn next(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(until) = self.until.filter(|until| now < *until) {
            return until;
        }
        let length = self
            .length
            .map_or(PAUSE_FIRST, |length| (length * 2).min(PAUSE_MAX));
        self.length = Some(length);
        *self.until.insert(now + length)
    }

    /// Whether something got through since then.
    pub(super) fn has_ended_since(&self, then: Instant) -> bool {
        self.last_success.is_some_and(|success| success >= then)
    }
}
