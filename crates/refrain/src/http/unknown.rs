//! The `outcome-unknown` problems that clients get.

use http::StatusCode;

use super::problem::{Code, Problem};
use crate::record::{Doubt, Reason};

/// The problem for the first caller.
pub(super) fn unknown(reason: Reason) -> Problem {
    let status = match reason {
        Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let detail = format!("The operation {}.", words(reason));
    Problem::new(Code::OutcomeUnknown, detail).with_status(status)
}

/// The problem for a duplicate of a request whose outcome is unknown.
pub(super) fn unknown_before(doubt: &Doubt) -> Problem {
    let reason = words(doubt.reason);
    Problem::new(Code::OutcomeUnknown, format!("The first request {reason}."))
}

/// Why the outcome is unknown, in words.
fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Lapsed => "was cut off before its end was stored",
        Reason::Timeout => "did not answer in time",
        Reason::Reset => "broke off before it answered",
        Reason::Truncated => "broke off in the middle of its answer",
        Reason::Panicked => "failed in the middle",
        Reason::Dropped => "was stopped in the middle",
        Reason::Failed => "failed without an answer",
    }
}
