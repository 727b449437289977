//! What can be done in a wrong way. The defaults are right.

use std::time::Duration;

use crate::service::{Answer, Refused};

const KEY_BYTES_MAX: usize = 255;

/// One way to do it.
pub(crate) trait Hole: Send + Sync {
    /// The key, if it is one.
    fn key(&self, sent: &str) -> Result<String, Refused> {
        let key = sent.trim_matches('"');
        let is_good = !key.is_empty() && key.len() <= KEY_BYTES_MAX;
        is_good
            .then(|| key.to_owned())
            .ok_or(Refused(400, "the key has to be 1 to 255 bytes of ASCII"))
    }

    /// Whose key it is.
    fn scope(&self, caller: &str) -> String {
        caller.to_owned()
    }

    /// Whether an answer with this status settles the key, rather than freeing it.
    fn is_kept(&self, status: u16) -> bool {
        status < 300
    }

    /// What of the answer's body is kept; `None` keeps nothing of it at all.
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        Some(body)
    }

    /// For how long.
    fn retention(&self) -> Duration {
        Duration::from_hours(24)
    }

    /// What a duplicate gets.
    fn replay(&self, kept: Answer) -> Answer {
        Answer {
            is_replay: true,
            ..kept
        }
    }

    /// Whether a run goes on when its client is gone.
    fn outlives_clients(&self) -> bool {
        true
    }

    /// Whether the connection on which a run is waited for goes back to its pool when the client is gone, with the answer still to come.
    fn leaves_answers(&self) -> bool {
        false
    }
}
