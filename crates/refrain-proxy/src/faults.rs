//! Heads of which two servers might make two things: refused here, so that nobody behind us has to guess.
//!
//! What hyper refuses by itself is not looked for again.

use http::{
    HeaderValue, Method, Response, StatusCode, Uri, Version,
    header::{self, HeaderMap},
    request,
    uri::Authority,
};
use refrain::http::Body;

use crate::upstream_body::UpstreamBody;

/// What is wrong with a head, in words for the client.
pub(crate) fn of(head: &request::Parts) -> Option<&'static str> {
    in_target(&head.method, &head.uri)
        .or_else(|| in_host(head))
        .or_else(|| in_encoding(&head.headers))
}

fn in_target(method: &Method, uri: &Uri) -> Option<&'static str> {
    if method == Method::CONNECT {
        return None;
    }
    match (uri.scheme(), uri.authority()) {
        (_, Some(authority)) if has_user(authority) => {
            Some("The target names a user; send credentials in Authorization.")
        }
        (None, Some(_)) => Some("The target is no path; start it with a slash."),
        _ => None,
    }
}

fn in_host(head: &request::Parts) -> Option<&'static str> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Some("Host stands twice; send it once."),
        (Some(host), None) if !is_host(host) => Some("Host is not a host; send its name alone."),
        (None, _) if head.version == Version::HTTP_11 => Some("Host is missing; send it."),
        _ => None,
    }
}

fn is_host(host: &HeaderValue) -> bool {
    // Empty is what those send whose target has no host.
    let parsed = || Authority::try_from(host.as_bytes());
    host.is_empty() || parsed().is_ok_and(|authority| !has_user(&authority))
}

fn has_user(authority: &Authority) -> bool {
    authority.as_str().contains('@')
}

/// Whatever is around the chunks would be lost on the way.
fn in_encoding(headers: &HeaderMap) -> Option<&'static str> {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |it: &HeaderValue| it.as_bytes().eq_ignore_ascii_case(b"chunked");
    match (encodings.next(), encodings.next()) {
        (None, _) => None,
        (Some(encoding), None) if is_chunked(encoding) => None,
        _ => Some("Transfer-Encoding is not understood; send chunked, or a length."),
    }
}

/// The answer, behind which the connection ends.
pub(crate) fn answer(fault: &str) -> Response<Body<UpstreamBody>> {
    let mut response = UpstreamBody::problem(StatusCode::BAD_REQUEST, fault).map(Body::through);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}
