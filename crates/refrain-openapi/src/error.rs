//! Why a document cannot be read, and where.

use std::fmt;

/// A place in a file, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: String,
    /// Line and column, counted from one; the column in characters.
    pub at: Option<(usize, usize)>,
}

impl Place {
    /// The file as a whole.
    pub(crate) fn whole(file: &str) -> Self {
        let file = file.to_owned();
        Self { file, at: None }
    }

    /// Where in `text` the byte `offset` is.
    pub(crate) fn of(file: &str, text: &[u8], offset: usize) -> Self {
        let before = &text[..offset.min(text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let start = before.iter().rposition(|&byte| byte == b'\n');
        let last = &before[start.map_or(0, |at| at + 1)..];
        let column = String::from_utf8_lossy(last).chars().count() + 1;
        let at = Some((line, column));
        Self {
            at,
            ..Self::whole(file)
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// Something wrong in a document: where, what, and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}\n  fix: {help}")]
pub struct ReadError {
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

impl ReadError {
    pub(crate) fn new(place: Place, message: impl Into<String>, help: impl Into<String>) -> Self {
        let (message, help) = (message.into(), help.into());
        Self {
            place,
            message,
            help,
        }
    }
}
