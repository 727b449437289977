//! Failure of the user's own code: a message handler or a step.

use std::{fmt, time::Duration};

/// Maximum length of a stored failure text, in bytes.
const TEXT_BYTES_MAX: usize = 500;

/// Failure of a message handler or a step, and whether it is retried.
///
/// Any error converts into a failure that is retried, so `?` works in handlers.
///
/// ```
/// use refrain::consume::Failure;
/// fn parse(text: &str) -> Result<u64, Failure> {
///     Ok(text.parse::<u64>()?)
/// }
/// assert!(!parse("seven").unwrap_err().is_rejection());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) is_rejection: bool,
    pub(crate) has_no_effect: bool,
    pub(crate) delay: Option<Duration>,
    pub(crate) reason: String,
}

impl Failure {
    /// Creates a failure that is retried after the backoff.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self {
            is_rejection: false,
            has_no_effect: false,
            delay: None,
            reason: reason.into(),
        }
    }

    /// Creates a failure that is retried after this delay at the earliest.
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        Self {
            delay: Some(delay),
            ..Self::retry(reason)
        }
    }

    /// Creates a failure that is never retried: the message becomes a dead letter, and an operation in steps is undone.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self {
            is_rejection: true,
            ..Self::retry(reason)
        }
    }

    /// Declares that the attempt certainly had no effect, so it may be retried even under at-most-once.
    #[must_use]
    pub fn without_effect(self) -> Self {
        Self {
            has_no_effect: true,
            ..self
        }
    }

    /// Whether it is never retried.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.is_rejection
    }

    /// Whether the attempt certainly had no effect.
    #[must_use]
    pub fn has_no_effect(&self) -> bool {
        self.has_no_effect
    }

    /// Returns the minimum delay before a retry, if the handler set one.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error.to_string())
    }
}

/// Shortens a failure text to one line that fits in a header.
pub(crate) fn brief(text: &str) -> String {
    let plain = text.chars().map(|char| match char.is_control() {
        true => ' ',
        false => char,
    });
    let mut brief = String::new();
    for char in plain {
        if brief.len() + char.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        brief.push(char);
    }
    brief
}
