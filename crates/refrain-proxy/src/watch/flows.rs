//! Tracks whether data moves to a client.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Active, Client};

/// Tracks whether a client takes the body of a response.
#[derive(Debug)]
pub(crate) struct Taking {
    active: Active,
    /// `None` if the times of the connection suffice (HTTP/1).
    since: Option<Arc<AtomicU64>>,
}

impl Taking {
    /// Starts with the head: from now on the client must make room for the body.
    pub(crate) fn start(active: Active) -> Self {
        let since = active.client.flow();
        let taking = Self { active, since };
        taking.note(true);
        taking
    }

    /// Notes whether the response waits for the client now.
    pub(crate) fn note(&self, is_clients_turn: bool) {
        if let Some(since) = &self.since {
            let now = if is_clients_turn {
                self.active.client.watch.now()
            } else {
                0
            };
            since.store(now, Relaxed);
        }
    }
}

/// A client's stream whose writes are watched for stalls.
#[derive(Debug)]
pub(crate) struct WatchedStream<S> {
    pub(crate) stream: S,
    pub(crate) client: Arc<Client>,
}

impl<S> WatchedStream<S> {
    fn note_sent(&self, is_taken: bool) {
        let since = &self.client.send_since;
        match (is_taken, since.load(Relaxed)) {
            (false, 0) => since.store(self.client.watch.now(), Relaxed),
            (true, 1..) => since.store(0, Relaxed),
            _ => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_sent(polled.is_ready());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_sent(polled.is_ready());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
