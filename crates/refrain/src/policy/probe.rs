//! Probe: the request that resolves an unknown outcome.

use std::{fmt, str::FromStr};

use super::{invalid, pattern};
use crate::{Error, Result};

const PROBE_BYTES_MAX: usize = 2048;
/// The placeholder for the key.
pub(super) const KEY_PLACE: &str = "key";
/// The placeholder for the identity of the record.
pub(super) const RECORD_PLACE: &str = "record";

/// GET request with placeholders, such as `GET /v1/payments?key={key}`.
///
/// `{key}` is the record's key. Any other name is a named segment of the operation's pattern; if it has no segment
/// `{record}`, that is the identity of the record, which the operation received in the header `Refrain-Record`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Text and placeholders alternate, text first.
    pieces: Vec<ProbePiece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ProbePiece {
    Text(String),
    Place(String),
}

impl Probe {
    /// Returns the names of the placeholders.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            ProbePiece::Place(name) => Some(name.as_str()),
            ProbePiece::Text(_) => None,
        })
    }

    /// Returns the path and query, with every placeholder replaced by its percent-encoded `value`.
    /// `None` if a placeholder has no value, or if the value is `.` or `..`, which would change the path.
    #[must_use]
    pub fn target<'a>(&self, value: impl Fn(&str) -> Option<&'a [u8]>) -> Option<String> {
        let mut target = String::new();
        for piece in &self.pieces {
            match piece {
                ProbePiece::Text(text) => target.push_str(text),
                ProbePiece::Place(name) => {
                    let value = value(name).filter(|value| !pattern::is_dots(value))?;
                    encode(value, &mut target);
                }
            }
        }
        Some(target)
    }
}

impl FromStr for Probe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |fault: &str| invalid(format!("invalid probe `{text}`: {fault}"));
        if text.len() > PROBE_BYTES_MAX {
            return Err(invalid(format!(
                "the probe has more than {PROBE_BYTES_MAX} bytes"
            )));
        }
        let Some((method, target)) = text.split_once(' ') else {
            return Err(bad("write it like `GET /v1/payments?key={key}`"));
        };
        if method != "GET" {
            return Err(bad(
                "the method must be GET, which changes nothing; write `GET` and a path",
            ));
        }
        if !target.starts_with('/')
            || !target.bytes().all(|byte| byte.is_ascii_graphic())
            || target.contains('#')
        {
            return Err(bad(
                "its target must be a path and query of visible ASCII, starting with /",
            ));
        }
        let pieces = pieces(target)
            .ok_or_else(|| bad("its braces are unbalanced; write {key} where the key goes"))?;
        Ok(Self { pieces })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GET ")?;
        self.pieces.iter().try_for_each(|piece| match piece {
            ProbePiece::Text(text) => f.write_str(text),
            ProbePiece::Place(name) => write!(f, "{{{name}}}"),
        })
    }
}

fn pieces(target: &str) -> Option<Vec<ProbePiece>> {
    let mut pieces = Vec::new();
    let mut parts = target.split('{');
    pieces.push(ProbePiece::Text(parts.next()?.into()));
    for part in parts {
        let (name, text) = part.split_once('}')?;
        pieces.push(ProbePiece::Place(name.into()));
        pieces.push(ProbePiece::Text(text.into()));
    }
    let is_whole = |piece: &ProbePiece| match piece {
        ProbePiece::Text(text) => !text.contains('}'),
        ProbePiece::Place(name) => !name.is_empty(),
    };
    pieces.iter().all(is_whole).then_some(pieces)
}

fn encode(bytes: &[u8], target: &mut String) {
    use fmt::Write as _;
    for &byte in bytes {
        // Writing to a string cannot fail.
        let _ = match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => write!(target, "{}", char::from(byte)),
            false => write!(target, "%{byte:02X}"),
        };
    }
}
