//! Transport: sends one request and receives one response.

use std::{error::Error as StdError, fmt};

use bytes::Bytes;
use http::{Request, Response, StatusCode};

type Source = Box<dyn StdError + Send + Sync>;

/// Sends a request once.
///
/// It must never retry by itself, because only the [client](crate::Client) knows whether that is safe.
pub trait Transport: Send + Sync + 'static {
    /// Sends the request once, and reads the whole response.
    ///
    /// # Errors
    /// [`TransportError`], which says whether the server may have received any of it.
    ///
    /// # Cancellation
    /// If dropped, the request may have been sent. The client drops it when the call's deadline passes.
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Response<Bytes>, TransportError>> + Send;
}

/// Reason why there is no response.
#[derive(Debug)]
pub struct TransportError {
    sent: Sent,
    source: Source,
}

/// How far a request without a response got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// No byte of it was written: nothing happened.
    Nothing,
    /// Some of it may have been written: the outcome is unknown.
    Unknown,
    /// The response has this status, and is larger than the limit.
    TooLongAnAnswer(StatusCode),
}

impl TransportError {
    /// Creates an error for a request of which no byte was written.
    pub fn not_sent(source: impl Into<Source>) -> Self {
        Self::new(Sent::Nothing, source)
    }

    /// Creates an error for a request that may have been written in part.
    pub fn unknown(source: impl Into<Source>) -> Self {
        Self::new(Sent::Unknown, source)
    }

    /// Creates an error for a response that is larger than the limit.
    pub fn too_long(status: StatusCode, source: impl Into<Source>) -> Self {
        Self::new(Sent::TooLongAnAnswer(status), source)
    }

    fn new(sent: Sent, source: impl Into<Source>) -> Self {
        Self {
            sent,
            source: source.into(),
        }
    }

    /// Returns how far the request got.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }
}

impl fmt::Display for TransportError {
    /// Includes the chain of sources, because each layer of a connection says little.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sent {
            Sent::Nothing => f.write_str("nothing was sent: ")?,
            Sent::Unknown => f.write_str("no response arrived: ")?,
            Sent::TooLongAnAnswer(status) => {
                write!(f, "the response with status {status} is too large: ")?;
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
