//! Input and error type of handlers.

use std::{fmt, sync::Arc, time::Duration};

use super::Message;
use crate::{Fence, Key, RecordId};

/// One message to handle.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// The delivered message.
    pub message: Arc<Message>,
    /// Key of the effect. Pass it to downstream systems as their idempotency key.
    pub key: Key,
    /// Identity of the record.
    pub record: RecordId,
    /// Fence (fencing token). Pass it to the resource that the handler changes, which can reject overtaken holders.
    pub fence: Fence,
    /// Attempt number, starting at 1. If above 1, an earlier attempt may have taken effect.
    pub attempt: u32,
}

/// Failure of a handler or a [step](crate::steps), and whether it is retried.
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
    pub(super) is_rejection: bool,
    pub(super) has_no_effect: bool,
    pub(super) delay: Option<Duration>,
    pub(super) reason: String,
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
