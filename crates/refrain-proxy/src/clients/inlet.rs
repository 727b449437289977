//! Shared read half of a client connection: heads for the connection loop, bodies for handlers.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::SizeHint;
use rustix::net::Shutdown;
use tokio::net::tcp::OwnedReadHalf;

use super::head::{RefusedHead, RequestHead, RequestHeadParser};
use crate::http1::{Broken, Framing, Input, Limits, Step};

/// Most bytes of an unwanted body that are read, so that the connection can be reused.
const DRAINED_BYTES_MAX: u64 = 64 << 10;

/// The read half of a connection, used in turns by the connection loop and the body of the request.
#[derive(Clone)]
pub(super) struct Inlet(Arc<Mutex<InletState>>);

/// Held by the connection loop: when this is dropped, a body that is still being read fails.
pub(super) struct Serving(pub(super) Inlet);

impl Drop for Serving {
    fn drop(&mut self) {
        let mut reading = self.0.lock();
        if reading.is_held {
            reading.is_broken = true;
            // Wakes the reader of the body with the end of the connection.
            let _ = rustix::net::shutdown(reading.read.as_ref(), Shutdown::Both);
        }
    }
}

/// State of an [`Inlet`].
pub(super) struct InletState {
    read: OwnedReadHalf,
    pub(super) input: Input,
    heads: RequestHeadParser,
    /// Framing of the current request's body.
    framing: Framing,
    /// Whether the rest of the body can no longer be delimited: the connection ends with this request.
    is_broken: bool,
    /// Whether a handler may still want the body.
    is_held: bool,
    pub(super) go_on: GoOn,
    /// Wakes the connection loop once the handler no longer wants the body.
    server: Option<Waker>,
}

/// Whether a client waits for `100 Continue` before it sends its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoOn {
    /// It does not wait, or no longer.
    Said,
    /// It waits, and the handler does not want the body yet.
    Unsaid,
    /// It waits, and the handler wants the body: `100 Continue` must be sent.
    Wanted,
}

impl Inlet {
    pub(super) fn new(read: OwnedReadHalf, input: Input) -> Self {
        Self(Arc::new(Mutex::new(InletState {
            read,
            input,
            heads: RequestHeadParser::default(),
            framing: Framing::Length(0),
            is_broken: false,
            is_held: false,
            go_on: GoOn::Said,
            server: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, InletState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the rest of the body, and wakes the connection loop.
    pub(super) fn let_go(&self) {
        let mut reading = self.lock();
        reading.is_held = false;
        let server = reading.server.take();
        drop(reading);
        if let Some(server) = server {
            server.wake();
        }
    }

    /// The next step of the body, and whether it is the last one.
    ///
    /// # Errors
    /// When the connection ends, or the body is malformed.
    pub(super) fn poll_step(&self, context: &mut Context<'_>) -> Poll<io::Result<(Step, bool)>> {
        let mut reading = self.lock();
        let step = ready!(reading.poll_step(context));
        reading.is_broken |= step.is_err();
        let is_last = reading.framing.is_over();
        Poll::Ready(step.map(|step| (step, is_last)))
    }

    /// Stops waiting for the body: the connection ends with this request.
    pub(super) fn give_up(&self) {
        self.lock().is_broken = true;
    }

    /// The read half and its buffer, if there is no other owner.
    pub(super) fn into_parts(self) -> Option<(OwnedReadHalf, Input)> {
        let reading = Arc::into_inner(self.0)?.into_inner();
        let reading = reading.unwrap_or_else(PoisonError::into_inner);
        Some((reading.read, reading.input))
    }
}

impl InletState {
    /// The next head, if it is complete.
    pub(super) fn take_head(&mut self, limits: Limits) -> Result<Option<RequestHead>, RefusedHead> {
        if self.input.bytes.is_empty() {
            return Ok(None);
        }
        let taken = self.heads.take(&mut self.input.bytes, limits);
        self.is_broken |= taken.is_err();
        taken
    }

    /// Reads into the buffer; 0 at the end of the stream. Allocates no buffer for a client that has sent nothing yet.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.is_fresh() {
            ready!(self.read.as_ref().poll_read_ready(context))?;
        }
        self.input.poll_read(&mut self.read, context)
    }

    /// The body after a head, if it has already been read completely.
    pub(super) fn take_whole(&mut self, mut framing: Framing) -> Option<Bytes> {
        let Framing::Length(length) = framing else {
            return None;
        };
        if length > self.input.bytes.len() as u64 {
            return None;
        }
        match framing.next(&mut self.input.bytes) {
            Ok(Step::Data(data)) => Some(data),
            _ => Some(Bytes::new()),
        }
    }

    /// Starts a body, whose reader calls [`Inlet::let_go`] when it no longer wants it.
    pub(super) fn lend(&mut self, framing: Framing, expects_continue: bool) {
        self.framing = framing;
        self.is_held = true;
        self.go_on = match expects_continue && self.input.bytes.is_empty() {
            true => GoOn::Unsaid,
            false => GoOn::Said,
        };
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.framing.size_hint()
    }

    /// Whether the whole request was read, and no byte after it.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_over() && self.input.bytes.is_empty()
    }

    /// Whether the whole request was read.
    pub(super) fn is_over(&self) -> bool {
        self.framing.is_over() && !self.is_broken
    }

    /// Whether another request can be read after this one, as far as is known.
    pub(super) fn can_go_on(&mut self) -> bool {
        if self.is_broken {
            return false;
        }
        if self.is_held || self.is_over() {
            return true;
        }
        match self.discard(&mut 0) {
            Ok(is_over) => is_over || self.go_on == GoOn::Said && self.has_little_left(),
            Err(_) => false,
        }
    }

    fn has_little_left(&self) -> bool {
        match self.framing {
            Framing::Length(left) => left <= DRAINED_BYTES_MAX,
            _ => true,
        }
    }

    /// Discards the bytes of the body read so far; returns whether the body has ended.
    fn discard(&mut self, discarded: &mut u64) -> Result<bool, Broken> {
        loop {
            match self.framing.next(&mut self.input.bytes) {
                Ok(Step::Data(data)) => *discarded += data.len() as u64,
                Ok(Step::Trailers(_)) => {}
                Ok(Step::More) => return Ok(false),
                Ok(Step::End) => return Ok(true),
                Err(broken) => {
                    self.is_broken = true;
                    return Err(broken);
                }
            }
        }
    }

    /// Ready once the handler no longer wants the body.
    pub(super) fn poll_let_go(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_held {
            return Poll::Ready(());
        }
        self.server = Some(context.waker().clone());
        Poll::Pending
    }

    /// Discards the rest of a body that was let go; returns whether the connection can be reused.
    pub(super) fn poll_drain(
        &mut self,
        drained: &mut u64,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        if self.go_on != GoOn::Said && !self.framing.is_over() {
            return Poll::Ready(false);
        }
        while !self.is_broken {
            match self.discard(drained) {
                Ok(true) => return Poll::Ready(true),
                Ok(false) if *drained > DRAINED_BYTES_MAX => break,
                Ok(false) => {}
                Err(_) => break,
            }
            if !matches!(ready!(self.poll_read(context)), Ok(1..)) {
                break;
            }
        }
        Poll::Ready(false)
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Step>> {
        if self.is_broken {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        loop {
            match self.framing.next(&mut self.input.bytes) {
                Ok(Step::More) => {}
                Ok(step) => return Poll::Ready(Ok(step)),
                Err(broken) => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, broken);
                    return Poll::Ready(Err(error));
                }
            }
            if self.go_on == GoOn::Unsaid {
                self.go_on = GoOn::Wanted;
            }
            if ready!(self.poll_read(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}
