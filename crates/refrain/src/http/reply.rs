//! From a verdict to a response: fresh, replayed, or a problem.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{Decision, body::Body, budget::Share, decision::marked, live::Follower};
use crate::outcome::Outcome;

/// Marks a replay.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a replay says of itself, in place of what the stored outcome may say there.
const MARKS: [(HeaderName, HeaderValue); 2] = [
    (IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// A stored outcome that answers a duplicate, for a server that writes it out by itself: all of it is in its fields and its body.
#[derive(Debug)]
pub struct Replay {
    outcome: Outcome,
    is_to_head: bool,
    /// Its part of the memory for bodies.
    share: Share,
}

impl Replay {
    /// The outcome as the answer to a request, which may be `HEAD`.
    pub(super) fn new(outcome: Outcome, is_to_head: bool) -> Self {
        Self {
            outcome,
            is_to_head,
            share: Share::default(),
        }
    }

    /// The same replay, which counts towards the memory for bodies until it is sent.
    pub(super) fn counted(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// The status it ended with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        status(&self.outcome)
    }

    /// The fields of its head, with names in lower case.
    /// How long the body is is among them for `HEAD` alone, whose answer has none.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        static MARKS: [(HeaderName, HeaderValue); 2] = self::MARKS;
        let is_marked = |name: &str| MARKS.iter().any(|(mark, _)| mark == name);
        let is_shown = move |name: &str| is_shown(name, self.is_to_head) && !is_marked(name);
        let stored = self.outcome.header_fields();
        let stored = stored.filter(move |(name, _)| is_shown(name));
        let marks = MARKS.iter();
        stored.chain(marks.map(|(name, value)| (name.as_str(), value.as_bytes())))
    }

    /// Its body.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.outcome.body()
    }

    /// The bytes of its body, for who copies them.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        self.outcome.content()
    }

    /// Whether its fields and its body are all of it, and can be written as they are.
    ///
    /// A large body is sent as a response, whose body counts until it is sent.
    /// What was stored came from a response, or from a receipt that somebody else wrote.
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

    /// All of it as a response.
    #[must_use]
    pub fn into_response<R>(self) -> Response<Body<R>> {
        let response = answer(&self.outcome, self.is_to_head);
        let mut response = response.map(|body| body.counted(self.share));
        mark(response.headers_mut());
        marked(Decision::Replayed, response)
    }
}

/// Says of something done that it is done, without its body or without any outcome.
pub(super) fn acknowledge<R>(status: StatusCode, outcome: Option<&Outcome>) -> Response<Body<R>> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // Where it lies is all that can be said without the body.
    let left = outcome.map(|outcome| fields(outcome.headers()));
    if let Some(location) = left.and_then(|mut left| left.remove(header::LOCATION)) {
        headers.insert(header::LOCATION, location);
    }
    mark(headers);
    response
}

/// The answer of one in flight while it comes, marked as a replay.
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

/// Whether a stored field is shown: a length without a body is the answer to `HEAD`, and to nothing else.
fn is_shown(name: &str, is_to_head: bool) -> bool {
    is_to_head || name != header::CONTENT_LENGTH.as_str()
}

/// An outcome as an answer, as it is.
pub(super) fn answer<R>(outcome: &Outcome, is_to_head: bool) -> Response<Body<R>> {
    let trailers = fields(outcome.trailers());
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let shown = outcome.headers();
    let mut headers = fields(shown.filter(|(name, _)| is_shown(name, is_to_head)));
    // Servers send only those trailers that were announced.
    for name in trailers.iter().flat_map(HeaderMap::keys) {
        headers.append(header::TRAILER, name.clone().into());
    }
    let mut response = Response::new(Body::with_trailers(outcome.body(), trailers.map(Box::new)));
    *response.headers_mut() = headers;
    *response.status_mut() = status(outcome);
    response
}

/// What was packed came from a response: a status that is none cannot be in there.
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
        Replay::new(packer.finish([]), false).is_plain()
    }

    #[test]
    fn what_would_break_a_head_is_not_written_as_it_is() {
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
        let replay = Replay::new(Packer::new(200, stored).finish([]), false);
        let fields: Vec<_> = replay.fields().collect();
        let marks = [
            ("idempotent-replayed", &b"true"[..]),
            ("cache-control", b"no-store"),
        ];
        assert_eq!(fields, [&stored[1..], &marks].concat());
    }

    #[test]
    fn trailers_need_a_response() {
        let packer = Packer::new(200, []);
        let replay = Replay::new(packer.finish([("x-sum", &b"7"[..])]), false);
        assert!(!replay.is_plain());
        assert_eq!(replay.into_response::<()>().headers()["trailer"], "x-sum");
    }
}
