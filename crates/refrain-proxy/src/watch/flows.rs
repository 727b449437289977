//! What comes from a client and goes to it, watched while it moves.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{Active, Client};

/// How a client takes the body of an answer.
#[derive(Debug)]
pub(crate) struct Taking {
    active: Active,
    /// `None` where the connection's own time does.
    since: Option<Arc<AtomicU64>>,
}

impl Taking {
    /// The head is on its way, and the client has to make room for the body.
    pub(crate) fn start(active: Active) -> Self {
        let since = active.client.flow();
        let taking = Self { active, since };
        taking.note(true);
        taking
    }

    /// Whether the client is who is waited for now.
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

/// A client's request body.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    /// `None` where the connection's own time does.
    since: Option<Arc<AtomicU64>>,
    client: Arc<Client>,
}

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, client: &Arc<Client>) -> Self {
        Self {
            incoming,
            since: client.flow(),
            client: client.clone(),
        }
    }

    /// Since when its next piece is waited for.
    fn since(&self) -> &AtomicU64 {
        self.since.as_deref().unwrap_or(&self.client.body_since)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        let since = self.since();
        match &polled {
            Poll::Ready(_) => since.store(0, Relaxed),
            Poll::Pending if since.load(Relaxed) == 0 => {
                since.store(self.client.watch.now(), Relaxed);
            }
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.since().store(0, Relaxed);
    }
}

/// A client's connection that is watched while it reads and writes.
#[derive(Debug)]
pub(crate) struct WatchedStream {
    pub(crate) stream: TcpStream,
    pub(crate) client: Arc<Client>,
}

impl WatchedStream {
    fn note_sent(&self, is_taken: bool) {
        let since = &self.client.send_since;
        match (is_taken, since.load(Relaxed)) {
            (false, 0) => since.store(self.client.watch.now(), Relaxed),
            (true, 1..) => since.store(0, Relaxed),
            _ => {}
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready()
            && self.client.active.load(Relaxed) == 0
            && self.client.head_since.load(Relaxed) == 0
            && !self.client.is_http2.load(Relaxed)
        {
            self.client
                .head_since
                .store(self.client.watch.now(), Relaxed);
        }
        polled
    }
}

impl AsyncWrite for WatchedStream {
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

    /// Most answers are short: to copy one behind its head costs less than to write it in two parts.
    fn is_write_vectored(&self) -> bool {
        false
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
