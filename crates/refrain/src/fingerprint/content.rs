//! The body of a request, and whether it counts as JSON.

use std::{fmt, sync::OnceLock};

use super::{Json, NotJson};

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
