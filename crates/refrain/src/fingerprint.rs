//! Request fingerprints: a digest that tells a retry from a different request under the same key.
//!
//! The policy names the [`Part`]s of a fingerprint: method, path, query, body and host by default.
//! A JSON body is hashed in canonical form, so member order and white space do not matter.
//! Any other body is hashed byte for byte.
//! A fingerprint is not a key: two requests with the same fingerprint and different keys are two requests.
//!
//! ```
//! use refrain::{Secret, fingerprint::{Content, Fingerprint, Part, RequestView}};
//! let secret = Secret::from([7; 32]);
//! let of = |body: &str| {
//!     let content = Content::new(Some(b"application/json"), body.as_bytes());
//!     let request = RequestView {
//!         method: "POST",
//!         path: "/pay",
//!         query: None,
//!         host: Some("shop.example"),
//!         headers: &[("x-version", &b"1"[..])],
//!         content: &content,
//!     };
//!     Fingerprint::of(&secret, &Part::DEFAULT, &request)
//! };
//! assert_eq!(of(r#"{"to":"bo","sum":5}"#), of(r#"{"sum": 5, "to": "bo"}"#));
//! assert_ne!(of(r#"{"sum":5}"#), of(r#"{"sum":6}"#));
//! ```

use std::{borrow::Cow, fmt};

use crate::key::{Digest, Secret, hex_format};

mod content;
pub use content::{Content, is_json};

pub(crate) mod json;
pub use json::{JSON_DEPTH_MAX, Json, NotJson};

mod part;
pub use part::Part;

/// Version of the fingerprint format.
const VERSION: u8 = 1;

/// Default ports, which are removed from an authority.
const PORTS_DEFAULT: [&str; 2] = ["80", "443"];

/// Tags in front of the values in the digest.
mod tag {
    pub(super) const METHOD: u8 = 1;
    pub(super) const PATH: u8 = 2;
    pub(super) const QUERY: u8 = 3;
    pub(super) const BODY: u8 = 4;
    pub(super) const MEMBER: u8 = 5;
    pub(super) const HEADER: u8 = 6;

    /// The value is missing, or the list of values ends.
    pub(super) const NONE: u8 = 0;
    /// Bytes as received.
    pub(super) const RAW: u8 = 1;
    /// Canonical JSON.
    pub(super) const CANONICAL: u8 = 2;
}

/// Keyed digest that identifies the content of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

hex_format!(Fingerprint);

/// The parts of a request that a fingerprint is computed from.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    /// The method, as sent: methods are case-sensitive.
    pub method: &'a str,
    /// The path, as sent, without the query.
    pub path: &'a str,
    /// The query, as sent, without its `?`; `None` if the request has none.
    pub query: Option<&'a str>,
    /// The authority of the request, as [`normal_host`] writes it; `None` if the request has none.
    pub host: Option<&'a str>,
    /// The header fields.
    pub headers: &'a dyn Fields,
    /// The body.
    pub content: &'a Content<'a>,
}

impl fmt::Debug for RequestView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestView({} {})", self.method, self.path)
    }
}

/// Lookup of header fields by name.
pub trait Fields: Sync {
    /// Calls `show` with every value of the field `name` (in lower case), in order.
    fn each(&self, name: &str, show: &mut dyn FnMut(&[u8]));
}

impl<const N: usize> Fields for [(&str, &[u8]); N] {
    fn each(&self, name: &str, show: &mut dyn FnMut(&[u8])) {
        let is_named = |(field, _): &&(&str, &[u8])| field.eq_ignore_ascii_case(name);
        self.iter()
            .filter(is_named)
            .for_each(|(_, value)| show(value));
    }
}

impl Fingerprint {
    /// Computes the fingerprint of a request.
    ///
    /// The parts are hashed in the order of the list, except for the host, whose position makes no difference.
    /// A missing value differs from an empty one.
    /// Canonical JSON never equals raw bytes: the same text sent as JSON and as plain text is two requests.
    /// If a part names a member and the body has no canonical form, the whole body is hashed instead,
    /// so that a difference between two bodies is never missed.
    #[must_use]
    pub fn of(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        Fingerprints::of(secret, parts, request).whole
    }

    /// Computes the fingerprint without the host, even if the parts name the host.
    fn without_host(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        let mut digest = secret.start_digest("fingerprint");
        digest.tag(VERSION);
        for part in parts {
            add_part(&mut digest, part, request);
        }
        Self(digest.finish())
    }
}

/// The fingerprint of a request, with and without its host.
///
/// The host is hashed on top of the digest of all other parts, so both digests are available at the cost of one.
/// Records written by versions without host support hold the digest without the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprints {
    /// The fingerprint of all parts.
    pub whole: Fingerprint,
    /// The fingerprint without the host; `None` if the host is not one of the parts.
    pub hostless: Option<Fingerprint>,
}

impl Fingerprints {
    /// Computes both fingerprints of a request.
    #[must_use]
    pub fn of(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        let hostless = Fingerprint::without_host(secret, parts, request);
        if !parts.contains(&Part::Host) {
            return Self {
                whole: hostless,
                hostless: None,
            };
        }
        let mut digest = secret.start_digest("fingerprint-host");
        digest.part(&hostless.0);
        add_maybe(&mut digest, request.host.map(str::as_bytes));
        Self {
            whole: Fingerprint(digest.finish()),
            hostless: Some(hostless),
        }
    }
}

fn add_part(digest: &mut Digest, part: &Part, request: &RequestView<'_>) {
    match part {
        Part::Method => add(digest, tag::METHOD, request.method.as_bytes()),
        Part::Path => add(digest, tag::PATH, request.path.as_bytes()),
        Part::Query => {
            digest.tag(tag::QUERY);
            add_maybe(digest, request.query.map(str::as_bytes));
        }
        Part::Body => {
            digest.tag(tag::BODY);
            match request.content.canonical() {
                Some(json) => add(digest, tag::CANONICAL, json.as_str().as_bytes()),
                None => add(digest, tag::RAW, request.content.bytes()),
            }
        }
        Part::Member(pointer) => {
            add(digest, tag::MEMBER, pointer.as_str().as_bytes());
            match request.content.json().map(|json| json.find(pointer)) {
                Ok(Some(value)) => add(digest, tag::CANONICAL, value.as_bytes()),
                Ok(None) => digest.tag(tag::NONE),
                Err(_) => add(digest, tag::RAW, request.content.bytes()),
            }
        }
        Part::Header(name) => {
            add(digest, tag::HEADER, name.as_bytes());
            let mut show = |value: &[u8]| add(digest, tag::RAW, value);
            request.headers.each(name, &mut show);
            digest.tag(tag::NONE);
        }
        // Hashed separately: see `Fingerprints`.
        Part::Host => {}
    }
}

fn add(digest: &mut Digest, tag: u8, value: &[u8]) {
    digest.tag(tag);
    digest.part(value);
}

fn add_maybe(digest: &mut Digest, value: Option<&[u8]>) {
    match value {
        Some(value) => add(digest, tag::RAW, value),
        None => digest.tag(tag::NONE),
    }
}

/// Returns the canonical form of a JSON text; `None` if it has none.
#[must_use]
pub fn canonical(bytes: &[u8]) -> Option<String> {
    Json::parse(bytes).ok().map(Into::into)
}

/// Normalizes an authority, so that all spellings of a host compare equal:
/// lower case, without user information, and without the ports 80 and 443.
///
/// ```
/// use refrain::fingerprint::normal_host;
/// assert_eq!(normal_host("Shop.Example:443"), "shop.example");
/// assert_eq!(normal_host("shop.example:8443"), "shop.example:8443");
/// assert_eq!(normal_host("[2001:DB8::1]:80"), "[2001:db8::1]");
/// ```
#[must_use]
pub fn normal_host(authority: &str) -> Cow<'_, str> {
    let authority = authority.trim_ascii();
    let host = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
    let named = match host.rsplit_once(':') {
        Some((name, port)) if port.is_empty() || PORTS_DEFAULT.contains(&port) => name,
        _ => host,
    };
    match named.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(named.to_ascii_lowercase()),
        false => Cow::Borrowed(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_host_keeps_what_names_another_host() {
        for (written, normal) in [
            ("shop.example", "shop.example"),
            ("SHOP.example", "shop.example"),
            ("shop.example:80", "shop.example"),
            ("shop.example:443", "shop.example"),
            ("shop.example:", "shop.example"),
            ("shop.example:8080", "shop.example:8080"),
            ("shop.example:0443", "shop.example:0443"),
            (" shop.example ", "shop.example"),
            ("me:secret@shop.example:80", "shop.example"),
            ("[::1]", "[::1]"),
            ("[::80]", "[::80]"),
            ("[::1]:443", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(normal_host(written), normal, "{written}");
        }
    }
}
