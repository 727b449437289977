//! Answers that refuse for now: the operation did not end with them, so they are never its outcome.
//!
//! They come from another Refrain between this one and the operation, or from any service that says when to ask again.

use http::{HeaderMap, StatusCode, header, response};
use serde::Deserialize;

use super::Code;
use crate::record::Reason;

/// A problem of ours has far fewer bytes.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// A response that is not the outcome of the operation.
///
/// The layer reads this from responses of the service behind it. Clients of such a service can read it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Refused for now, without effect: retry with the same key.
    Later,
    /// Another Refrain does not know the outcome either.
    Unknown(Reason),
}

impl Refusal {
    /// Reads the refusal from a response: a problem of another Refrain, or 409 or 425 with `Retry-After`.
    /// `None` means that the response is an outcome.
    #[must_use]
    pub fn of(head: &response::Parts, body: &[u8]) -> Option<Self> {
        let ours = match may_be_ours(head.status, &head.headers) {
            true => read(head, body),
            false => None,
        };
        ours.or_else(|| is_later(head.status, &head.headers).then_some(Self::Later))
    }
}

/// The members by which a problem of ours is known.
#[derive(Deserialize)]
struct Told {
    r#type: String,
    code: String,
    advice: String,
}

/// Whether the head alone says that the answer is no outcome.
pub(super) fn is_later(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::CONFLICT | StatusCode::TOO_EARLY)
        && headers.contains_key(header::RETRY_AFTER)
}

/// Whether the body has to be read to know whether it is a problem of ours.
pub(super) fn may_be_ours(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_problem = || {
        let media_type = headers.get(header::CONTENT_TYPE);
        media_type.is_some_and(|it| it.as_bytes().starts_with(b"application/problem+json"))
    };
    status.as_u16() >= 400 && is_problem()
}

/// What another Refrain says, if the answer is a problem of its own.
pub(super) fn read(head: &response::Parts, body: &[u8]) -> Option<Refusal> {
    if body.len() > PROBLEM_BYTES_MAX {
        return None;
    }
    let told: Told = serde_json::from_slice(body).ok()?;
    // The code is the name of its page, whatever the version and wherever the pages are.
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
