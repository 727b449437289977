//! Digest of the request, to tell a retry from another request under the same key.
//!
//! It is made of the [`Part`]s that the policy names: method, path, query, body and host by default.
//! A JSON body counts in its canonical form, so that member order and white space do not matter; any other body counts byte for byte.
//! It is not a key: two requests with the same fingerprint under different keys are two requests.
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

use std::fmt;

use crate::key::{Digest, Secret, hex_format};

mod content;
pub use content::{Content, is_json};

mod host;
pub use host::{Fingerprints, normal_host};

pub(crate) mod json;
pub use json::{JSON_DEPTH_MAX, Json, NotJson};

mod part;
pub use part::Part;

/// The version of how fingerprints are made.
const VERSION: u8 = 1;

/// What stands before a value in the digest.
mod tag {
    pub(super) const METHOD: u8 = 1;
    pub(super) const PATH: u8 = 2;
    pub(super) const QUERY: u8 = 3;
    pub(super) const BODY: u8 = 4;
    pub(super) const MEMBER: u8 = 5;
    pub(super) const HEADER: u8 = 6;

    /// Nothing is there, or no more of it.
    pub(super) const NONE: u8 = 0;
    /// Bytes as they came.
    pub(super) const RAW: u8 = 1;
    /// Canonical JSON.
    pub(super) const CANONICAL: u8 = 2;
}

/// Digest of what makes a request this request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

hex_format!(Fingerprint);

/// What a fingerprint is taken of.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    /// As sent: methods are case-sensitive.
    pub method: &'a str,
    /// As sent, without the query.
    pub path: &'a str,
    /// As sent, without its `?`; `None` where there is none.
    pub query: Option<&'a str>,
    /// The authority that the request is addressed to, as [`normal_host`] writes it; `None` where there is none.
    pub host: Option<&'a str>,
    /// Where headers are looked up.
    pub headers: &'a dyn Fields,
    /// The body.
    pub content: &'a Content<'a>,
}

impl fmt::Debug for RequestView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestView({} {})", self.method, self.path)
    }
}

/// Header fields, looked up by name.
pub trait Fields: Sync {
    /// Shows every value of the field `name`, which is in lower case, in order.
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
    /// The fingerprint of a request.
    ///
    /// The parts count in the order of the list, but for the host, whose place makes no difference.
    /// What is missing differs from what is empty.
    /// Canonical JSON never equals other bytes: the same text sent as JSON and as plain text is two requests.
    /// Where a member is named and the body has no canonical form, all of the body counts instead, so that nothing is taken for equal unseen.
    #[must_use]
    pub fn of(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        Fingerprints::of(secret, parts, request).whole
    }

    /// The fingerprint without the host, whether the parts name it or not.
    fn without_host(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        let mut digest = secret.start_digest("fingerprint");
        digest.tag(VERSION);
        for part in parts {
            add_part(&mut digest, part, request);
        }
        Self(digest.finish())
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
        // Stands beside the others: see `Fingerprints`.
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

/// The canonical form of a JSON text; `None` where it has none.
#[must_use]
pub fn canonical(bytes: &[u8]) -> Option<String> {
    Json::parse(bytes).ok().map(Into::into)
}
