//! `Replaying` and `Replied`: responses for verdicts other than a grant, such as replays and acknowledgements.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    Decision, REFRAIN_RECORD, add_record,
    body::{Body, marked},
    budget::Share,
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

/// A stored outcome that answers a duplicate, for a server that writes it to the connection itself: header fields and body.
#[derive(Debug)]
pub struct Replay {
    outcome: Outcome,
    is_to_head: bool,
    /// The text of the record's identity, for [`REFRAIN_RECORD`].
    record: String,
    /// Its share of the memory budget for bodies.
    share: Share,
}

impl Replay {
    /// A replay of the outcome of `record`; `is_to_head` if the duplicate is a `HEAD` request.
    pub(super) fn new(outcome: Outcome, record: RecordId, is_to_head: bool) -> Self {
        Self {
            outcome,
            is_to_head,
            record: record.to_string(),
            share: Share::default(),
        }
    }

    /// The same replay, counted towards the memory budget for bodies until it is sent.
    pub(super) fn counted(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// The stored status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        status(&self.outcome)
    }

    /// The header fields, with names in lower case.
    /// `content-length` is among them only for `HEAD`, whose response has no body.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        static MARKS: [(HeaderName, HeaderValue); 2] = self::MARKS;
        static RECORD: HeaderName = REFRAIN_RECORD;
        let is_marked = |name: &str| RECORD == *name || MARKS.iter().any(|(mark, _)| mark == name);
        let is_shown = move |name: &str| is_shown(name, self.is_to_head) && !is_marked(name);
        let stored = self.outcome.header_fields();
        let stored = stored.filter(move |(name, _)| is_shown(name));
        let marks = MARKS.iter();
        let marks = marks.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let record = (RECORD.as_str(), self.record.as_bytes());
        stored.chain(marks).chain([record])
    }

    /// The stored body.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.outcome.body()
    }

    /// The bytes of the body, for callers that copy them.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        self.outcome.content()
    }

    /// Whether header fields and body are the whole replay, and can be written unchanged.
    ///
    /// A large body is sent as a response, whose body is counted until it is sent.
    /// Fields are validated, because the outcome may come from a receipt that the upstream wrote.
    pub(super) fn is_plain(&self) -> bool {
        let is_name = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
        };
        let is_value = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
        let is_field = |(name, value): (&str, &[u8])| {
            !name.is_empty() && name.bytes().all(is_name) && value.iter().all(is_value)
        };
        !self.share.is_counted()
            && !self.outcome.has_trailers()
            && self.outcome.header_fields().all(is_field)
    }

    /// The replay as a response.
    #[must_use]
    pub fn into_response<R>(self) -> Response<Body<R>> {
        let response = answer(&self.outcome, self.is_to_head);
        let mut response = response.map(|body| body.counted(self.share));
        mark(response.headers_mut());
        if let Ok(record) = HeaderValue::try_from(self.record) {
            response.headers_mut().insert(REFRAIN_RECORD, record);
        }
        marked(Decision::Replayed, response)
    }
}

/// The response for a verdict on `record` other than a grant.
pub(super) fn to_verdict<G, R>(
    shared: &LayerState,
    record: RecordId,
    verdict: &Verdict<G>,
) -> Response<Body<R>> {
    let problem = match verdict {
        Verdict::Replay(outcome) if outcome.is_body_kept() => {
            return Replay::new(outcome.clone(), record, false).into_response();
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

    fn is_plain(name: &str, value: &[u8]) -> bool {
        let packer = Packer::new(200, [("content-type", &b"text/plain"[..]), (name, value)]);
        Replay::new(packer.finish([]), RecordId::default(), false).is_plain()
    }

    #[test]
    fn detects_headers_that_would_break_the_head() {
        assert!(is_plain("x-part", b"one, \xe4\ttwo"));
        assert!(is_plain("x-part", b""));
        for name in ["", "X-Part", "x part", "x:part", "x\r\npart", "p\u{e4}rt"] {
            assert!(!is_plain(name, b"one"), "{name:?}");
        }
        for value in [&b"one\r\nx-other: two"[..], b"one\n", b"\0", b"\x7f"] {
            assert!(!is_plain("x-part", value), "{value:?}");
        }
    }

    #[test]
    fn a_replay_says_of_itself_what_it_is_whatever_was_stored() {
        let stored = [("cache-control", &b"public"[..]), ("x-part", b"one")];
        let outcome = Packer::new(200, stored).finish([]);
        let replay = Replay::new(outcome, RecordId::default(), false);
        let fields: Vec<_> = replay.fields().collect();
        let marks = [
            ("idempotent-replayed", &b"true"[..]),
            ("cache-control", b"no-store"),
            ("refrain-record", &[b'0'; 32]),
        ];
        assert_eq!(fields, [&stored[1..], &marks].concat());
    }

    #[test]
    fn trailers_need_a_response() {
        let packer = Packer::new(200, []);
        let outcome = packer.finish([("x-sum", &b"7"[..])]);
        let replay = Replay::new(outcome, RecordId::default(), false);
        assert!(!replay.is_plain());
        assert_eq!(replay.into_response::<()>().headers()["trailer"], "x-sum");
    }
}
