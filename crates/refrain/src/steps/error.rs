//! Errors of a run.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::Failure;
use crate::{Error, RecordId};

/// Error that ends a run. Recorded steps remain, and the next run continues after them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The step failed: open the operation again after `retry_after`.
    #[error("step `{step}` failed: {reason}; open the operation again to retry")]
    Failed {
        /// The step.
        step: String,
        /// Error text.
        reason: String,
        /// Minimum delay before it can be claimed again.
        retry_after: Duration,
    },
    /// Another run holds the step, and did not finish it within `wait`.
    #[error("step `{step}` is in flight in another run")]
    InFlight {
        /// The step.
        step: String,
        /// Remaining lease of the other run.
        lease_left: Duration,
    },
    /// The outcome of the step is unknown, so it is not run again automatically.
    /// [Resolve](crate::Engine::resolve) its record with the step's result as JSON, or as never happened; then open the
    /// operation again.
    #[error(
        "step `{step}` has an unknown outcome: find out whether it took effect, and resolve the record {record}"
    )]
    Indeterminate {
        /// The step.
        step: String,
        /// The record to resolve.
        record: RecordId,
    },
    /// The operation was undone completely. This is final under this key.
    #[error("the operation was undone: {cause}")]
    Undone {
        /// Why it was undone.
        cause: Cause,
    },
    /// A step that must succeed was rejected: an undo, or a step after the point of no return.
    /// Do it by hand and [resolve](crate::Engine::resolve) its record as completed, or resolve it as never happened to
    /// retry it; then open the operation again.
    #[error(
        "{what} was rejected permanently ({reason}): do it by hand, and resolve the record {record}"
    )]
    Stuck {
        /// The step or its undo.
        what: String,
        /// Reason of the rejection.
        reason: String,
        /// The record to resolve.
        record: RecordId,
    },
    /// The key was used for an operation or a step with another input.
    #[error(
        "{what} was started under this key with another input; use another key for another effect"
    )]
    Mismatch {
        /// The operation or step.
        what: String,
    },
    /// The code takes another path than the recorded one.
    #[error(
        "{0}; finish started operations with the code that started them, and rename the operation in changed code"
    )]
    Changed(String),
    /// The records of its steps are past retention. Nothing is run.
    #[error("the steps of this operation are past their retention")]
    Expired,
    /// The result cannot be stored, so the step does not count as finished.
    #[error("cannot store the result of `{step}`: {reason}")]
    Unkept {
        /// The step.
        step: String,
        /// Error text.
        reason: String,
    },
    /// The calling code violates a rule.
    #[error("{0}")]
    Invalid(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
}

impl StepError {
    /// Whether opening the operation again may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { .. } | Self::InFlight { .. } => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Minimum delay before opening the operation again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Failed { retry_after, .. } => Some(*retry_after),
            Self::InFlight { lease_left, .. } => Some(*lease_left),
            _ => None,
        }
    }

    /// Converts into the failure of a message: retried if retryable, else a dead letter.
    #[must_use]
    pub fn into_failure(self) -> Failure {
        match (self.is_retryable(), self.retry_after()) {
            (true, Some(delay)) => Failure::retry_after(delay, self.to_string()),
            (true, None) => Failure::retry(self.to_string()),
            (false, _) => Failure::reject(self.to_string()),
        }
    }
}

/// Reason why an operation is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The rejected step; `None` if the code [abandoned](super::Steps::abandon) the operation.
    pub step: Option<String>,
    /// Error text.
    pub reason: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "step `{step}` was rejected: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}
