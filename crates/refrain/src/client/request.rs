//! Checks and fingerprints of requests, and the key header.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};

use crate::{
    Error, ErrorKind, Fingerprint, Key, Result, Secret,
    fingerprint::{Content, Part, RequestView},
    key::Syntax,
};

/// Checks a request before it is journalled.
pub(super) fn check(request: &Request<Bytes>, bytes_max: usize) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let len = request.body().len();
    if len > bytes_max {
        return invalid(format!(
            "the request body has {len} bytes; the journal accepts {bytes_max} (request_bytes_max)"
        ));
    }
    let uri = request.uri();
    match (uri.scheme_str(), uri.authority()) {
        (_, Some(authority)) if authority.as_str().contains('@') => invalid(
            "the URL contains a user, which the journal would store; send credentials in a header"
                .into(),
        ),
        (Some("http" | "https"), Some(_)) => Ok(()),
        _ => invalid(format!(
            "`{uri}` is not an absolute URL; write it as https://host/path"
        )),
    }
}

/// Adds the key header.
pub(super) fn put_key(
    headers: &mut HeaderMap,
    name: &HeaderName,
    syntax: Syntax,
    key: &Key,
) -> Result<()> {
    let mut there = headers.get_all(name).iter();
    let is_other = |value: &HeaderValue| {
        let read = Syntax::Both.read(value.as_bytes());
        !read.is_ok_and(|it| it == *key)
    };
    if there.any(is_other) {
        let message =
            format!("the header `{name}` of the request has another key than the call; remove it");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let text = match syntax {
        Syntax::Strict => quoted(key),
        Syntax::Both | Syntax::Raw => key.as_str().to_owned(),
    };
    let value = HeaderValue::try_from(text).map_err(|error| {
        Error::new(ErrorKind::Invalid, "the key is not a valid header value").with_source(error)
    })?;
    headers.insert(name.clone(), value);
    Ok(())
}

fn quoted(key: &Key) -> String {
    let escaped = key.as_str().replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// Returns the request without these headers, and the names of those it had.
pub(super) fn without_headers(
    request: &Request<Bytes>,
    names: &[HeaderName],
) -> (Request<Bytes>, Vec<HeaderName>) {
    let mut kept = Request::new(request.body().clone());
    *kept.method_mut() = request.method().clone();
    *kept.uri_mut() = request.uri().clone();
    *kept.headers_mut() = request.headers().clone();
    let headers = kept.headers_mut();
    let left_out = names.iter().filter(|name| headers.remove(*name).is_some());
    let left_out = left_out.cloned().collect();
    (kept, left_out)
}

/// Parts of the fingerprint. Existing journals contain fingerprints of exactly these parts, so do not change them.
const PARTS: [Part; 4] = [Part::Method, Part::Path, Part::Query, Part::Body];

/// Fingerprint of a request: method, full URL and body.
pub(super) fn fingerprint(secret: &Secret, request: &Request<Bytes>) -> Fingerprint {
    let uri = request.uri();
    let scheme = uri.scheme_str().unwrap_or_default();
    let authority = uri.authority().map_or("", |it| it.as_str());
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content = Content::new(content_type.map(HeaderValue::as_bytes), request.body());
    let view = RequestView {
        method: request.method().as_str(),
        // The same path on another server is another request.
        path: &format!("{scheme}://{authority}{}", uri.path()),
        query: uri.query(),
        host: None,
        headers: &[],
        content: &content,
    };
    Fingerprint::of(secret, &PARTS, &view)
}
