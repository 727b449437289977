//! The one error type: what kind of trouble, where, and whether asking again can help.

use std::{error::Error as StdError, fmt};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Trouble with a store, a policy or an input.
///
/// The message names the place and, where there is one, the fix.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    is_unapplied: bool,
}

/// What kind of trouble an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was handed in breaks a rule; the caller can mend it.
    Invalid,
    /// The key is in use for another request.
    Mismatch,
    /// The store did not answer, or has latched itself shut.
    Unavailable,
    /// There is no room for a new record; what is stored is still served.
    Full,
    /// Stored bytes are damaged: what they said is not known, which is not "absent".
    Corrupt,
    /// Another process holds the store.
    Held,
    /// A format version, scheme or folder that this build does not handle.
    Unsupported,
    /// The audit log cannot be written: what must be audited does not run, until that has passed or somebody mends it and starts again.
    Unaudited,
}

impl Error {
    /// An error of this kind with a message for the person who meets it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            is_unapplied: false,
        }
    }

    /// Adds what lies beneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// States that the call changed nothing: it never left this process, or the server refused it.
    #[must_use]
    pub fn unapplied(mut self) -> Self {
        self.is_unapplied = true;
        self
    }

    /// Whether the call certainly changed nothing. Otherwise an unavailable store may have applied it and lost the answer.
    #[must_use]
    pub fn is_unapplied(&self) -> bool {
        self.is_unapplied || self.kind != ErrorKind::Unavailable
    }

    /// The same error for another caller, without its source.
    #[must_use]
    pub fn repeated(&self) -> Self {
        Self {
            is_unapplied: self.is_unapplied,
            ..Self::new(self.kind, self.to_string())
        }
    }

    /// What kind of trouble this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody changing anything here.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Full)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
