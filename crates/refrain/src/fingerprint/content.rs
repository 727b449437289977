//! A request's body, and what it counts as.

use std::{fmt, sync::OnceLock};

use super::{Json, NotJson};

/// A request's body, read as JSON at most once however often it is asked.
///
/// It counts as JSON where its content type says so ([`is_json`]) and it has a canonical form;
/// anything else counts byte for byte.
pub struct Content<'a> {
    bytes: &'a [u8],
    is_json: bool,
    json: OnceLock<Result<Json, NotJson>>,
}

impl<'a> Content<'a> {
    /// A body with the value of its `Content-Type`.
    #[must_use]
    pub fn new(content_type: Option<&[u8]>, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            is_json: content_type.is_some_and(is_json),
            json: OnceLock::new(),
        }
    }

    /// The body as it came.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The canonical form, where the body counts as JSON.
    #[must_use]
    pub fn canonical(&self) -> Option<&Json> {
        match self.is_json {
            true => self.json().ok(),
            false => None,
        }
    }

    /// The body read as JSON, whatever its content type says: for looking up members that a policy names.
    ///
    /// # Errors
    /// [`NotJson`] says why it cannot be read.
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

/// Whether a `Content-Type` says JSON: `application/json`, or any type that ends in `+json`.
#[must_use]
pub fn is_json(content_type: &[u8]) -> bool {
    let end = content_type.iter().position(|byte| *byte == b';');
    let media_type = content_type[..end.unwrap_or(content_type.len())].trim_ascii();
    let suffix_at = media_type.len().saturating_sub(5);
    media_type.eq_ignore_ascii_case(b"application/json")
        || media_type[suffix_at..].eq_ignore_ascii_case(b"+json")
}
