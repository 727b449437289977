//! Whether a response comes from the upstream, or Envoy made it itself because it has none.
//!
//! Envoy passes both through its filters. Its own `503` after a broken connection must not be stored as the operation's
//! outcome, and its own `503` without any connection means that nothing was executed.

use envoy_types::pb::{
    envoy::service::ext_proc::v3::ProcessingRequest, google::protobuf::value::Kind,
};
use http::StatusCode;
use refrain::{http::Failure, record::Reason};

/// The attributes that Envoy has to send with response headers, as in `response_attributes` of the filter.
const DETAILS: &str = "response.code_details";
const FLAGS: &str = "response.flags";
const ATTEMPTS: &str = "upstream.request_attempt_count";

/// Details of a response that the upstream sent.
const VIA_UPSTREAM: &str = "via_upstream";

/// Response flags of Envoy (UH, UF, UO, NR, NC, DF) that say that no connection was used.
const NEVER_SENT: u64 = 0x2 | 0x20 | 0x80 | 0x100 | 0x100_0000 | 0x400_0000;
/// Response flags (UT, LR, UR, UC, DC, URX, SI, UMSDR, UPE) that say that the request may have been sent.
const MAYBE_SENT: u64 = 0x4 | 0x8 | 0x10 | 0x40 | 0x4000 | 0x8000 | 0x1_0000 | 0x8_0000 | 0x80_0000;
/// Response flags (UT, SI, UMSDR) of timeouts.
const TIMEOUT: u64 = 0x4 | 0x1_0000 | 0x8_0000;

/// What Envoy says about the origin of a response.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ResponseOrigin {
    details: Option<String>,
    flags: u64,
    attempts: Option<u64>,
}

impl ResponseOrigin {
    pub(super) fn of(message: &ProcessingRequest) -> Self {
        let find = |name: &str| {
            let mut spaces = message.attributes.values();
            spaces.find_map(|space| space.fields.get(name)?.kind.as_ref())
        };
        let text = |kind: &Kind| match kind {
            Kind::StringValue(text) => Some(text.clone()),
            _ => None,
        };
        Self {
            details: find(DETAILS).and_then(text),
            flags: find(FLAGS).and_then(number).unwrap_or_default(),
            attempts: find(ATTEMPTS).and_then(number),
        }
    }

    /// Whether Envoy sent the request more than once.
    pub(super) fn is_retried(&self) -> bool {
        self.attempts.is_some_and(|attempts| attempts > 1)
    }

    /// Whether Envoy sends the attributes at all.
    pub(super) fn is_known(&self) -> bool {
        self.details.is_some()
    }

    /// Whether Envoy made the response itself.
    pub(super) fn is_of_envoy(&self) -> bool {
        let details = self.details.as_deref();
        details.is_some_and(|details| details != VIA_UPSTREAM)
    }

    /// Why there is no response of the upstream; `None` if there is one.
    pub(super) fn failure(&self, status: StatusCode) -> Option<Failure> {
        match self.details.as_deref() {
            Some(VIA_UPSTREAM) => None,
            // Envoy's own responses report failures, so a success is the upstream's.
            None if status.as_u16() < 400 => None,
            _ => Some(self.without_response()),
        }
    }

    fn without_response(&self) -> Failure {
        let is_unsent = self.flags & NEVER_SENT != 0 && self.flags & MAYBE_SENT == 0;
        match self.attempts {
            Some(0) => Failure::NotSent,
            Some(1) if is_unsent => Failure::NotSent,
            _ if self.flags & TIMEOUT != 0 => Failure::Lost(Reason::Timeout),
            _ => Failure::Lost(Reason::Reset),
        }
    }
}

/// A whole number that is not negative.
fn number(kind: &Kind) -> Option<u64> {
    match kind {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked"
        )]
        Kind::NumberValue(number) if (0.0..=9e15).contains(number) => Some(*number as u64),
        Kind::StringValue(text) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! Envoy answered a broken connection with 503, which was replayed as if the operation had refused the request.

    use super::*;

    #[test]
    fn only_responses_of_the_upstream_are_outcomes() {
        let (ok, failed) = (StatusCode::CREATED, StatusCode::SERVICE_UNAVAILABLE);
        let reset = Some(Failure::Lost(Reason::Reset));
        let cases = [
            (Some(VIA_UPSTREAM), 0, Some(1), failed, None),
            (Some(VIA_UPSTREAM), 0, Some(1), ok, None),
            (
                Some("route_not_found"),
                0x100,
                Some(0),
                StatusCode::NOT_FOUND,
                Some(Failure::NotSent),
            ),
            (
                Some("rbac_access_denied"),
                0,
                Some(0),
                StatusCode::FORBIDDEN,
                Some(Failure::NotSent),
            ),
            (
                Some("connection_failure"),
                0x20,
                Some(1),
                failed,
                Some(Failure::NotSent),
            ),
            // An earlier attempt of Envoy may have been sent.
            (Some("connection_failure"), 0x20, Some(2), failed, reset),
            (
                Some("connection_failure"),
                0x20 | 0x40,
                Some(1),
                failed,
                reset,
            ),
            (Some("connection_termination"), 0x40, Some(1), failed, reset),
            (
                Some("response_timeout"),
                0x4,
                Some(1),
                failed,
                Some(Failure::Lost(Reason::Timeout)),
            ),
            // Without the attributes nothing is assumed.
            (None, 0, None, failed, reset),
            (None, 0, None, ok, None),
        ];
        for (details, flags, attempts, status, failure) in cases {
            let origin = ResponseOrigin {
                details: details.map(Into::into),
                flags,
                attempts,
            };
            assert_eq!(origin.failure(status), failure, "{origin:?}");
        }
    }
}
