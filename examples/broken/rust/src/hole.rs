//! The aspects of the service that a bug can change. The defaults are correct.

use std::time::Duration;

use crate::service::{Refused, SampleResponse};

const KEY_BYTES_MAX: usize = 255;

/// One implementation of these aspects.
pub(crate) trait Hole: Send + Sync {
    /// Parses the key, or rejects the request.
    fn key(&self, sent: &str) -> Result<String, Refused> {
        let key = sent.trim_matches('"');
        let is_good = !key.is_empty() && key.len() <= KEY_BYTES_MAX;
        is_good
            .then(|| key.to_owned())
            .ok_or(Refused(400, "the key must be 1 to 255 ASCII characters"))
    }

    /// The scope of the caller's keys.
    fn scope(&self, caller: &str) -> String {
        caller.to_owned()
    }

    /// Whether a response with this status settles the key; otherwise the key is released.
    fn is_kept(&self, status: u16) -> bool {
        status < 300
    }

    /// The part of the response body to store; `None` stores no record.
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        Some(body)
    }

    /// How long a response is kept.
    fn retention(&self) -> Duration {
        Duration::from_hours(24)
    }

    /// The response to a duplicate.
    fn replay(&self, kept: SampleResponse) -> SampleResponse {
        SampleResponse {
            is_replay: true,
            ..kept
        }
    }

    /// Whether a run continues after its client disconnects.
    fn outlives_clients(&self) -> bool {
        true
    }

    /// Whether the connection that waits for a run returns to its pool when the client disconnects, with
    /// the answer still unread.
    fn leaves_answers(&self) -> bool {
        false
    }
}
