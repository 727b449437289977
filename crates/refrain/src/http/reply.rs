//! From a verdict to a response: fresh, replayed, or a problem.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{body::Body, live::Follower};
use crate::outcome::Outcome;

/// Marks a replay.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The stored outcome as an answer, marked as a replay.
pub(super) fn replay<R>(outcome: &Outcome) -> Response<Body<R>> {
    let mut response = answer(outcome);
    mark(response.headers_mut());
    response
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
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// An outcome as an answer, as it is.
pub(super) fn answer<R>(outcome: &Outcome) -> Response<Body<R>> {
    let trailers = fields(outcome.trailers());
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let mut headers = fields(outcome.headers());
    // Servers send only those trailers that were announced.
    for name in trailers.iter().flat_map(HeaderMap::keys) {
        headers.append(header::TRAILER, name.clone().into());
    }
    let mut response = Response::new(Body::with_trailers(outcome.body(), trailers.map(Box::new)));
    *response.headers_mut() = headers;
    // What was packed came from a response: a status that is none cannot be in there.
    *response.status_mut() =
        StatusCode::from_u16(outcome.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
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
