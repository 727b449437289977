//! Error of reading a document, with its position.

use std::fmt;

/// Position in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// File name, as the caller gave it.
    pub file: String,
    /// Line and column, from 1, the column in characters; `None` if unknown.
    pub at: Option<(usize, usize)>,
}

impl SourceLocation {
    /// The whole file, without line and column.
    pub(crate) fn whole(file: &str) -> Self {
        let file = file.to_owned();
        Self { file, at: None }
    }

    /// Position of the byte `offset` in `text`.
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

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// Problem in a document: its position, a message and a fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}\n  fix: {help}")]
pub struct ReadError {
    /// Position of the problem.
    pub place: SourceLocation,
    /// Description of the problem.
    pub message: String,
    /// How to fix it.
    pub help: String,
}

impl ReadError {
    pub(crate) fn new(
        place: SourceLocation,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let (message, help) = (message.into(), help.into());
        Self {
            place,
            message,
            help,
        }
    }
}
