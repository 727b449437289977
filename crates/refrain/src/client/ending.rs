//! Ending of a call: its answer, or why there is none.

use bytes::Bytes;
use http::Response;

use super::Problem;
use crate::{Error, ErrorKind, Result};

/// Ending of a call.
#[derive(Debug, Clone)]
#[must_use = "the outcome may be unknown, which must be handled"]
pub enum Ending {
    /// The final answer, with any status. It is in the journal.
    Answered(CallResponse),
    /// The server rejects this key for this request, and nothing was executed. The call is closed in the journal.
    ///
    /// The client never generates a new key by itself: only the caller knows whether this is a new intent.
    NewKey(Stopped),
    /// Nothing was executed: no byte was sent, or the server refused every attempt before executing it.
    /// The call is closed in the journal, and [`resume`](crate::Client::resume) does not send it.
    NotRun(Stopped),
    /// The outcome is unknown: it may or may not have taken effect. The call stays open in the journal:
    /// send it again under the same key, [`resume`](crate::Client::resume) it, or, once its outcome is known,
    /// [`forget`](crate::Client::forget) it.
    Unknown(Stopped),
}

/// The final response to a call.
#[derive(Debug, Clone)]
pub struct CallResponse {
    /// The response as received.
    pub response: Response<Bytes>,
    /// Number of times that this process sent the request for this response.
    pub attempts: u32,
    /// Whether it was already in the journal, so that nothing was sent.
    pub is_from_journal: bool,
}

/// Reason why the client stopped without a final answer.
#[derive(Debug, Clone)]
pub struct Stopped {
    /// The reason.
    pub why: Why,
    /// Number of times that this process sent the request.
    pub attempts: u32,
    /// Response to the last attempt, if there was one.
    pub answer: Option<Response<Bytes>>,
    /// Error of the last attempt, if there was no response.
    pub trouble: Option<String>,
}

/// Reason why the client stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The server asks for an operator to check first.
    Asked,
    /// The server demands another key. If an earlier attempt may have run, an operator must check before one is used.
    NewKeyWanted,
    /// The server refuses the caller, which leaves the outcome of earlier attempts unknown.
    Refused,
    /// The maximum number of attempts was made.
    AttemptsUsedUp,
    /// The deadline passed, or is earlier than the server's `Retry-After`.
    DeadlinePassed,
    /// The answer exceeds the size limit.
    AnswerTooLong,
}

impl Ending {
    /// Returns the final answer; an error in all other cases, for use with `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with the reason.
    pub fn into_answer(self) -> Result<Response<Bytes>> {
        let (what, stopped) = match self {
            Self::Answered(answer) => return Ok(answer.response),
            Self::NewKey(stopped) => ("the server rejects this key for this request", stopped),
            Self::NotRun(stopped) => ("the request was not executed", stopped),
            Self::Unknown(stopped) => (
                "the outcome is unknown, and the call stays open in the journal",
                stopped,
            ),
        };
        let message = format!("{what}: {stopped}");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Returns the problem in the response, if it contains advice.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Self::Answered(answer) => Problem::of(&answer.response),
            Self::NewKey(stopped) | Self::NotRun(stopped) | Self::Unknown(stopped) => {
                stopped.answer.as_ref().and_then(Problem::of)
            }
        }
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self.why {
            Why::Asked => "the server asks for an operator to check",
            Why::NewKeyWanted => "the server demands another key",
            Why::Refused => "the server refused the caller",
            Why::AttemptsUsedUp => "the limit of attempts was reached",
            Why::DeadlinePassed => "the deadline leaves no time for a retry",
            Why::AnswerTooLong => "the response exceeds the size limit",
        };
        write!(f, "{why} after {} attempts", self.attempts)?;
        if let Some(answer) = &self.answer {
            write!(
                f,
                "; the last response had status {}",
                answer.status().as_u16()
            )?;
        }
        match &self.trouble {
            Some(trouble) => write!(f, "; {trouble}"),
            None => Ok(()),
        }
    }
}
