//! Sources of keys, as a policy writes them.

use std::{borrow::Cow, fmt, str::FromStr};

use super::{Key, Sender, pointer::Pointer, template::Template};
use crate::{Error, ErrorKind, Result};

/// Where the key of a request comes from.
///
/// Body members are looked up regardless of the content type: a policy that names a member expects JSON,
/// and a client must not bypass its key by sending a wrong content type.
/// A body that is not JSON (for example, a compressed one) has no members; use `required` to reject such requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `header:NAME`: sent by the client. The name is in lower case.
    Header(String),
    /// `body:/pointer`: a member of the JSON body.
    Body(Pointer),
    /// `derive`: computed from the request, so that equal requests have equal keys.
    Derive,
    /// `natural:{/customer}-{/cart}`: business identifiers from the JSON body.
    Natural(Template),
}

/// How a key header is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Syntax {
    /// `"abc"` and `abc` are the same key.
    #[default]
    Both,
    /// Only the quoted form is accepted.
    Strict,
    /// The header's bytes are the key, quotes included.
    Raw,
}

impl Syntax {
    /// Parses the key from the value of one header field; surrounding white space is ignored.
    ///
    /// The quoted form is an RFC 9651 string, with `\\"` and `\\\\` as its only escapes and without parameters.
    ///
    /// ```
    /// use refrain::key::Syntax;
    /// let quoted = Syntax::Both.read(br#""order-7""#)?;
    /// assert_eq!(quoted, Syntax::Both.read(b"order-7")?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the value does not match the syntax, or is not a valid [`Key`].
    pub fn read(self, value: &[u8]) -> Result<Key> {
        let text = std::str::from_utf8(trimmed(value))
            .map_err(|_| invalid("the key contains bytes that are not visible ASCII"))?;
        match (self, text.strip_prefix('"')) {
            (Self::Raw, _) | (Self::Both, None) => Key::new(text),
            (Self::Both | Self::Strict, Some(rest)) => Key::new(unquoted(rest)?),
            (Self::Strict, None) => Err(invalid(
                "the key is not quoted; write it as \"KEY\", with the quotes",
            )),
        }
    }
}

/// Removes the white space around a header value.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Parses a quoted string, given without its opening quote.
fn unquoted(rest: &str) -> Result<Cow<'_, str>> {
    let end = rest
        .find(['"', '\\'])
        .ok_or_else(|| invalid("the key has no closing quote"))?;
    match &rest[end..] {
        "\"" => Ok(Cow::Borrowed(&rest[..end])),
        tail if tail.starts_with('"') => Err(trailing()),
        _ => unescaped(rest).map(Cow::Owned),
    }
}

fn unescaped(rest: &str) -> Result<String> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' if chars.as_str().is_empty() => return Ok(text),
            '"' => return Err(trailing()),
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => return Err(invalid("in a quoted key, only \" and \\ may follow \\")),
            },
            _ => text.push(char),
        }
    }
    Err(invalid("the key has no closing quote"))
}

fn trailing() -> Error {
    invalid("text follows the key's closing quote; send one key, without parameters")
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "derive" => Ok(Self::Derive),
            Some(("header", name)) => super::header_name(name).map(Self::Header),
            Some(("body", pointer)) => pointer.parse().map(Self::Body),
            Some(("natural", template)) => template.parse().map(Self::Natural),
            Some(("preset", name)) => name.parse().map(Sender::source),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid key source `{text}`; write header:NAME, body:/pointer, derive, natural:{{/member}}-{{/member}} or preset:NAME"
                ),
            )),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(pointer) => write!(f, "body:{pointer}"),
            Self::Derive => f.write_str("derive"),
            Self::Natural(template) => write!(f, "natural:{template}"),
        }
    }
}
