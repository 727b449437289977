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

use std::{borrow::Cow, fmt, str::FromStr, sync::OnceLock};

use crate::{
    Error, ErrorKind, Result,
    key::{Digest, Pointer, Secret, header_name, hex_format},
};

pub(crate) mod json;
pub use json::{JSON_DEPTH_MAX, Json, NotJson};

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

/// One part of a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// `method`.
    Method,
    /// `path`.
    Path,
    /// `query`.
    Query,
    /// `body`: the whole body, in canonical form if it is JSON.
    Body,
    /// `body:/pointer`: one member of the JSON body.
    Member(Pointer),
    /// `header:NAME`: the values of a header. The name is in lower case.
    Header(String),
    /// `host`: the authority of the request, in normal form.
    Host,
}

impl Part {
    /// The parts that are used unless the policy names others.
    pub const DEFAULT: [Self; 5] = [
        Self::Method,
        Self::Path,
        Self::Query,
        Self::Body,
        Self::Host,
    ];
}

impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "method" => Ok(Self::Method),
            None if text == "path" => Ok(Self::Path),
            None if text == "query" => Ok(Self::Query),
            None if text == "body" => Ok(Self::Body),
            None if text == "host" => Ok(Self::Host),
            Some(("body", pointer)) => pointer.parse().map(Self::Member),
            Some(("header", name)) => header_part(name),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid fingerprint part `{text}`; write method, path, query, body, host, body:/pointer or header:NAME"
                ),
            )),
        }
    }
}

/// Accepts any header but those that carry credentials: a retry with a renewed credential is still the same request.
fn header_part(name: &str) -> Result<Part> {
    let name = header_name(name)?;
    match name.as_str() {
        "authorization" | "proxy-authorization" => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "header:{name} is never part of a fingerprint, because a retry may carry a renewed credential; name it in `credential` instead"
            ),
        )),
        _ => Ok(Part::Header(name)),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("method"),
            Self::Path => f.write_str("path"),
            Self::Query => f.write_str("query"),
            Self::Body => f.write_str("body"),
            Self::Member(pointer) => write!(f, "body:{pointer}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Host => f.write_str("host"),
        }
    }
}

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

/// The body of a request. It is parsed as JSON at most once.
///
/// It counts as JSON if its content type is JSON ([`is_json`]) and it has a canonical form;
/// any other body counts byte for byte.
pub struct Content<'a> {
    bytes: &'a [u8],
    is_json: bool,
    json: OnceLock<Result<Json, NotJson>>,
}

impl<'a> Content<'a> {
    /// Creates the content from the value of `Content-Type` and the body.
    #[must_use]
    pub fn new(content_type: Option<&[u8]>, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            is_json: content_type.is_some_and(is_json),
            json: OnceLock::new(),
        }
    }

    /// The body as received.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The canonical form, if the body counts as JSON.
    #[must_use]
    pub fn canonical(&self) -> Option<&Json> {
        match self.is_json {
            true => self.json().ok(),
            false => None,
        }
    }

    /// Parses the body as JSON, regardless of its content type, to look up members that a policy names.
    ///
    /// # Errors
    /// [`NotJson`] gives the reason.
    pub fn json(&self) -> Result<&Json, NotJson> {
        let json = self.json.get_or_init(|| Json::parse(self.bytes));
        json.as_ref().map_err(|why| *why)
    }
}

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.bytes.len())
    }
}

/// Returns whether a `Content-Type` is JSON: `application/json`, or any type that ends in `+json`.
#[must_use]
pub fn is_json(content_type: &[u8]) -> bool {
    let end = content_type.iter().position(|byte| *byte == b';');
    let media_type = content_type[..end.unwrap_or(content_type.len())].trim_ascii();
    let suffix_at = media_type.len().saturating_sub(5);
    media_type.eq_ignore_ascii_case(b"application/json")
        || media_type[suffix_at..].eq_ignore_ascii_case(b"+json")
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
