//! Headers on their way through: what belongs to one connection stays there, and who asked is told.

use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header, request};
use refrain::policy::HostHeader;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of one connection, besides `Connection` itself.
const HOP_BY_HOP: [&str; 6] = [
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// How many headers a request gains on its way.
const ADDED_USUALLY: usize = 4;

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

/// Makes a client's head one for the upstream. `client` is the client's address, and `upgrade` is kept as it is.
pub(crate) fn to_upstream(
    head: &mut request::Parts,
    visible: &Visible,
    client: Option<&HeaderValue>,
    upgrade: Option<HeaderValue>,
) {
    let wants_trailers = wants_trailers(&head.headers);
    let headers = &mut head.headers;
    let present = strip(headers);
    headers.reserve(ADDED_USUALLY);
    if present.expect {
        // What it would wait for is said here already.
        headers.remove(header::EXPECT);
    }
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let host = headers.get(header::HOST).cloned();
    if visible.host == HostHeader::Upstream || host.is_none() {
        headers.insert(header::HOST, visible.upstream.clone());
    }
    if let Some(host) = host
        && !present.forwarded_host
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
    if let Some(client) = client {
        add(
            headers,
            X_FORWARDED_FOR,
            client.clone(),
            present.forwarded_for,
        );
        if !present.forwarded_proto {
            headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
        }
    }
    add(headers, header::VIA, via(head.version), present.via);
    head.uri = origin_form(&head.uri);
    head.version = Version::HTTP_11;
}

/// Makes the upstream's headers ones for the client.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip(headers);
}

/// Which of the headers that matter here are present: to look at each once is quicker than to look for each.
#[derive(Debug, Default)]
struct Present {
    connection: bool,
    hop_by_hop: bool,
    expect: bool,
    forwarded_for: bool,
    forwarded_host: bool,
    forwarded_proto: bool,
    via: bool,
}

impl Present {
    fn of(headers: &HeaderMap) -> Self {
        let mut present = Self::default();
        for name in headers.keys() {
            match name.as_str() {
                "connection" => present.connection = true,
                "expect" => present.expect = true,
                "via" => present.via = true,
                "x-forwarded-for" => present.forwarded_for = true,
                "x-forwarded-host" => present.forwarded_host = true,
                "x-forwarded-proto" => present.forwarded_proto = true,
                name if HOP_BY_HOP.contains(&name) => present.hop_by_hop = true,
                _ => {}
            }
        }
        present
    }
}

/// Makes a head the same whichever version it came in: `Host` is there, and cookies are in one piece.
pub(crate) fn normalise(head: &mut request::Parts) {
    if let Some(authority) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(header::HOST, host);
    }
    if head.version != Version::HTTP_2 {
        return;
    }
    if head.headers.get_all(header::COOKIE).iter().nth(1).is_some() {
        let crumbs: Vec<_> = head.headers.get_all(header::COOKIE).iter().collect();
        let crumbs: Vec<_> = crumbs.iter().map(|crumb| crumb.as_bytes()).collect();
        if let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            head.headers.insert(header::COOKIE, whole);
        }
    }
}

/// Takes away what belongs to one connection; answers what is left.
fn strip(headers: &mut HeaderMap) -> Present {
    let present = Present::of(headers);
    if !present.connection && !present.hop_by_hop {
        return present;
    }
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(header::CONNECTION);
    Present::of(headers)
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

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2.0 refrain",
        Version::HTTP_10 => "1.0 refrain",
        _ => "1.1 refrain",
    })
}

/// Adds to a list header, behind what others wrote there.
fn add(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue, is_present: bool) {
    if !is_present {
        headers.insert(name, value);
        return;
    }
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(value.as_bytes());
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
