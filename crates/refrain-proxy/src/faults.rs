//! Rejects ambiguous heads, which two servers might read differently, so that the upstream never has to guess.
//!
//! The parser rejects malformed heads before this.

use http::{HeaderValue, Method, Uri, Version, header, request, uri::Authority};

/// What is wrong with a head, as an explanation for the client.
pub(crate) fn find(head: &request::Parts, has_body: bool) -> Option<&'static str> {
    in_method(&head.method)
        .or_else(|| in_body(&head.method, has_body))
        .or_else(|| in_target(&head.method, &head.uri))
        .or_else(|| in_fields(head))
}

/// Why the method of the preface of HTTP/2 is rejected: a server that gets it over HTTP/1 may switch protocols.
pub(crate) const PRI: &str = "The method PRI is reserved for HTTP/2; send another method.";

/// The parser of HTTP/1 rejects this method itself.
fn in_method(method: &Method) -> Option<&'static str> {
    (method.as_str() == "PRI").then_some(PRI)
}

/// Rejects bodies about whose end servers disagree.
fn in_body(method: &Method, has_body: bool) -> Option<&'static str> {
    match *method {
        Method::CONNECT if has_body => Some("CONNECT must not have a body; remove it."),
        Method::TRACE if has_body => Some("TRACE must not have a body; remove it."),
        _ => None,
    }
}

fn in_target(method: &Method, uri: &Uri) -> Option<&'static str> {
    if method == Method::CONNECT {
        return None;
    }
    match (uri.scheme(), uri.authority()) {
        (_, Some(authority)) if has_user(authority) => {
            Some("The request target contains a user; send credentials in Authorization.")
        }
        (None, Some(_)) => Some("The request target is not a path; start it with a slash."),
        _ if !is_ascii(uri) => Some("The request target has non-ASCII bytes; percent-encode them."),
        _ => None,
    }
}

/// Whether the target is ASCII; servers disagree about the encoding of other bytes.
fn is_ascii(uri: &Uri) -> bool {
    let target = uri.path_and_query();
    target.is_none_or(|target| target.as_str().is_ascii())
}

fn in_fields(head: &request::Parts) -> Option<&'static str> {
    let mut host = None;
    for (name, value) in &head.headers {
        if *name == header::HOST && host.replace(value).is_some() {
            return Some("Host is sent twice; send it once.");
        }
    }
    match host {
        Some(host) if !is_host(host) => Some("Host is malformed; send HOST or HOST:PORT."),
        None if head.version == Version::HTTP_11 => Some("Host is missing; send it."),
        _ => None,
    }
}

fn is_host(host: &HeaderValue) -> bool {
    // Clients send an empty Host if their target has no host.
    let parsed = || Authority::try_from(host.as_bytes());
    is_plain(host.as_bytes()) || parsed().is_ok_and(|authority| !has_user(&authority))
}

/// Whether it consists of letters, digits, dots and hyphens, as most names do.
fn is_plain(host: &[u8]) -> bool {
    let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    host.len() < 256 && host.iter().all(is_usual)
}

fn has_user(authority: &Authority) -> bool {
    authority.as_str().contains('@')
}
