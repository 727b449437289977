//! A connection that can be told to end with a reset while somebody else reads and writes it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A client's connection.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    end: End,
}

/// How a connection is to end. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct End(Arc<AtomicBool>);

impl End {
    /// When the connection is closed, the other side sees a reset instead of an orderly end.
    pub(super) fn reset_when_closed(&self) {
        self.0.store(true, Relaxed);
    }
}

impl Socket {
    pub(super) fn new(stream: TcpStream, end: End) -> Self {
        // Each piece leaves at once: what is measured and cut here is the application's, not the network's.
        let _ = stream.set_nodelay(true);
        Self { stream, end }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.end.0.load(Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::warn!(%error, "the connection is closed in order instead of reset");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Dropped at once by who calls this; until then the other half may still be read.
        Poll::Ready(Ok(()))
    }
}
