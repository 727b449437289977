//! What a request says of itself: its key, its scope, its credential and what its fingerprint is taken of.
//!
//! Nothing here decides whether a request is guarded, and nothing here proves who calls.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header::CONTENT_TYPE, request::Parts};

use crate::{
    Error, ErrorKind, Key, Result,
    fingerprint::{Content, Fields, Json, NotJson, RequestView, normal_host},
    key::{KEY_HEADER, Pointer, Source, Syntax},
};

mod caller;
pub use caller::{credential, scope};

/// The header that carries a key unless the policy names another one.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(KEY_HEADER);

/// What the head of a request tells of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadKey {
    /// This is it.
    Found(Key),
    /// It has none: the body need not be read.
    Absent,
    /// It may lie in the body, or be derived from it.
    NeedsBody,
}

/// Looks for the key in the head alone, so that a request without one can stream through untouched.
///
/// # Errors
/// [`ErrorKind::Invalid`] where a key header is malformed or stands twice.
pub fn head_key(sources: &[Source], syntax: Syntax, headers: &HeaderMap) -> Result<HeadKey> {
    for source in sources {
        let Source::Header(name) = source else {
            return Ok(HeadKey::NeedsBody);
        };
        if let Some(key) = header_key(name, syntax, headers)? {
            return Ok(HeadKey::Found(key));
        }
    }
    Ok(HeadKey::Absent)
}

/// The key of a request: the first of the sources that is present decides, and the others are not looked at.
/// `uri` is what the client asked for; a router may have left less of it in `head`.
///
/// # Errors
/// [`ErrorKind::Invalid`] where that source is present and what it holds is no key.
pub fn find_key(
    sources: &[Source],
    syntax: Syntax,
    head: &Parts,
    uri: &Uri,
    content: &Content<'_>,
) -> Result<Option<Key>> {
    for source in sources {
        let key = match source {
            Source::Header(name) => header_key(name, syntax, &head.headers)?,
            Source::Body(pointer) => body_key(pointer, content)?,
            Source::Derive => Some(Key::derive_from_request(&view(head, uri, None, content))),
            Source::Natural(template) => match readable(content)? {
                Some(json) => template.render(json)?,
                None => None,
            },
        };
        if key.is_some() {
            return Ok(key);
        }
    }
    Ok(None)
}

/// The body with what its head says of it.
#[must_use]
pub fn content<'a>(head: &Parts, body: &'a Bytes) -> Content<'a> {
    let content_type = head.headers.get(CONTENT_TYPE);
    Content::new(content_type.map(|value| value.as_bytes()), body)
}

/// What the fingerprint is taken of: the head and the body, with the `uri` that the client asked for and its [`host`].
#[must_use]
pub fn view<'a>(
    head: &'a Parts,
    uri: &'a Uri,
    host: Option<&'a str>,
    content: &'a Content<'a>,
) -> RequestView<'a> {
    RequestView {
        method: head.method.as_str(),
        path: uri.path(),
        query: uri.query(),
        host,
        headers: &head.headers,
        content,
    }
}

/// The authority that a request is addressed to, in its [normal form](normal_host):
/// that of its target, such as `:authority`, else the header `Host`.
#[must_use]
pub fn host<'a>(head: &'a Parts, uri: &'a Uri) -> Option<Cow<'a, str>> {
    if let Some(authority) = uri.authority().or(head.uri.authority()) {
        return Some(normal_host(authority.as_str()));
    }
    let written = values(&head.headers, "host").map(|value| match value.to_str() {
        Ok(host) => normal_host(host),
        Err(_) => value.as_bytes().escape_ascii().to_string().into(),
    });
    written.reduce(|all, next| format!("{all},{next}").into())
}

impl Fields for HeaderMap {
    fn each(&self, name: &str, show: &mut dyn FnMut(&[u8])) {
        values(self, name).for_each(|value| show(value.as_bytes()));
    }
}

/// All values of a header. Most requests have few headers: to compare names is quicker than to look one up.
fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h HeaderValue> {
    // Both are in lower case as a rule, and equal bytes are quickly found so.
    let is_named = move |it: &HeaderName| {
        let it = it.as_str();
        it.len() == name.len() && (it == name || it.eq_ignore_ascii_case(name))
    };
    let fields = headers.iter();
    fields.filter_map(move |(name, value)| is_named(name).then_some(value))
}

fn header_key(name: &str, syntax: Syntax, headers: &HeaderMap) -> Result<Option<Key>> {
    let mut values = values(headers, name);
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        let message = format!("the header {name} stands twice; send one key");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let key = syntax.read(value.as_bytes());
    key.map(Some)
        .map_err(|error| at(&format!("header {name}"), &error))
}

fn body_key(pointer: &Pointer, content: &Content<'_>) -> Result<Option<Key>> {
    let text = readable(content)?.and_then(|json| json.text(pointer));
    text.map(Key::new)
        .transpose()
        .map_err(|error| at(&format!("{pointer} in the body"), &error))
}

/// The body as JSON; `None` where it is something else and so holds no members.
///
/// JSON of which readers may make different things is refused: a key must not depend on the reader.
fn readable<'c>(content: &'c Content<'_>) -> Result<Option<&'c Json>> {
    let why = match content.json() {
        Ok(json) => return Ok(Some(json)),
        Err(NotJson::Malformed) => return Ok(None),
        Err(NotJson::DuplicateName) => "it names a member twice; name each once",
        Err(NotJson::TooDeep) => "it is nested too deep; flatten it",
        Err(NotJson::TooLarge) => "it is too large; send less",
    };
    let message = format!("the key cannot be read from the body: {why}");
    Err(Error::new(ErrorKind::Invalid, message))
}

fn at(place: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{place}: {error}"))
}
