//! How a call ended, or why nobody knows.

use bytes::Bytes;
use http::Response;

use super::Problem;
use crate::{Error, ErrorKind, Result};

/// How a call ended.
#[derive(Debug, Clone)]
#[must_use = "an unknown outcome that nobody looks at is a lost one"]
pub enum Ending {
    /// This is what became of it, whatever the status. The journal has it.
    Answered(Answer),
    /// The server does not take this key for this request, and nothing ran. The journal has let go of the call.
    ///
    /// A new key is never made silently: whether this is a new intent is for the caller to say.
    NewKey(Stopped),
    /// Nothing ran: no byte was sent, or the server refused every attempt before it ran anything.
    /// The journal has let go of the call; it will not be sent by [`resume`](crate::Client::resume).
    NotRun(Stopped),
    /// It may or may not have taken effect. The call stays open in the journal:
    /// send it again under the same key, [`resume`](crate::Client::resume) it, or, once somebody knows, [`forget`](crate::Client::forget) it.
    Unknown(Stopped),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// As it came.
    pub response: Response<Bytes>,
    /// How often the request was sent for it by this process just now.
    pub attempts: u32,
    /// Whether it was in the journal already, and nothing was sent.
    pub is_from_journal: bool,
}

/// Why a client stopped before there was a final answer.
#[derive(Debug, Clone)]
pub struct Stopped {
    /// Why.
    pub why: Why,
    /// How often the request was sent by this process just now.
    pub attempts: u32,
    /// The last answer, if that is what the last attempt came to.
    pub answer: Option<Response<Bytes>>,
    /// What was wrong with the last attempt, if there was no answer.
    pub trouble: Option<String>,
}

/// Why a client stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The server says that somebody has to look first.
    Asked,
    /// The server wants another key. Where an earlier attempt may have run, somebody has to look before one is made.
    NewKeyWanted,
    /// The server refuses the caller, which does not tell what became of earlier attempts.
    Refused,
    /// As often as was allowed.
    AttemptsUsedUp,
    /// There is no time left, or less than the server wants to be left alone.
    DeadlinePassed,
    /// The answer is longer than is taken or kept.
    AnswerTooLong,
}

impl Ending {
    /// The final answer; an error in all other cases, to hand on with `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] says what is known instead.
    pub fn into_answer(self) -> Result<Response<Bytes>> {
        let (what, stopped) = match self {
            Self::Answered(answer) => return Ok(answer.response),
            Self::NewKey(stopped) => ("the server does not take this key for it", stopped),
            Self::NotRun(stopped) => ("it did not run", stopped),
            Self::Unknown(stopped) => (
                "it may or may not have taken effect, and is open in the journal",
                stopped,
            ),
        };
        let message = format!("{what}: {stopped}");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The answer's problem, where the server said what to do next.
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
            Why::Asked => "the server wants somebody to look",
            Why::NewKeyWanted => "the server wants another key",
            Why::Refused => "the server refuses the caller",
            Why::AttemptsUsedUp => "all attempts are used up",
            Why::DeadlinePassed => "there is no time left",
            Why::AnswerTooLong => "the answer is longer than is kept",
        };
        write!(f, "{why} after {} attempts", self.attempts)?;
        if let Some(answer) = &self.answer {
            write!(f, "; the last was answered {}", answer.status().as_u16())?;
        }
        match &self.trouble {
            Some(trouble) => write!(f, "; {trouble}"),
            None => Ok(()),
        }
    }
}
