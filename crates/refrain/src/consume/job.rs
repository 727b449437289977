//! What a handler gets, and how it fails.

use std::{fmt, sync::Arc, time::Duration};

use super::Message;
use crate::{Fence, Key, RecordId};

/// One message to be handled.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// What was delivered.
    pub message: Arc<Message>,
    /// What names the effect: to be handed on to the next system as its key.
    pub key: Key,
    /// The identity of the record.
    pub record: RecordId,
    /// To be handed to the resource that the handler changes, which can then refuse holders that were overtaken.
    pub fence: Fence,
    /// Which attempt this is; the first is 1. Above 1 an attempt before may have taken effect.
    pub attempt: u32,
}

/// Why a message was not handled, or a [step](crate::steps) not done, and what is to become of it.
///
/// Any error becomes one that is tried again, so that `?` works in handlers.
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
    /// To be tried again after the back-off.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self {
            is_rejection: false,
            has_no_effect: false,
            delay: None,
            reason: reason.into(),
        }
    }

    /// To be tried again, and not before this has passed.
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        Self {
            delay: Some(delay),
            ..Self::retry(reason)
        }
    }

    /// Never to be tried again: a message goes to the dead letters at once, and of an operation in steps everything is undone.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self {
            is_rejection: true,
            ..Self::retry(reason)
        }
    }

    /// The same failure, which provably had no effect: also under at-most-once it may be tried again.
    #[must_use]
    pub fn without_effect(self) -> Self {
        Self {
            has_no_effect: true,
            ..self
        }
    }

    /// Whether it is never to be tried again.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.is_rejection
    }

    /// Whether it provably had no effect.
    #[must_use]
    pub fn has_no_effect(&self) -> bool {
        self.has_no_effect
    }

    /// Before which it is not to be tried again, where the handler said so.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// What went wrong.
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
