//! One side of the proxy: a connection to a client or to the upstream.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use refrain_http1::Input;
use tokio::io::AsyncRead;

use super::head::Heads;

/// A connection, and what was read from it and not taken yet.
#[derive(Debug)]
pub(super) struct Side<S> {
    pub(super) io: S,
    pub(super) input: Input,
    pub(super) heads: Heads,
}

impl<S: AsyncRead + Unpin> Side<S> {
    pub(super) fn new(io: S) -> Self {
        Self {
            io,
            input: Input::default(),
            heads: Heads::default(),
        }
    }

    /// Reads what has come; 0 at the end.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.poll_read(&mut self.io, context)
    }

    /// Reads what comes next; 0 at the end.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// Ready when the connection broke while nothing is expected from it. That the other side will say no more is no reason.
    pub(super) fn poll_broken(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.input.bytes.is_empty() {
            return Poll::Pending;
        }
        match self.poll_read(context) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            // What came is for later.
            _ => Poll::Pending,
        }
    }
}
