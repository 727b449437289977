//! The error type of this crate: its kind, its message, and whether a retry can succeed.

use std::{error::Error as StdError, fmt};

/// `Result` with [`Error`] as its default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a store, a policy or an input.
///
/// The message names the failing object and, if there is one, the fix.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    is_unapplied: bool,
}

/// Category of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or a setting is invalid; the caller can correct it.
    Invalid,
    /// The key was used for a different request.
    Mismatch,
    /// The store did not respond, or shut itself down after a failed write.
    Unavailable,
    /// The store has no room for a new record; existing records are still served.
    Full,
    /// Stored bytes are damaged. Their content is unknown, so the record does not count as absent.
    Corrupt,
    /// Another process holds the store.
    Held,
    /// This build does not support the format version, scheme or folder.
    Unsupported,
    /// The audit log cannot be written. Audited operations do not run until writing succeeds again,
    /// or until an operator repairs the log and restarts the process.
    Unaudited,
}

impl Error {
    /// Creates an error of this kind; the message is shown to the user.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            is_unapplied: false,
        }
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks the error of a call that changed nothing: the call never left this process, or the server rejected it.
    #[must_use]
    pub fn unapplied(mut self) -> Self {
        self.is_unapplied = true;
        self
    }

    /// Returns whether the call certainly changed nothing.
    ///
    /// Otherwise an unavailable store may have applied the call and lost the response.
    #[must_use]
    pub fn is_unapplied(&self) -> bool {
        self.is_unapplied || self.kind != ErrorKind::Unavailable
    }

    /// Copies the error for another caller, without its source.
    #[must_use]
    pub fn repeated(&self) -> Self {
        Self {
            is_unapplied: self.is_unapplied,
            ..Self::new(self.kind, self.to_string())
        }
    }

    /// The category of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether the same call may succeed later without a change by the caller.
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
