//! Rewrites headers in transit: drops hop-by-hop headers, and tells the upstream which client sent the request.

use std::{borrow::Cow, net::IpAddr};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header, request};
use http_body::Body;
use percent_encoding::{percent_decode, percent_decode_str};
use refrain::policy::HostHeader;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that concern only one connection.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// Those for which the `http` crate has no constant.
const HOP_BY_HOP_OTHERS: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];

/// Trailers that are never sent, in addition to those that hyper refuses, such as `Content-Length`.
const NEVER_TRAILERS: [HeaderName; 9] = [
    header::CONNECTION,
    header::COOKIE,
    header::EXPECT,
    header::FORWARDED,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::UPGRADE,
    header::VIA,
    header::WWW_AUTHENTICATE,
];

/// Prefixes of names that the proxy itself writes into heads; they are never sent as trailers.
const NEVER_TRAILER_PREFIXES: [&str; 3] = ["x-forwarded-", "refrain-", "idempotency-"];

/// Headers that are passed on even if `Connection` names them: no peer can have them removed.
const END_TO_END: [HeaderName; 11] = [
    header::FORWARDED,
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

/// Which `Host` header the upstream gets.
#[derive(Debug, Clone)]
pub(crate) struct Visible {
    pub(crate) host: HostHeader,
    /// The upstream's own `Host`.
    pub(crate) upstream: HeaderValue,
    /// Path that requests are sent below, without a trailing slash; empty if there is none.
    pub(crate) base: Box<str>,
}

/// A client, and the forwarding headers that the upstream gets about it.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The client's address.
    address: HeaderValue,
    /// The client's address as `Forwarded` writes it.
    node: Box<str>,
    /// The scheme that the client uses.
    scheme: &'static str,
    /// Whether the client is a proxy whose forwarding headers are believed.
    is_trusted: bool,
}

impl Caller {
    pub(crate) fn new(address: IpAddr, is_tls: bool, is_trusted: bool) -> Self {
        let text = address.to_string();
        let node = match address {
            IpAddr::V4(_) => text.clone(),
            // A colon needs quotes.
            IpAddr::V6(_) => format!("\"[{text}]\""),
        };
        // An address contains only visible ASCII.
        let address = HeaderValue::try_from(text);
        Self {
            address: address.unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            node: node.into(),
            scheme: if is_tls { "https" } else { "http" },
            is_trusted,
        }
    }

    /// Tells the upstream which client sent the request, to which host and how. What a trusted proxy tells is extended,
    /// what others tell is replaced.
    fn introduce(&self, headers: &mut HeaderMap, host: Option<&HeaderValue>) {
        if !self.is_trusted {
            remove_forwarding(headers);
        } else if headers.contains_key(header::FORWARDED) {
            append(headers, header::FORWARDED, self.forwarded(host));
        }
        append(headers, X_FORWARDED_FOR, self.address.clone());
        if let header::Entry::Vacant(entry) = headers.entry(X_FORWARDED_PROTO) {
            entry.insert(HeaderValue::from_static(self.scheme));
        }
    }

    /// This hop as an element of `Forwarded`.
    fn forwarded(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let (node, scheme) = (&self.node, self.scheme);
        // A host that needs an escape in quotes is left out.
        let is_plain = |host: &&str| !host.contains(['"', '\\']);
        let host = host.and_then(|host| host.to_str().ok()).filter(is_plain);
        let element = match host {
            Some(host) => format!("for={node};host=\"{host}\";proto={scheme}"),
            None => format!("for={node};proto={scheme}"),
        };
        HeaderValue::try_from(element).unwrap_or_else(|_| self.address.clone())
    }
}

/// Rewrites a client's head into the one that is forwarded to the upstream.
pub(crate) struct ForwardedHead<'w> {
    pub(crate) visible: &'w Visible,
    pub(crate) client: Option<&'w Caller>,
    /// Protocol that the client asks to switch to.
    pub(crate) upgrade: Option<HeaderValue>,
}

impl ForwardedHead<'_> {
    /// Rewrites a client's head for the upstream. hyper adds the length of the body where it is known.
    pub(crate) fn rewrite(self, head: &mut request::Parts, body: &impl Body) {
        let version = std::mem::replace(&mut head.version, Version::HTTP_11);
        head.uri = target(&head.uri, &self.visible.base);
        let headers = &mut head.headers;
        let wants_trailers = tokens(headers, &header::TE).any(is_trailers);
        let declared = declared_length(headers);
        remove_hop_by_hop(headers);
        let host = match self.visible.host {
            HostHeader::Upstream => headers.insert(header::HOST, self.visible.upstream.clone()),
            _ => self.keep_host(headers),
        };
        set_length(headers, declared, body);
        if wants_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if let Some(upgrade) = self.upgrade {
            headers.insert(header::UPGRADE, upgrade);
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if let Some(caller) = self.client {
            caller.introduce(headers, host.as_ref());
        }
        if let (Some(host), header::Entry::Vacant(entry)) = (host, headers.entry(X_FORWARDED_HOST))
        {
            entry.insert(host);
        }
        append(headers, header::VIA, via(version));
    }

    /// Keeps the client's `Host`, and returns it; if there is none, sets the upstream's.
    fn keep_host(&self, headers: &mut HeaderMap) -> Option<HeaderValue> {
        let host = headers.get(header::HOST).cloned();
        if host.is_none() {
            headers.insert(header::HOST, self.visible.upstream.clone());
        }
        host
    }
}

/// The target below the base path, and without its authority, which `Host` carries. `*` names no path, so it stays.
fn target(uri: &Uri, base: &str) -> Uri {
    let Some(target) = uri.path_and_query() else {
        return Uri::from_static("/");
    };
    match target.as_str() {
        text if !base.is_empty() && text != "*" => below(base, text),
        text if text.starts_with(['/', '*']) => Uri::from(target.clone()),
        text => Uri::try_from(format!("/{text}")).unwrap_or_else(|_| Uri::from(target.clone())),
    }
}

/// Joins a base path and a target.
fn below(base: &str, target: &str) -> Uri {
    let slash = if target.starts_with('/') { "" } else { "/" };
    let joined = Uri::try_from(format!("{base}{slash}{target}"));
    // The base was checked with the settings, and the target by its parser.
    joined.unwrap_or_else(|_| Uri::from_static("/"))
}

/// Whether a server may read the path as one outside of its base: it has more `..` than segments before them.
///
/// Servers disagree about percent-encoding, backslashes and parameters in segments, so all forms of `..` count.
pub(crate) fn leaves_base(path: &str) -> bool {
    let once: Cow<'_, [u8]> = percent_decode_str(path).into();
    let decoded: Cow<'_, [u8]> = percent_decode(&once).into();
    let mut depth = 0_usize;
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        let name = segment.split(|byte| *byte == b';').next();
        match name.unwrap_or_default() {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

fn is_trailers(token: &str) -> bool {
    token.eq_ignore_ascii_case("trailers")
}

/// The length of the body as the client declares it.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    number(headers.get(header::CONTENT_LENGTH)?.as_bytes())
}

/// Declares the length of the body once: the known length takes precedence over the declared one.
fn set_length(headers: &mut HeaderMap, declared: Option<u64>, body: &impl Body) {
    let known = match body.is_end_stream() {
        true => Some(0),
        false => body.size_hint().exact(),
    };
    let length = match known {
        Some(0) if declared.is_none() => None,
        known => known.or(declared),
    };
    match length {
        Some(length) => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.remove(header::CONTENT_LENGTH);
        }
    }
    if known.or(declared).is_none() {
        // hyper itself would drop the body of a GET.
        headers.insert(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    }
}

/// Adds a value to a list header, in the same field as the values of earlier hops.
fn append(headers: &mut HeaderMap, name: HeaderName, own: HeaderValue) {
    let mut values = headers.get_all(&name).iter();
    let Some(first) = values.next() else {
        headers.insert(name, own);
        return;
    };
    let mut list = first.as_bytes().to_vec();
    for value in values.chain([&own]) {
        list.extend_from_slice(b", ");
        list.extend_from_slice(value.as_bytes());
    }
    let list = HeaderValue::from_maybe_shared(Bytes::from(list));
    headers.insert(name, list.unwrap_or(own));
}

/// Parses a length that consists of digits only.
fn number(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Removes the hop-by-hop headers from the upstream's response.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
}

/// Removes the headers that concern only one connection, and those that `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // One pass over all headers is faster than one lookup for each name, and most heads have none of them.
    let is_hop_by_hop = |name: &HeaderName| {
        // The proxy itself sends the 100 that `Expect` waits for.
        HOP_BY_HOP.contains(name) || HOP_BY_HOP_OTHERS.contains(&name.as_str())
    };
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    HOP_BY_HOP
        .iter()
        .for_each(|name| drop(headers.remove(name)));
    for name in HOP_BY_HOP_OTHERS {
        headers.remove(name);
    }
}

/// Removes the headers in which proxies tell who sent a request.
fn remove_forwarding(headers: &mut HeaderMap) {
    let is_forwarding = |name: &&HeaderName| {
        name.as_str().starts_with("x-forwarded-") || **name == header::FORWARDED
    };
    if headers.keys().any(|name| is_forwarding(&name)) {
        let names: Vec<_> = headers.keys().filter(is_forwarding).cloned().collect();
        names.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Removes trailers that would change how a message is read, or who seems to have sent it.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap) {
    let is_refused = |name: &HeaderName| {
        let starts = |start| name.as_str().starts_with(start);
        NEVER_TRAILERS.contains(name) || NEVER_TRAILER_PREFIXES.into_iter().any(starts)
    };
    let refused: Vec<_> = trailers
        .keys()
        .filter(|it| is_refused(it))
        .cloned()
        .collect();
    refused.iter().for_each(|name| drop(trailers.remove(name)));
}

/// Makes a head independent of its HTTP version: sets `Host` from the target's authority, and joins split cookies.
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

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2.0 refrain",
        Version::HTTP_10 => "1.0 refrain",
        _ => "1.1 refrain",
    })
}

#[cfg(test)]
mod tests;
