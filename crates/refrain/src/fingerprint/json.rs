//! Canonical JSON.

use std::{borrow::Cow, fmt};

use crate::key::Pointer;

pub(crate) mod escape;
mod parser;

/// The maximum nesting depth of arrays and objects.
pub const JSON_DEPTH_MAX: usize = 128;

/// A JSON document in canonical form.
///
/// - Members are sorted by name, in the order of Unicode code points.
/// - There is no white space.
/// - Strings are not escaped, except for `"`, `\` and control characters
///   (`\b \t \n \f \r`, otherwise `\u00xx` in lower case).
/// - Numbers are kept as written: `1`, `1.0` and `1e0` all differ, and none is converted to a float.
///
/// ```
/// use refrain::fingerprint::Json;
/// let json = Json::parse(br#" {"b": 1.0, "\u0061": "x"} "#).unwrap();
/// assert_eq!(json.as_str(), r#"{"a":"x","b":1.0}"#);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(String);

/// The reason why bytes have no canonical JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotJson {
    /// The bytes are not JSON in UTF-8, or contain an unpaired surrogate.
    Malformed,
    /// An object has two members of the same name; parsers do not agree which one counts.
    DuplicateName,
    /// Arrays and objects are nested deeper than [`JSON_DEPTH_MAX`].
    TooDeep,
    /// The text has 4 GiB or more.
    TooLarge,
}

impl Json {
    /// Parses a whole document.
    ///
    /// # Errors
    /// [`NotJson`] gives the reason why the document has no canonical form.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotJson> {
        let text = std::str::from_utf8(bytes).map_err(|_| NotJson::Malformed)?;
        if u32::try_from(text.len()).is_err() {
            return Err(NotJson::TooLarge);
        }
        parser::canonical(text).map(Self)
    }

    /// The canonical form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value that the pointer names, in canonical form.
    #[must_use]
    pub fn find(&self, pointer: &Pointer) -> Option<&str> {
        pointer.find_in(&self.0)
    }

    /// Returns the string, number or boolean that the pointer names, as text.
    ///
    /// A string comes without its quotes, a number as written.
    /// `null`, arrays and objects have no text.
    #[must_use]
    pub fn text(&self, pointer: &Pointer) -> Option<Cow<'_, str>> {
        let value = self.find(pointer)?;
        match value.as_bytes().first()? {
            b'"' => unquoted(value),
            b'{' | b'[' | b'n' => None,
            _ => Some(Cow::Borrowed(value)),
        }
    }

    /// Returns the string that the pointer names; `None` for a value of any other type.
    #[must_use]
    pub fn string(&self, pointer: &Pointer) -> Option<Cow<'_, str>> {
        self.find(pointer).and_then(unquoted)
    }
}

impl From<Json> for String {
    fn from(json: Json) -> Self {
        json.0
    }
}

impl fmt::Debug for Json {
    /// Shows only the length: bodies must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    Some(match inner.contains('\\') {
        false => Cow::Borrowed(inner),
        true => Cow::Owned(escape::decoded(inner).collect()),
    })
}
