//! Headers on their way through: what belongs to one connection stays there, and who asked is told.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Uri, Version,
    header::{self, Entry},
    request,
};
use refrain::policy::HostHeader;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of one connection.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// What `Connection` may name is dropped, but for these: nobody may talk us out of passing them on.
const END_TO_END: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::AUTHORIZATION,
    header::COOKIE,
    header::VIA,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
];

/// What the upstream sees of the client.
#[derive(Debug, Clone)]
pub(crate) struct Visible {
    pub(crate) host: HostHeader,
    /// The upstream's own `Host`.
    pub(crate) upstream: HeaderValue,
}

/// Makes a client's head one for the upstream. `upgrade` is kept as it is.
pub(crate) fn to_upstream(
    head: &mut request::Parts,
    visible: &Visible,
    client: Option<IpAddr>,
    upgrade: Option<HeaderValue>,
) {
    let wants_trailers = wants_trailers(&head.headers);
    strip(&mut head.headers);
    // What it would wait for is said here already.
    head.headers.remove(header::EXPECT);
    let headers = &mut head.headers;
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    if visible.host == HostHeader::Upstream || !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, visible.upstream.clone());
    }
    if let Some(client) = client {
        append(headers, X_FORWARDED_FOR, &client.to_string());
        headers
            .entry(X_FORWARDED_PROTO)
            .or_insert(HeaderValue::from_static("http"));
    }
    let version = via(head.version);
    match headers.entry(header::VIA) {
        Entry::Vacant(vacant) => drop(vacant.insert(HeaderValue::from_static(version))),
        Entry::Occupied(_) => append(headers, header::VIA, version),
    }
    head.uri = origin_form(&head.uri);
    head.version = Version::HTTP_11;
}

/// Makes the upstream's headers ones for the client.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip(headers);
}

/// Makes a head the same whichever version it came in: `Host` is there, and cookies are in one piece.
pub(crate) fn normalise(head: &mut request::Parts) {
    if let Some(authority) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(header::HOST, host);
    }
    let mut cookies = head.headers.get_all(header::COOKIE).iter();
    if head.version == Version::HTTP_2 && cookies.nth(1).is_some() {
        let crumbs: Vec<_> = head.headers.get_all(header::COOKIE).iter().collect();
        let crumbs: Vec<_> = crumbs.iter().map(|crumb| crumb.as_bytes()).collect();
        if let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            head.headers.insert(header::COOKIE, whole);
        }
    }
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let is_ours = |name: &HeaderName| {
        name.as_str().starts_with("refrain-") || name.as_str().contains("idempotency")
    };
    tokens(headers, &header::CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| !END_TO_END.contains(name) && !is_ours(name))
        .collect()
}

/// The members of a list header.
pub(crate) fn tokens<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TE)
        && tokens(headers, &header::TE).any(|token| token.eq_ignore_ascii_case("trailers"))
}

fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2.0 refrain",
        Version::HTTP_10 => "1.0 refrain",
        _ => "1.1 refrain",
    }
}

/// Adds to a list header behind what others wrote there.
fn append(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(text.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

fn origin_form(uri: &Uri) -> Uri {
    if uri.authority().is_none() {
        return uri.clone();
    }
    let path = uri.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}
