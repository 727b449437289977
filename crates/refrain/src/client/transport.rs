//! What carries one request to a server and one answer back.

use std::{error::Error as StdError, fmt};

use bytes::Bytes;
use http::{Request, Response, StatusCode};

type Source = Box<dyn StdError + Send + Sync>;

/// Sends a request once.
///
/// It never sends it again by itself: whether that is safe is for the [client](crate::Client) to say.
pub trait Transport: Send + Sync + 'static {
    /// Sends the request once, and reads its answer to the end.
    ///
    /// # Errors
    /// [`TransportError`] says whether the server may have seen any of it.
    ///
    /// # Cancellation
    /// Dropped, the request may have been sent; the client drops it when a call's deadline passes.
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Response<Bytes>, TransportError>> + Send;
}

/// Why there is no answer.
#[derive(Debug)]
pub struct TransportError {
    sent: Sent,
    source: Source,
}

/// How far a request came that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// No byte of it was written: nothing happened.
    Nothing,
    /// Some of it may have been written: what became of it is not known.
    Unknown,
    /// It was answered with this status; the answer is longer than is taken.
    TooLongAnAnswer(StatusCode),
}

impl TransportError {
    /// No byte of the request was written.
    pub fn not_sent(source: impl Into<Source>) -> Self {
        Self::new(Sent::Nothing, source)
    }

    /// Some of the request may have been written.
    pub fn unknown(source: impl Into<Source>) -> Self {
        Self::new(Sent::Unknown, source)
    }

    /// The answer is longer than is taken.
    pub fn too_long(status: StatusCode, source: impl Into<Source>) -> Self {
        Self::new(Sent::TooLongAnAnswer(status), source)
    }

    fn new(sent: Sent, source: impl Into<Source>) -> Self {
        Self {
            sent,
            source: source.into(),
        }
    }

    /// How far the request came.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }
}

impl fmt::Display for TransportError {
    /// With all that lies beneath: the layers of a connection say little each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sent {
            Sent::Nothing => f.write_str("nothing was sent: ")?,
            Sent::Unknown => f.write_str("no answer came: ")?,
            Sent::TooLongAnAnswer(status) => {
                write!(f, "the answer with status {status} is too long: ")?;
            }
        }
        write!(f, "{}", self.source)?;
        let mut beneath = self.source.source();
        while let Some(error) = beneath {
            write!(f, ": {error}")?;
            beneath = error.source();
        }
        Ok(())
    }
}

impl StdError for TransportError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}
