//! Watches over clients' connections: who stands still for too long is closed.
//!
//! Times are read from a clock that ticks a few times a second, so that a request costs no timer.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use refrain::policy::ProxySettings;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};

/// How often a thread looks over its connections.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How long who has not said a whole head may go on once the proxy is told to stop.
const LAST_GRACE: Duration = Duration::from_millis(500);

/// The connections of one thread, and their clock.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Milliseconds since the thread started; never 0.
    now: AtomicU64,
    connections: Mutex<Vec<Weak<Client>>>,
}

/// One client's connection. A time of 0 means: not so.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// Requests that are being answered.
    active: AtomicU32,
    /// Since when nothing is being answered.
    idle_since: AtomicU64,
    /// When the first byte of the next head came.
    head_since: AtomicU64,
    /// Since when its next piece of a body is waited for.
    body_since: AtomicU64,
    /// Since when it does not take what is sent to it.
    send_since: AtomicU64,
    /// Since when the proxy takes no more requests.
    draining_since: AtomicU64,
    /// Told when the connection is to be closed.
    closed: Notify,
}

impl Watch {
    pub(crate) fn open(self: &Arc<Self>) -> Arc<Client> {
        let client = Arc::new(Client::default());
        client.idle_since.store(self.now(), Relaxed);
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.push(Arc::downgrade(&client));
        client
    }

    /// No more requests are taken from this one.
    pub(crate) fn drain(&self, client: &Client) {
        client.draining_since.store(self.now(), Relaxed);
    }

    fn now(&self) -> u64 {
        self.now.load(Relaxed).max(1)
    }

    /// Sets the clock, and closes who stands still.
    pub(crate) fn tick(&self, since_start: Duration, settings: &ProxySettings) {
        let now = since_start.as_millis() as u64 + 1;
        self.now.store(now, Relaxed);
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.retain(|client| {
            let Some(client) = client.upgrade() else {
                return false;
            };
            if client.stands_still(now, settings) {
                client.closed.notify_one();
            }
            true
        });
    }
}

impl Client {
    fn stands_still(&self, now: u64, settings: &ProxySettings) -> bool {
        let is_over = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Relaxed);
            since != 0 && now.saturating_sub(since) > limit.as_millis() as u64
        };
        let is_idle = self.active.load(Relaxed) == 0;
        is_over(&self.send_since, settings.client_timeout)
            || is_over(&self.body_since, settings.client_timeout)
            || is_idle && is_over(&self.head_since, settings.head_timeout)
            || is_idle && is_over(&self.idle_since, settings.keep_alive)
            || is_idle
                && self.is_sent()
                && is_over(&self.draining_since, LAST_GRACE)
                && is_over(&self.idle_since, LAST_GRACE)
    }

    /// Whether it has taken all that was sent to it.
    fn is_sent(&self) -> bool {
        self.send_since.load(Relaxed) == 0
    }

    /// Waits until the connection is to be closed.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct Active {
    watch: Arc<Watch>,
    client: Arc<Client>,
}

impl Active {
    pub(crate) fn start(watch: &Arc<Watch>, client: &Arc<Client>) -> Self {
        client.active.fetch_add(1, Relaxed);
        client.head_since.store(0, Relaxed);
        Self {
            watch: watch.clone(),
            client: client.clone(),
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.client.head_since.store(0, Relaxed);
        self.client.body_since.store(0, Relaxed);
        self.client.idle_since.store(self.watch.now(), Relaxed);
        self.client.active.fetch_sub(1, Relaxed);
    }
}

/// A client's request body.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    watch: Arc<Watch>,
    client: Arc<Client>,
}

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, watch: &Arc<Watch>, client: &Arc<Client>) -> Self {
        Self {
            incoming,
            watch: watch.clone(),
            client: client.clone(),
        }
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
        let since = &self.client.body_since;
        match &polled {
            Poll::Ready(_) => since.store(0, Relaxed),
            Poll::Pending if since.load(Relaxed) == 0 => since.store(self.watch.now(), Relaxed),
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
        self.client.body_since.store(0, Relaxed);
    }
}

/// A client's connection that is watched while it reads and writes.
#[derive(Debug)]
pub(crate) struct WatchedStream {
    pub(crate) stream: TcpStream,
    pub(crate) watch: Arc<Watch>,
    pub(crate) client: Arc<Client>,
}

impl WatchedStream {
    fn note_sent(&self, is_taken: bool) {
        let since = &self.client.send_since;
        match (is_taken, since.load(Relaxed)) {
            (false, 0) => since.store(self.watch.now(), Relaxed),
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
        {
            self.client.head_since.store(self.watch.now(), Relaxed);
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
