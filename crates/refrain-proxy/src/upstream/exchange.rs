//! One request and the head of its answer.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use refrain::http::BodyError;
use tokio::time::Instant;

use super::{Head, Line};
use crate::{
    connect::Io,
    http1::{Broken, Limits, Sending, Stuck},
    outgoing::Outgoing,
};

/// What is known about the one who is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    /// How long the rest of a request may stand still once it is answered.
    pub(crate) patience: Duration,
}

/// An answer whose body is still to be read.
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) line: Box<Line>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The connection took not a byte of the request, which may go over another one.
    Unsent,
    /// The client's body broke off.
    Client(BodyError),
    /// The connection ended.
    Lost(io::Error),
    /// What came is no answer.
    Broken(Broken),
    /// Nothing moved for too long.
    Still,
}

/// What is asked.
pub(crate) struct Ask {
    /// Gone once all of it has left, or no more of it is taken.
    pub(crate) sending: Option<Sending<Outgoing>>,
    /// Whether it asks for the head alone.
    pub(crate) is_to_head: bool,
    /// How long it may stand still; `None` where somebody else sees to that.
    pub(crate) patience: Option<Duration>,
}

/// Sends a request over a line, and reads the head of its answer. What is left of the request if that fails stays in `ask`.
///
/// # Cancellation
/// The line goes with the future: whatever was sent or read of it, nobody else gets to see it.
pub(crate) async fn exchange(
    line: Box<Line>,
    ask: &mut Ask,
    terms: &Terms,
    since: Instant,
) -> Result<Answer, Failed> {
    let mut exchange = Exchange {
        line,
        ask,
        refused: None,
        since,
        is_slow: false,
    };
    let mut head = poll_fn(|context| exchange.poll(terms.limits, context)).await?;
    let Exchange { mut line, .. } = exchange;
    if let Some(rest) = ask.sending.take() {
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let message = "it switched protocols in the midst of a request";
            return Err(Failed::Broken(Broken(message)));
        }
        head.stays_open = false;
        line = Box::new(line.divide(rest, terms.patience));
    }
    Ok(Answer { head, line })
}

struct Exchange<'a> {
    line: Box<Line>,
    ask: &'a mut Ask,
    /// Why no more of the request is taken.
    refused: Option<io::Error>,
    /// When it was last seen to move.
    since: Instant,
    /// Whether the request did not leave at once.
    is_slow: bool,
}

impl Exchange<'_> {
    fn poll(&mut self, limits: Limits, context: &mut Context<'_>) -> Poll<Result<Head, Failed>> {
        let polled = self.poll_answer(limits, context);
        if polled.is_ready() {
            return polled;
        }
        self.poll_still(context).map(|()| Err(Failed::Still))
    }

    fn poll_answer(
        &mut self,
        limits: Limits,
        context: &mut Context<'_>,
    ) -> Poll<Result<Head, Failed>> {
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

    fn take_head(&mut self, limits: Limits) -> Result<Option<Head>, Broken> {
        let Line { input, heads, .. } = &mut *self.line;
        match input.bytes.is_empty() {
            true => Ok(None),
            false => heads.take(&mut input.bytes, self.ask.is_to_head, limits),
        }
    }

    /// Ready once nothing has moved for as long as may be.
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

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        let Some(sending) = &mut self.ask.sending else {
            return Poll::Ready(Ok(()));
        };
        if matches!(self.line.io, Io::Tls(_)) {
            // A part may have left encrypted even where the whole could not.
            sending.begin();
        }
        let Poll::Ready(sent) = sending.poll(&mut self.line.io, context) else {
            self.is_slow = true;
            return Poll::Pending;
        };
        match sent {
            // Only now the upstream has all that it needs to answer.
            Ok(()) if self.is_slow => self.since = tokio::time::Instant::now(),
            Ok(()) => {}
            Err(Stuck::Body(error)) => return Poll::Ready(Err(Failed::Client(error))),
            Err(Stuck::Io(_)) if !sending.has_begun() => {
                return Poll::Ready(Err(Failed::Unsent));
            }
            // It may have said why it takes no more.
            Err(Stuck::Io(error)) => self.refused = Some(error),
        }
        self.ask.sending = None;
        Poll::Ready(Ok(()))
    }

    fn lost(&mut self, error: io::Error) -> Failed {
        Failed::Lost(self.refused.take().unwrap_or(error))
    }
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
