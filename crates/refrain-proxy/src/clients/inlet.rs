//! What comes from a client: heads for who serves it, bodies for who answers.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::SizeHint;
use rustix::net::Shutdown;
use tokio::net::tcp::OwnedReadHalf;

use super::head::{Head, Heads, Refused};
use crate::http1::{Broken, Framing, Input, Limits, Step};

/// The most of a body that nobody wants that is read, so that the connection can be used again.
const DRAINED_BYTES_MAX: u64 = 64 << 10;

/// The reading side of a connection, used in turns by who serves it and by the body of the request.
#[derive(Clone)]
pub(super) struct Inlet(Arc<Mutex<Reading>>);

/// Held by who serves a connection: when this is dropped, who still reads a body from it is told that no more comes.
pub(super) struct Serving(pub(super) Inlet);

impl Drop for Serving {
    fn drop(&mut self) {
        let mut reading = self.0.lock();
        if reading.is_held {
            reading.is_broken = true;
            // It wakes up to the end of the connection.
            let _ = rustix::net::shutdown(reading.read.as_ref(), Shutdown::Both);
        }
    }
}

/// See [`Inlet`].
pub(super) struct Reading {
    read: OwnedReadHalf,
    pub(super) input: Input,
    heads: Heads,
    /// Of the body of the request that is being answered.
    framing: Framing,
    /// Whether no more of the body can be told from what comes: the connection ends with this request.
    is_broken: bool,
    /// Whether somebody may still want the body.
    is_held: bool,
    pub(super) go_on: GoOn,
    /// Wakes who serves the connection once nobody wants the body any more.
    server: Option<Waker>,
}

/// Whether a client waits to be told to send its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoOn {
    /// It does not, or was told.
    Said,
    /// It does, and nobody wants the body yet.
    Unsaid,
    /// It is to be told.
    Wanted,
}

impl Inlet {
    pub(super) fn new(read: OwnedReadHalf, input: Input) -> Self {
        Self(Arc::new(Mutex::new(Reading {
            read,
            input,
            heads: Heads::default(),
            framing: Framing::Length(0),
            is_broken: false,
            is_held: false,
            go_on: GoOn::Said,
            server: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody wants the rest of the body.
    pub(super) fn let_go(&self) {
        let mut reading = self.lock();
        reading.is_held = false;
        let server = reading.server.take();
        drop(reading);
        if let Some(server) = server {
            server.wake();
        }
    }

    /// What comes next of the body, and whether that was the last of it.
    ///
    /// # Errors
    /// When the connection ends, or what came is no body.
    pub(super) fn poll_step(&self, context: &mut Context<'_>) -> Poll<io::Result<(Step, bool)>> {
        let mut reading = self.lock();
        let step = ready!(reading.poll_step(context));
        reading.is_broken |= step.is_err();
        let is_last = reading.framing.is_over();
        Poll::Ready(step.map(|step| (step, is_last)))
    }

    /// No more of the body is waited for: the connection ends with this request.
    pub(super) fn give_up(&self) {
        self.lock().is_broken = true;
    }

    /// The reading side and what was read, if nobody else has it.
    pub(super) fn into_parts(self) -> Option<(OwnedReadHalf, Input)> {
        let reading = Arc::into_inner(self.0)?.into_inner();
        let reading = reading.unwrap_or_else(PoisonError::into_inner);
        Some((reading.read, reading.input))
    }
}

impl Reading {
    /// The next head, if it is all there.
    pub(super) fn take_head(&mut self, limits: Limits) -> Result<Option<Head>, Refused> {
        if self.input.bytes.is_empty() {
            return Ok(None);
        }
        let taken = self.heads.take(&mut self.input.bytes, limits);
        self.is_broken |= taken.is_err();
        taken
    }

    /// Reads what has come; 0 at the end. Who has never said anything is given no room.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.is_fresh() {
            ready!(self.read.as_ref().poll_read_ready(context))?;
        }
        self.input.poll_read(&mut self.read, context)
    }

    /// The body that comes behind a head, if all of it is there.
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

    /// A body that is going to be read by somebody who says so when it is not wanted any more.
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

    /// Whether all of the request has come, and nothing else.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_over() && self.input.bytes.is_empty()
    }

    /// Whether all of the request has come.
    pub(super) fn is_over(&self) -> bool {
        self.framing.is_over() && !self.is_broken
    }

    /// Whether another request can be read behind this one, as far as can be told.
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

    /// Takes away what has come of the body; whether that was all.
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

    /// Ready once nobody wants the body any more.
    pub(super) fn poll_let_go(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_held {
            return Poll::Ready(());
        }
        self.server = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes away the rest of a body that was let go; whether the connection can be used again.
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
