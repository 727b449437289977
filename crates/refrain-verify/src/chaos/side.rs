//! One side of the proxy: a connection to a client or to the upstream.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use refrain_http1::Input;
use tokio::io::AsyncRead;

use super::head::HeadParser;

/// A connection, with the bytes that were read from it but not consumed yet.
#[derive(Debug)]
pub(super) struct Side<S> {
    pub(super) io: S,
    pub(super) input: Input,
    pub(super) heads: HeadParser,
}

impl<S: AsyncRead + Unpin> Side<S> {
    pub(super) fn new(io: S) -> Self {
        Self {
            io,
            input: Input::default(),
            heads: HeadParser::default(),
        }
    }

    /// Polls a read into the input buffer; 0 at end of stream.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.poll_read(&mut self.io, context)
    }

    /// Reads into the input buffer; 0 at end of stream.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// Ready when the connection fails while no data is expected. End of stream is not a failure.
    pub(super) fn poll_broken(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.input.bytes.is_empty() {
            return Poll::Pending;
        }
        match self.poll_read(context) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            // Bytes that arrive stay in the buffer.
            _ => Poll::Pending,
        }
    }
}
