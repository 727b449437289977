//! Why a run did not get to its end, and what to do about it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::Failure;
use crate::{Error, RecordId};

/// Why a run did not get to its end. What was recorded before stands, and the next run goes on behind it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Not now: open the operation again, not before `retry_after` has passed.
    #[error("step `{step}` is to be tried again: {reason}")]
    Failed {
        /// Which step.
        step: String,
        /// What went wrong.
        reason: String,
        /// Before that it cannot be claimed again.
        retry_after: Duration,
    },
    /// Another run has it, and did not end it within the time to wait.
    #[error("step `{step}` is in flight in another run")]
    InFlight {
        /// Which step.
        step: String,
        /// What is left of the other run's lease.
        lease_left: Duration,
    },
    /// It may or may not have taken effect, and is not run again by itself.
    /// [`Engine::resolve`](crate::Engine::resolve) its record with the step's result as JSON, or as never happened; then open the operation again.
    #[error(
        "step `{step}` may or may not have taken effect: find out, and resolve the record {record}"
    )]
    Indeterminate {
        /// Which step.
        step: String,
        /// The record to resolve.
        record: RecordId,
    },
    /// It was undone, to its end. It stays so under this key.
    #[error("the operation was undone: {cause}")]
    Undone {
        /// Why.
        cause: Cause,
    },
    /// A step that must be done was refused for good: an undo, or a step behind the point of no return.
    /// Do it by hand and [resolve](crate::Engine::resolve) its record as completed, or as never happened to have it tried again;
    /// then open the operation again.
    #[error(
        "{what} was refused for good ({reason}): do it by hand, and resolve the record {record}"
    )]
    Stuck {
        /// Which step, or the undo of which.
        what: String,
        /// What was said when it was refused.
        reason: String,
        /// The record to resolve.
        record: RecordId,
    },
    /// The key was used for an operation, or a step, with another input.
    #[error("{what} was begun under this key with another input; another effect takes another key")]
    Mismatch {
        /// What was begun.
        what: String,
    },
    /// The code takes another way than the recorded one.
    #[error(
        "{0}; finish what was begun with the code that began it, and give changed code another name"
    )]
    Changed(String),
    /// It was begun so long ago that its steps are not known any more. Nothing runs.
    #[error("the steps of this operation are past their retention")]
    Expired,
    /// The result cannot be kept, so the step does not count as done.
    #[error("the result of `{step}` cannot be kept: {reason}")]
    Unkept {
        /// Which step.
        step: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A rule was broken by the code that calls.
    #[error("{0}")]
    Invalid(String),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] Error),
}

impl StepError {
    /// Whether opening the operation again may bring it further, without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { .. } | Self::InFlight { .. } => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Before which there is no use in opening the operation again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Failed { retry_after, .. } => Some(*retry_after),
            Self::InFlight { lease_left, .. } => Some(*lease_left),
            _ => None,
        }
    }

    /// The same as the failure of a message: tried again where that helps, a dead letter otherwise.
    #[must_use]
    pub fn into_failure(self) -> Failure {
        match (self.is_retryable(), self.retry_after()) {
            (true, Some(delay)) => Failure::retry_after(delay, self.to_string()),
            (true, None) => Failure::retry(self.to_string()),
            (false, _) => Failure::reject(self.to_string()),
        }
    }
}

/// Why an operation is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The step that was refused for good; `None` where the code [gave it up](super::Steps::abandon).
    pub step: Option<String>,
    /// What was said.
    pub reason: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "step `{step}` was refused: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}
