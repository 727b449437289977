//! Sends one request and reads the head of its response.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use refrain::http::BodyError;
use tokio::time::Instant;

use super::{UpstreamConnection, UpstreamHead};
use crate::{
    connect::Io,
    http1::{Broken, Limits, SendError, Sending},
    outgoing::Outgoing,
};

/// Limits of an exchange with the upstream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeTerms {
    pub(crate) limits: Limits,
    /// How long the rest of a request may stall once the response has begun.
    pub(crate) patience: Duration,
}

/// A response whose body is not read yet.
pub(crate) struct UpstreamResponse {
    pub(crate) head: UpstreamHead,
    pub(crate) line: Box<UpstreamConnection>,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum ExchangeFailure {
    /// The connection took no byte of the request, which may be sent over another one.
    Unsent,
    /// The client's body failed.
    Client(BodyError),
    /// The connection ended or failed.
    Lost(io::Error),
    /// The upstream's response is malformed.
    Broken(Broken),
    /// The exchange stalled for too long.
    Still,
}

/// A request to the upstream.
pub(crate) struct UpstreamRequest {
    /// `None` once the request is sent completely, or the upstream takes no more of it.
    pub(crate) sending: Option<Sending<Outgoing>>,
    /// Whether the method is HEAD, so that the response has no body.
    pub(crate) is_to_head: bool,
    /// How long the exchange may stall; `None` if the layer applies the timeouts.
    pub(crate) patience: Option<Duration>,
}

/// Sends a request over a connection, and reads the head of its response. On failure, the rest of the request stays in `ask`.
///
/// # Cancellation
/// The connection is dropped with the future at any point of the exchange, and is never reused.
pub(crate) async fn exchange(
    line: Box<UpstreamConnection>,
    ask: &mut UpstreamRequest,
    terms: &ExchangeTerms,
    since: Instant,
) -> Result<UpstreamResponse, ExchangeFailure> {
    let mut exchange = UpstreamExchange {
        line,
        ask,
        refused: None,
        since,
        is_slow: false,
    };
    let mut head = poll_fn(|context| exchange.poll(terms.limits, context)).await?;
    let UpstreamExchange { mut line, .. } = exchange;
    if let Some(rest) = ask.sending.take() {
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let message = "the upstream switched protocols before the request was complete";
            return Err(ExchangeFailure::Broken(Broken(message)));
        }
        head.stays_open = false;
        line = Box::new(line.send_rest_in_background(rest, terms.patience));
    }
    Ok(UpstreamResponse { head, line })
}

struct UpstreamExchange<'a> {
    line: Box<UpstreamConnection>,
    ask: &'a mut UpstreamRequest,
    /// Why the upstream takes no more of the request.
    refused: Option<io::Error>,
    /// When the exchange last made progress.
    since: Instant,
    /// Whether the request could not be sent at once.
    is_slow: bool,
}

impl UpstreamExchange<'_> {
    fn poll(
        &mut self,
        limits: Limits,
        context: &mut Context<'_>,
    ) -> Poll<Result<UpstreamHead, ExchangeFailure>> {
        let polled = self.poll_answer(limits, context);
        if polled.is_ready() {
            return polled;
        }
        self.poll_still(context)
            .map(|()| Err(ExchangeFailure::Still))
    }

    fn poll_answer(
        &mut self,
        limits: Limits,
        context: &mut Context<'_>,
    ) -> Poll<Result<UpstreamHead, ExchangeFailure>> {
        if let Poll::Ready(sent) = self.poll_send(context) {
            sent?;
        } else if self.ask.sending.as_ref().is_some_and(|it| !it.has_begun()) {
            return Poll::Pending;
        }
        loop {
            if let Some(mut head) = self.take_head(limits)? {
                if head.is_interim() {
                    continue;
                }
                head.stays_open &= self.refused.is_none();
                return Poll::Ready(Ok(head));
            }
            if ready!(self.line.poll_read(context)).map_err(|error| self.lost(error))? == 0 {
                let closed = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Poll::Ready(Err(self.lost(closed)));
            }
        }
    }

    fn take_head(&mut self, limits: Limits) -> Result<Option<UpstreamHead>, Broken> {
        let UpstreamConnection { input, heads, .. } = &mut *self.line;
        match input.bytes.is_empty() {
            true => Ok(None),
            false => heads.take(&mut input.bytes, self.ask.is_to_head, limits),
        }
    }

    /// Ready once the exchange has stalled for too long.
    fn poll_still(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(patience) = self.ask.patience else {
            return Poll::Pending;
        };
        loop {
            ready!(self.line.poll_moment(self.since + patience, context));
            let has_moved = self.ask.sending.as_mut().is_some_and(Sending::take_moved);
            if !has_moved {
                return Poll::Ready(());
            }
            self.since = tokio::time::Instant::now();
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeFailure>> {
        let Some(sending) = &mut self.ask.sending else {
            return Poll::Ready(Ok(()));
        };
        if matches!(self.line.io, Io::Tls(_)) {
            // Some encrypted bytes may have left even if the write as a whole fails.
            sending.begin();
        }
        let Poll::Ready(sent) = sending.poll(&mut self.line.io, context) else {
            self.is_slow = true;
            return Poll::Pending;
        };
        match sent {
            // Only now does the upstream have the whole request: the wait for its response starts here.
            Ok(()) if self.is_slow => self.since = tokio::time::Instant::now(),
            Ok(()) => {}
            Err(SendError::Body(error)) => return Poll::Ready(Err(ExchangeFailure::Client(error))),
            Err(SendError::Io(_)) if !sending.has_begun() => {
                return Poll::Ready(Err(ExchangeFailure::Unsent));
            }
            // The upstream may have sent a response that says why it takes no more.
            Err(SendError::Io(error)) => self.refused = Some(error),
        }
        self.ask.sending = None;
        Poll::Ready(Ok(()))
    }

    fn lost(&mut self, error: io::Error) -> ExchangeFailure {
        ExchangeFailure::Lost(self.refused.take().unwrap_or(error))
    }
}

impl From<Broken> for ExchangeFailure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
