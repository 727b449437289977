//! `Replaying` and `Replied`: responses for verdicts other than a grant, such as replays and acknowledgements.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    Decision,
    body::{Body, Share, add_record, marked},
    layer::LayerState,
    live::Follower,
    problem::{Code, Problem, unknown_before},
};
use crate::{Operation, RecordId, Verdict, outcome::Outcome, policy::Duplicates};

/// Maximum `Retry-After` of a request in flight.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// Response header that marks a replay.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Headers of every replay; they replace stored headers of the same name.
const MARKS: [(HeaderName, HeaderValue); 2] = [
    (IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// The stored outcome of `record` as the response to a duplicate, which may be a `HEAD` request.
/// `share` counts the body towards the memory budget for bodies until it is sent.
pub(super) fn replay<R>(
    outcome: &Outcome,
    record: RecordId,
    is_to_head: bool,
    share: Share,
) -> Response<Body<R>> {
    let response = answer(outcome, is_to_head);
    let mut response = response.map(|body| body.counted(share));
    mark(response.headers_mut());
    add_record(response.headers_mut(), record);
    marked(Decision::Replayed, response)
}

/// The response for a verdict on `record` other than a grant.
pub(super) fn to_verdict<G, R>(
    shared: &LayerState,
    record: RecordId,
    verdict: &Verdict<G>,
) -> Response<Body<R>> {
    let problem = match verdict {
        Verdict::Replay(outcome) if outcome.is_body_kept() => {
            return replay(outcome, record, false, Share::default());
        }
        Verdict::Replay(outcome) => {
            let status = outcome.status();
            let detail = format!("The operation ended with status {status}.");
            Problem::new(Code::BodyNotKept, detail).with_original(outcome.clone())
        }
        Verdict::InFlight { lease_left } => Problem::new(
            Code::InFlight,
            "Send the same request with the same key again for its outcome.",
        )
        .with_retry_after((*lease_left).min(RETRY_AFTER_MAX)),
        Verdict::OtherCredential => Problem::new(
            Code::CredentialChanged,
            "The outcome is shown only to the credential that sent the first request.",
        ),
        Verdict::Mismatch => Problem::new(
            Code::KeyReused,
            "The method, path, query, body or host differs from that of the first request.",
        ),
        Verdict::Indeterminate(doubt) => unknown_before(doubt),
        Verdict::Expired => Problem::new(
            Code::KeyExpired,
            "The key was used before. The request is not executed again.",
        ),
        Verdict::Granted(_) => Problem::new(Code::StoreUnavailable, "The claim was lost."),
    };
    shared.refuse(&problem.with_record(record))
}

/// Acknowledges a duplicate of a completed request, if the policy says so and the outcome or its body is no longer kept.
pub(super) fn acknowledged<G, R>(
    operation: &Operation,
    record: RecordId,
    verdict: &Verdict<G>,
) -> Option<Response<Body<R>>> {
    if operation.duplicates != Duplicates::Acknowledge {
        return None;
    }
    let (status, outcome) = match verdict {
        Verdict::Expired if operation.keeps_successes_alone() => (StatusCode::OK, None),
        Verdict::Replay(outcome) if !outcome.is_body_kept() && outcome.status() < 400 => {
            (StatusCode::from_u16(outcome.status()).ok()?, Some(outcome))
        }
        _ => return None,
    };
    let mut response = acknowledge(status, outcome);
    add_record(response.headers_mut(), record);
    Some(marked(Decision::Acknowledged, response))
}

/// An acknowledgement, without the outcome's body or without any outcome.
fn acknowledge<R>(status: StatusCode, outcome: Option<&Outcome>) -> Response<Body<R>> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // Without the body, only `Location` is of use.
    let left = outcome.map(|outcome| fields(outcome.headers()));
    if let Some(location) = left.and_then(|mut left| left.remove(header::LOCATION)) {
        headers.insert(header::LOCATION, location);
    }
    mark(headers);
    response
}

/// The streamed response of a request in flight, marked as a replay.
pub(super) fn follow<R>(
    status: StatusCode,
    headers: HeaderMap,
    follower: Follower,
) -> Response<Body<R>> {
    let mut response = Response::new(Body::live(follower));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    mark(response.headers_mut());
    response
}

fn mark(headers: &mut HeaderMap) {
    for (name, value) in MARKS {
        headers.insert(name, value);
    }
}

/// Whether a stored field is sent: `content-length` is sent only in the response to `HEAD`, which has no body.
fn is_shown(name: &str, is_to_head: bool) -> bool {
    is_to_head || name != header::CONTENT_LENGTH.as_str()
}

/// An outcome as a response, without the headers of a replay.
pub(super) fn answer<R>(outcome: &Outcome, is_to_head: bool) -> Response<Body<R>> {
    let trailers = fields(outcome.trailers());
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let shown = outcome.headers();
    let mut headers = fields(shown.filter(|(name, _)| is_shown(name, is_to_head)));
    // Servers send only trailers that were announced.
    for name in trailers.iter().flat_map(HeaderMap::keys) {
        headers.append(header::TRAILER, name.clone().into());
    }
    let mut response = Response::new(Body::with_trailers(outcome.body(), trailers.map(Box::new)));
    *response.headers_mut() = headers;
    *response.status_mut() = status(outcome);
    response
}

/// The stored status; 500 if it is invalid, which no stored response has.
fn status(outcome: &Outcome) -> StatusCode {
    StatusCode::from_u16(outcome.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn fields<'a>(pairs: impl Iterator<Item = (&'a str, Bytes)>) -> HeaderMap {
    pairs
        .filter_map(|(name, value)| {
            let name = HeaderName::try_from(name).ok()?;
            Some((name, HeaderValue::from_maybe_shared(value).ok()?))
        })
        .fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Packer;

    fn replayed(stored: &[(&str, &[u8])]) -> Response<Body<()>> {
        let outcome = Packer::new(200, stored.iter().copied()).finish([]);
        replay(&outcome, RecordId::default(), false, Share::default())
    }

    #[test]
    fn headers_that_would_break_the_head_are_dropped() {
        let shown = |name, value| {
            replayed(&[(name, value)]).headers().len() - replayed(&[]).headers().len()
        };
        assert_eq!(shown("x-part", b"one, \xe4\ttwo"), 1);
        assert_eq!(shown("x-part", b""), 1);
        for name in ["", "x part", "x:part", "x\r\npart", "p\u{e4}rt"] {
            assert_eq!(shown(name, b"one"), 0, "{name:?}");
        }
        for value in [&b"one\r\nx-other: two"[..], b"one\n", b"\0", b"\x7f"] {
            assert_eq!(shown("x-part", value), 0, "{value:?}");
        }
    }

    #[test]
    fn a_replay_says_of_itself_what_it_is_whatever_was_stored() {
        let replay = replayed(&[
            ("cache-control", b"public"),
            ("idempotent-replayed", b"false"),
            ("refrain-record", b"another"),
            ("x-part", b"one"),
        ]);
        let fields = replay.headers().iter();
        let mut fields: Vec<_> = fields
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        fields.sort_unstable();
        let shown = [
            ("cache-control", &b"no-store"[..]),
            ("idempotent-replayed", b"true"),
            ("refrain-record", &[b'0'; 32]),
            ("x-part", b"one"),
        ];
        assert_eq!(fields, shown);
    }

    #[test]
    fn trailers_are_announced() {
        let outcome = Packer::new(200, []).finish([("x-sum", &b"7"[..])]);
        let response = answer::<()>(&outcome, false);
        assert_eq!(response.headers()["trailer"], "x-sum");
    }
}
