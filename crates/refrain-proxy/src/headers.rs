//! Rewrites headers in transit: drops hop-by-hop headers, and tells the upstream which client sent the request.

use std::{io::Write as _, net::IpAddr};

use http::{HeaderMap, HeaderName, HeaderValue, Version, header, request, uri::PathAndQuery};
use refrain::policy::HostHeader;

use crate::http1::{COPIED_MAX, Length, write_field};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Hop-by-hop headers for which the `http` crate has no constant.
const HOP_BY_HOP: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];

/// Estimated bytes of a head without its fields, and of each field.
const HEAD_USUAL: usize = 256;
const FIELD_USUAL: usize = 48;

/// Headers that are passed on even if `Connection` names them: no peer can have them removed.
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

/// Which `Host` header the upstream gets.
#[derive(Debug, Clone)]
pub(crate) struct Visible {
    pub(crate) host: HostHeader,
    /// The upstream's own `Host`.
    pub(crate) upstream: HeaderValue,
}

/// A client, and the forwarding headers that the upstream gets about it.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The client's address.
    address: String,
    /// The encoded forwarding headers of a request that passed no other proxy: the same for most requests of a connection.
    usual: Vec<u8>,
}

impl Caller {
    pub(crate) fn new(address: IpAddr) -> Self {
        let address = address.to_string();
        let mut usual = Vec::new();
        write_field(&mut usual, &X_FORWARDED_FOR, address.as_bytes());
        write_field(&mut usual, &X_FORWARDED_PROTO, b"http");
        write_field(&mut usual, &header::VIA, via(Version::HTTP_11));
        Self { address, usual }
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
    /// Encodes a client's head for the upstream; returns the bytes, and the length of the body that follows.
    ///
    /// The bytes are written directly, because changing the header map first would cost more than writing it.
    pub(crate) fn to_upstream(
        &self,
        head: &request::Parts,
        size: Option<u64>,
    ) -> (Vec<u8>, Length) {
        let headers = &head.headers;
        let copied = size.filter(|size| *size <= COPIED_MAX as u64).unwrap_or(0);
        let room = HEAD_USUAL + headers.len() * FIELD_USUAL + copied as usize;
        let mut out = Vec::with_capacity(room);
        write_start(&mut out, head);
        let host = headers.get(header::HOST);
        let shown = match self.visible.host {
            HostHeader::Upstream => None,
            _ => host,
        };
        let shown = shown.unwrap_or(&self.visible.upstream);
        write_field(&mut out, &header::HOST, shown.as_bytes());
        let seen = self.write_fields(&mut out, headers);
        self.write_own(&mut out, head.version, host, &seen);
        let length = write_length(&mut out, size, seen.length);
        out.extend_from_slice(b"\r\n");
        (out, length)
    }

    /// Writes the fields that are passed on, and returns those that the proxy rewrites.
    fn write_fields(&self, out: &mut Vec<u8>, headers: &HeaderMap) -> SeenRequestFields {
        let mut seen = SeenRequestFields::default();
        let named = match headers.contains_key(header::CONNECTION) {
            true => named_by_connection(headers),
            false => Vec::new(),
        };
        for (name, value) in headers {
            if !self.is_kept(name, value, &mut seen) || named.contains(name) {
                continue;
            }
            write_field(out, name, value.as_bytes());
        }
        seen
    }

    fn is_kept(
        &self,
        name: &HeaderName,
        value: &HeaderValue,
        seen: &mut SeenRequestFields,
    ) -> bool {
        match *name {
            // The proxy itself sends the 100 that `Expect` waits for.
            header::HOST
            | header::CONNECTION
            | header::TRANSFER_ENCODING
            | header::UPGRADE
            | header::EXPECT => return false,
            header::CONTENT_LENGTH => seen.length = number(value.as_bytes()),
            header::TE => {
                let mut tokens = value.as_bytes().split(|byte| *byte == b',');
                seen.wants_trailers |=
                    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"));
            }
            header::VIA => join(&mut seen.via, value),
            _ => return self.is_kept_of_others(name.as_str(), value, seen),
        }
        false
    }

    fn is_kept_of_others(
        &self,
        name: &str,
        value: &HeaderValue,
        seen: &mut SeenRequestFields,
    ) -> bool {
        match name {
            name if HOP_BY_HOP.contains(&name) => false,
            "x-forwarded-for" if self.client.is_some() => {
                join(&mut seen.forwarded_for, value);
                false
            }
            "x-forwarded-host" => {
                seen.forwarded_host = true;
                true
            }
            "x-forwarded-proto" => {
                seen.forwarded_proto = true;
                true
            }
            _ => true,
        }
    }

    /// Writes the fields that the proxy adds or rewrites.
    fn write_own(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        host: Option<&HeaderValue>,
        seen: &SeenRequestFields,
    ) {
        if seen.wants_trailers {
            write_field(out, &header::TE, b"trailers");
        }
        if let Some(upgrade) = &self.upgrade {
            write_field(out, &header::UPGRADE, upgrade.as_bytes());
            write_field(out, &header::CONNECTION, b"upgrade");
        }
        if let Some(host) = host
            && !seen.forwarded_host
        {
            write_field(out, &X_FORWARDED_HOST, host.as_bytes());
        }
        if let Some(client) = self.client {
            if version == Version::HTTP_11 && seen.is_first_hop() {
                out.extend_from_slice(&client.usual);
                return;
            }
            let address = client.address.as_bytes();
            write_list(out, &X_FORWARDED_FOR, &seen.forwarded_for, address);
            if !seen.forwarded_proto {
                write_field(out, &X_FORWARDED_PROTO, b"http");
            }
        }
        write_list(out, &header::VIA, &seen.via, via(version));
    }
}

/// Fields of a request that the proxy rewrites.
#[derive(Default)]
struct SeenRequestFields {
    length: Option<u64>,
    wants_trailers: bool,
    via: Vec<u8>,
    forwarded_for: Vec<u8>,
    forwarded_host: bool,
    forwarded_proto: bool,
}

impl SeenRequestFields {
    /// Whether no earlier proxy has said where the request comes from.
    fn is_first_hop(&self) -> bool {
        self.via.is_empty() && self.forwarded_for.is_empty() && !self.forwarded_proto
    }
}

/// Writes the request line. The target goes without its authority, which `Host` carries.
fn write_start(out: &mut Vec<u8>, head: &request::Parts) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if !target.starts_with(['/', '*']) {
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Writes the length of the body: the known length takes precedence over the declared one.
fn write_length(out: &mut Vec<u8>, known: Option<u64>, said: Option<u64>) -> Length {
    match known.or(said) {
        Some(0) if said.is_none() => Length::Left(0),
        Some(length) => {
            // Writing to memory does not fail.
            let _ = write!(out, "content-length: {length}\r\n");
            Length::Left(length)
        }
        None => {
            write_field(out, &header::TRANSFER_ENCODING, b"chunked");
            Length::Chunked
        }
    }
}

/// Parses a length that consists of digits only.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Appends a value to a list header.
fn join(list: &mut Vec<u8>, value: &HeaderValue) {
    list.extend_from_slice(value.as_bytes());
    list.extend_from_slice(b", ");
}

/// Writes a list header: the values of earlier hops, then our own.
fn write_list(out: &mut Vec<u8>, name: &HeaderName, others: &[u8], own: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(others);
    out.extend_from_slice(own);
    out.extend_from_slice(b"\r\n");
}

/// Removes the hop-by-hop headers from the upstream's response.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    // One pass over all headers is faster than one lookup for each name.
    let belongs_here = |name: &HeaderName| match *name {
        header::CONNECTION | header::TE | header::TRANSFER_ENCODING | header::UPGRADE => true,
        _ => HOP_BY_HOP.contains(&name.as_str()),
    };
    if !headers.keys().any(belongs_here) {
        return;
    }
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
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

fn via(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_2 => b"2.0 refrain",
        Version::HTTP_10 => b"1.0 refrain",
        _ => b"1.1 refrain",
    }
}

#[cfg(test)]
mod tests;
