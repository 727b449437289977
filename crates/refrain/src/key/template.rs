//! Natural keys: templates over members of the body.

use std::{borrow::Cow, fmt, str::FromStr};

use super::{KEY_BYTES_MAX, Key, Pointer};
use crate::{Error, ErrorKind, Result, fingerprint::Json};

/// The maximum number of members in a template.
pub const MEMBERS_MAX: usize = 16;

/// Member names that hold a time of sending. They change with every attempt, so every retry would get a new key.
const CLOCKS: &[&str] = &["timestamp", "now", "createdat", "sentat"];
/// Member names that hold a random value, new for every attempt.
const RANDOM: &[&str] = &["nonce", "random"];
/// Member names that identify the attempt when they are at the top level of the body.
/// Deeper members of the same name may identify a business object, as in `/order/uuid`.
const RANDOM_AT_TOP: &[&str] = &["requestid", "uuid"];

/// A natural key: a template over members of the body, such as `{/customer}-{/cart}`.
///
/// Two members are separated by at least one character of visible ASCII other than `%`, `{` and `}`.
/// In the values, `%`, the characters of the template's own text, and everything that is not visible ASCII
/// are percent-encoded as `%XX`. So different lists of values never give the same key.
///
/// Members whose names suggest a clock or a random value are rejected (ignoring case, `_` and `-`):
/// `timestamp`, `now`, `created_at`, `sent_at`, `nonce`, `random`, and at the top level `request_id` and `uuid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    pieces: Vec<TemplatePiece>,
    /// The bytes of the template's own text, which are percent-encoded in values.
    literals: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    Literal(String),
    Member(Pointer),
}

impl Template {
    /// Renders the key for this body; `None` if a member is missing, `null`, an array or an object.
    ///
    /// Numbers are used as written.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the key is empty or too long.
    pub fn render(&self, body: &Json) -> Result<Option<Key>> {
        let mut key = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Literal(text) => key.push_str(text),
                TemplatePiece::Member(pointer) => match body.text(pointer) {
                    Some(value) => self.encode(&value, &mut key),
                    None => return Ok(None),
                },
            }
        }
        match key.len() {
            0 => Err(self.refuse("is empty, because its members are empty; send them with a value")),
            len if len > KEY_BYTES_MAX => Err(self.refuse(&format!(
                "has {len} bytes, more than the maximum of {KEY_BYTES_MAX}; name shorter members in the template, or let the policy use `derive`"
            ))),
            _ => Key::new(key).map(Some),
        }
    }

    fn encode(&self, value: &str, key: &mut String) {
        for byte in value.bytes() {
            if byte.is_ascii_graphic() && byte != b'%' && !self.literals.contains(&byte) {
                key.push(byte.into());
            } else {
                key.push('%');
                key.extend([byte >> 4, byte & 15].map(hex_digit));
            }
        }
    }

    fn refuse(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Invalid,
            format!("the natural key `{self}` of this request {why}"),
        )
    }
}

fn hex_digit(half: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(half & 15)])
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: Cow<'static, str>| {
            let message = format!("invalid natural key `{text}`: {why}");
            Error::new(ErrorKind::Invalid, message)
        };
        let pieces = pieces(text).map_err(refuse)?;
        check(&pieces).map_err(refuse)?;
        Ok(Self {
            text: text.into(),
            literals: literals(&pieces).flat_map(str::bytes).collect(),
            pieces,
        })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

type TemplateFault = Cow<'static, str>;

fn pieces(text: &str) -> Result<Vec<TemplatePiece>, TemplateFault> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['{', '}']).unwrap_or(rest.len());
        let (literal, tail) = rest.split_at(end);
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Literal(checked_literal(literal)?));
        }
        if tail.is_empty() {
            break;
        }
        let (pointer, behind) = tail
            .strip_prefix('{')
            .and_then(|tail| tail.split_once('}'))
            .filter(|(pointer, _)| !pointer.contains('{'))
            .ok_or("a brace is unbalanced; write {/member}")?;
        pieces.push(TemplatePiece::Member(checked_member(pointer)?));
        rest = behind;
    }
    Ok(pieces)
}

fn checked_literal(text: &str) -> Result<String, TemplateFault> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    match text.bytes().all(is_plain) {
        true => Ok(text.into()),
        false => Err("the text between members must be visible ASCII without %".into()),
    }
}

fn checked_member(text: &str) -> Result<Pointer, TemplateFault> {
    let pointer: Pointer = text.parse().map_err(|error: Error| error.to_string())?;
    let (above, name) = text.rsplit_once('/').unwrap_or_default();
    let name = name.to_ascii_lowercase().replace(['_', '-'], "");
    let is_top = above.is_empty();
    let is_in = |list: &[&str]| list.contains(&name.as_str());
    let what = match () {
        () if is_in(CLOCKS) => "a clock value",
        () if is_in(RANDOM) || (is_top && is_in(RANDOM_AT_TOP)) => "a random value",
        () => return Ok(pointer),
    };
    Err(format!(
        "by its name {text} is {what} that changes with every attempt, so a retry would get another key; name members that stay the same"
    )
    .into())
}

fn check(pieces: &[TemplatePiece]) -> Result<(), TemplateFault> {
    let is_member = |piece: &TemplatePiece| matches!(piece, TemplatePiece::Member(_));
    let members = pieces.iter().filter(|piece| is_member(piece)).count();
    if members == 0 {
        return Err("it names no member; write {/member}".into());
    }
    if members > MEMBERS_MAX {
        return Err(format!("it names more than {MEMBERS_MAX} members").into());
    }
    if pieces.windows(2).any(|pair| pair.iter().all(is_member)) {
        return Err(
            "two members are adjacent, so their values cannot be told apart; write a separator between them".into(),
        );
    }
    match literals(pieces).map(str::len).sum::<usize>() < KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("its fixed text alone has {KEY_BYTES_MAX} bytes or more").into()),
    }
}

fn literals(pieces: &[TemplatePiece]) -> impl Iterator<Item = &str> {
    pieces.iter().filter_map(|piece| match piece {
        TemplatePiece::Literal(text) => Some(text.as_str()),
        TemplatePiece::Member(_) => None,
    })
}
