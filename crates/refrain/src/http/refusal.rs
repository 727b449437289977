//! Temporary refusals: responses that are never the outcome of the operation.
//!
//! They come from another Refrain between this one and the operation, or from any service that sends `Retry-After`.

use http::{HeaderMap, StatusCode, header, response};
use serde::Deserialize;

use super::Code;
use crate::record::Reason;

/// Maximum size of a body that is parsed as a problem; Refrain's own are far smaller.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// A response that is not the outcome of the operation.
///
/// The layer reads this from the responses of the inner service. Clients of such a service can use it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Refused for now, without effect: retry with the same key.
    Later,
    /// The outcome is unknown to another Refrain, too.
    Unknown(Reason),
}

impl Refusal {
    /// Reads the refusal from a response: a problem of another Refrain, or 409 or 425 with `Retry-After`.
    /// Returns `None` if the response is an outcome.
    #[must_use]
    pub fn of(head: &response::Parts, body: &[u8]) -> Option<Self> {
        let ours = match may_be_ours(head.status, &head.headers) {
            true => read(head, body),
            false => None,
        };
        ours.or_else(|| is_later(head.status, &head.headers).then_some(Self::Later))
    }
}

/// The members that identify a problem of Refrain.
#[derive(Deserialize)]
struct Told {
    r#type: String,
    code: String,
    advice: String,
}

/// Whether the head alone shows that the response is not an outcome.
pub(super) fn is_later(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::CONFLICT | StatusCode::TOO_EARLY)
        && headers.contains_key(header::RETRY_AFTER)
}

/// Whether the response may be a problem of Refrain, so that its body has to be read.
pub(super) fn may_be_ours(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_problem = || {
        let media_type = headers.get(header::CONTENT_TYPE);
        media_type.is_some_and(|it| it.as_bytes().starts_with(b"application/problem+json"))
    };
    status.as_u16() >= 400 && is_problem()
}

/// The refusal of another Refrain, if the response is one of its problems.
pub(super) fn read(head: &response::Parts, body: &[u8]) -> Option<Refusal> {
    if body.len() > PROBLEM_BYTES_MAX {
        return None;
    }
    let told: Told = serde_json::from_slice(body).ok()?;
    // The `type` ends with the code in every version and under every base.
    if told.r#type.rsplit('/').next() != Some(&told.code) {
        return None;
    }
    match told.advice.as_str() {
        "wait" | "reuse-key" => Some(Refusal::Later),
        "ask" if told.code == Code::OutcomeUnknown.code() => {
            let is_late = head.status == StatusCode::GATEWAY_TIMEOUT;
            let reason = if is_late {
                Reason::Timeout
            } else {
                Reason::Failed
            };
            Some(Refusal::Unknown(reason))
        }
        _ => None,
    }
}
