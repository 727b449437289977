//! JSON pointers (RFC 6901) into a request body.

use std::{fmt, str::FromStr};

use crate::{
    Error, ErrorKind, Result,
    fingerprint::{JSON_DEPTH_MAX, json},
};

/// A validated JSON pointer, such as `/items/0/id`.
///
/// It names a member or an element, never the whole body.
/// In a member name, `~1` stands for `/` and `~0` for `~`.
///
/// ```
/// use refrain::{fingerprint::Json, key::Pointer};
/// let json = Json::parse(br#"{"items":[{"id":7.0}]}"#).unwrap();
/// let pointer: Pointer = "/items/0/id".parse()?;
/// assert_eq!(json.find(&pointer), Some("7.0"));
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    text: String,
    steps: Vec<PointerStep>,
}

/// One reference token of a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PointerStep {
    /// The member name as canonical JSON writes it, with quotes, so that names compare without decoding.
    name: String,
    /// The array index, if the token is a valid one.
    index: Option<usize>,
}

impl FromStr for Pointer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: String| {
            let message = format!("invalid JSON pointer `{text}`: {why}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        let Some(path) = text.strip_prefix('/') else {
            return refuse("it must start with /".into());
        };
        // The JSON parser rejects deeper documents, so such a pointer could never match.
        if path.split('/').count() > JSON_DEPTH_MAX {
            return refuse(format!("it has more than {JSON_DEPTH_MAX} levels"));
        }
        match path.split('/').map(step).collect() {
            Some(steps) => Ok(Self {
                text: text.into(),
                steps,
            }),
            None => refuse("in a member name, ~ is written ~0 and / is written ~1".into()),
        }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pointer {
    /// A pointer to the top-level member with this name. The name needs no escaping.
    pub(crate) fn member(name: &str) -> Self {
        let steps = step(name).into_iter().collect();
        let text = format!("/{name}");
        Self { text, steps }
    }

    /// The pointer as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Finds the value that the pointer names in a canonical document.
    pub(crate) fn find_in<'d>(&self, document: &'d str) -> Option<&'d str> {
        self.steps
            .iter()
            .try_fold(document, |value, step| match value.as_bytes().first()? {
                b'{' => member(value, &step.name),
                b'[' => element(value, step.index?),
                _ => None,
            })
    }
}

fn step(written: &str) -> Option<PointerStep> {
    let mut name = String::with_capacity(written.len());
    let mut chars = written.chars();
    while let Some(char) = chars.next() {
        name.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            _ => char,
        });
    }
    Some(PointerStep {
        index: index(&name),
        name: json::quoted(&name),
    })
}

/// Parses an array index: digits without a leading zero. `-`, the position after the last element, never matches.
fn index(name: &str) -> Option<usize> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_digit());
    match is_plain && (name == "0" || !name.starts_with('0')) {
        true => name.parse().ok(),
        false => None,
    }
}

fn member<'d>(object: &'d str, name: &str) -> Option<&'d str> {
    let mut at = 1;
    while object.as_bytes().get(at) == Some(&b'"') {
        let name_end = value_end(object, at)?;
        let end = value_end(object, name_end + 1)?;
        if object.get(at..name_end)? == name {
            return object.get(name_end + 1..end);
        }
        at = end + 1;
    }
    None
}

fn element(array: &str, index: usize) -> Option<&str> {
    let mut at = 1;
    for _ in 0..index {
        at = value_end(array, at)?;
        match array.as_bytes().get(at)? {
            b',' => at += 1,
            _ => return None,
        }
    }
    let end = value_end(array, at)?;
    array.get(at..end).filter(|value| !value.is_empty())
}

/// Returns the end of the value that starts at `at`, in canonical JSON.
fn value_end(text: &str, mut at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            // An empty array or object: nothing to skip before its closing bracket.
            b'}' | b']' => {}
            _ => at = scalar_end(bytes, at),
        }
        while depth > 0 && matches!(bytes.get(at), Some(b'}' | b']')) {
            depth -= 1;
            at += 1;
        }
        if depth == 0 {
            return Some(at);
        }
        // Skip a comma, or the colon between a name and its value.
        at += 1;
    }
}

fn scalar_end(bytes: &[u8], at: usize) -> usize {
    let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']');
    let rest = &bytes[at..];
    at + rest.iter().position(is_end).unwrap_or(rest.len())
}

fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
