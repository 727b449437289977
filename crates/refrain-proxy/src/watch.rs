//! Watches client connections, and closes those that stall for too long.
//!
//! Times come from a clock that ticks a few times a second, so that a request needs no timer.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Method, StatusCode, Uri};
use refrain::policy::ProxySettings;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clients::Interim;

/// How often a thread checks its connections.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How long a client may still take to complete a head once the proxy is draining.
const LAST_GRACE: Duration = Duration::from_millis(500);

/// Most requests that an HTTP/2 client may cancel beyond those that it lets finish.
///
/// A guarded operation continues without its client, so a client that opens and resets streams would otherwise start
/// any number of them: a stream that was reset no longer counts towards the maximum of streams.
const CANCELLED_MAX: u32 = 256;

/// The connections of one thread, and their clock.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Milliseconds since the thread started, plus 1; 0 before the first tick.
    now: AtomicU64,
    is_draining: AtomicBool,
    /// Whether another process accepts the connections: a client closes its own after the next response.
    is_leaving: AtomicBool,
    /// Whether the requests still in progress are being cut.
    is_cutting: AtomicBool,
    connections: Mutex<Vec<Weak<Client>>>,
}

/// One client connection. A time of 0 means that the condition does not hold.
#[derive(Debug, Default)]
pub(crate) struct Client {
    watch: Arc<Watch>,
    /// Requests in progress.
    active: AtomicU32,
    /// Requests that were answered, or dropped before that.
    answered: AtomicU32,
    /// Requests that it cancelled, less those that were answered since.
    cancelled: AtomicU32,
    /// Whether bytes of the next request are withheld until the current one is answered.
    has_withheld: AtomicBool,
    /// Whether no other request follows the current one.
    is_last: AtomicBool,
    /// Whether the connection was switched to another protocol.
    is_switched: AtomicBool,
    /// Since when no request is in progress.
    idle_since: AtomicU64,
    /// When the first byte of the next head arrived.
    head_since: AtomicU64,
    /// Since when the client does not take the bytes sent to it.
    send_since: AtomicU64,
    /// Since when the proxy accepts no more requests.
    draining_since: AtomicU64,
    /// Whether it speaks HTTP/2, where bytes between requests are not part of a head.
    is_http2: AtomicBool,
    /// Since when each HTTP/2 response waits for the client. HTTP/1 has one response at a time, and uses the times above.
    flows: Mutex<Vec<Weak<AtomicU64>>>,
    /// Current [`Order`] to the connection.
    order: AtomicU8,
    /// Wakes the task of the connection.
    waker: OnceLock<Waker>,
    /// Interim responses that were not written yet.
    pub(crate) interim: Interim,
}

/// Instruction to a connection. A later one overrides those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Serve,
    /// End after the requests in progress.
    Drain,
    /// Respond that the rest of the head did not arrive in time, and end.
    TimeOut,
    /// End at once.
    Close,
}

impl Watch {
    pub(crate) fn open(self: &Arc<Self>) -> Arc<Client> {
        let client = Arc::new(Client {
            watch: self.clone(),
            ..Client::default()
        });
        client.idle_since.store(self.now(), Relaxed);
        if self.is_draining.load(Relaxed) {
            client.drain(self.now());
        }
        self.connections().push(Arc::downgrade(&client));
        client
    }

    /// Accepts no more requests from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Relaxed);
        let clients = self.connections().clone();
        for client in clients.iter().filter_map(Weak::upgrade) {
            client.drain(self.now());
        }
    }

    /// Asks clients to close their connections after the next response. Those of HTTP/2 are told at once.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Relaxed);
        let clients = self.connections().clone();
        for client in clients.iter().filter_map(Weak::upgrade) {
            if client.is_http2()
                && let Some(waker) = client.waker.get()
            {
                waker.wake_by_ref();
            }
        }
    }

    /// Logs requests that are dropped from now on as cut.
    pub(crate) fn cut(&self) {
        self.is_cutting.store(true, Relaxed);
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Client>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.now.load(Relaxed).max(1)
    }

    /// Advances the clock, and times out or closes clients that stall.
    pub(crate) fn tick(&self, since_start: Duration, settings: &ProxySettings) {
        let now = since_start.as_millis() as u64 + 1;
        self.now.store(now, Relaxed);
        self.connections().retain(|client| {
            let Some(client) = client.upgrade() else {
                return false;
            };
            if let Some(order) = client.overdue_order(now, settings) {
                client.raise_order(order);
            }
            true
        });
    }
}

impl Client {
    /// The order to a client that stalls, if it does.
    fn overdue_order(&self, now: u64, settings: &ProxySettings) -> Option<Order> {
        let is_over = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Relaxed);
            since != 0 && now.saturating_sub(since) > limit.as_millis() as u64
        };
        let is_idle = self.active.load(Relaxed) == 0 && self.is_sent();
        let is_late = is_idle && is_over(&self.head_since, settings.head_timeout);
        if is_late && self.order.load(Relaxed) < Order::TimeOut as u8 {
            return Some(Order::TimeOut);
        }
        // Still late after `TimeOut`: the connection has not reacted to it.
        let stands_still = is_late
            || self.is_stuck(|since| is_over(since, settings.client_timeout))
            || is_over(&self.send_since, settings.client_timeout)
            || is_idle && is_over(&self.idle_since, settings.keep_alive)
            || is_idle
                && is_over(&self.draining_since, LAST_GRACE)
                && is_over(&self.idle_since, LAST_GRACE);
        stands_still.then_some(Order::Close)
    }

    /// Whether any of its HTTP/2 responses waits for the client for too long.
    fn is_stuck(&self, is_over: impl Fn(&AtomicU64) -> bool) -> bool {
        if !self.is_http2() {
            return false;
        }
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.retain(|flow| flow.strong_count() > 0);
        flows
            .iter()
            .any(|flow| flow.upgrade().is_some_and(|since| is_over(&since)))
    }

    /// A wait time for one more response, if it needs its own (HTTP/2).
    pub(crate) fn flow(&self) -> Option<Arc<AtomicU64>> {
        self.is_http2().then(|| {
            let since = Arc::<AtomicU64>::default();
            let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
            flows.push(Arc::downgrade(&since));
            since
        })
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    pub(crate) fn speaks_http2(&self) {
        self.is_http2.store(true, Relaxed);
    }

    /// Notes that a part of a head has arrived, and the rest is awaited.
    pub(crate) fn note_head(&self) {
        if self.head_since.load(Relaxed) == 0 {
            self.head_since.store(self.watch.now(), Relaxed);
        }
    }

    /// Whether a part of a head has arrived.
    pub(crate) fn is_mid_head(&self) -> bool {
        self.head_since.load(Relaxed) != 0
    }

    /// Number of requests that were answered; wraps around.
    pub(crate) fn answered(&self) -> u32 {
        self.answered.load(Relaxed)
    }

    /// Wakes the task of the connection when the current request is answered.
    pub(crate) fn note_withheld(&self) {
        self.has_withheld.store(true, Relaxed);
    }

    /// Accepts no other request after the current one.
    pub(crate) fn note_last(&self) {
        self.is_last.store(true, Relaxed);
    }

    /// Whether no other request is accepted after the current one.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last.load(Relaxed)
    }

    /// Whether the connection was switched to another protocol.
    pub(crate) fn is_switched(&self) -> bool {
        self.is_switched.load(Relaxed)
    }

    /// Whether no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.load(Relaxed) == 0
    }

    /// The time on the clock of its thread, in milliseconds.
    pub(crate) fn now(&self) -> u64 {
        self.watch.now()
    }

    /// Counts a request that was cancelled before its response, or answered; closes a client that cancels too many.
    fn note_end(&self, is_cancelled: bool) {
        let cancelled = self.cancelled.load(Relaxed);
        let cancelled = match is_cancelled {
            true => cancelled.saturating_add(1),
            false if cancelled == 0 => return,
            false => cancelled - 1,
        };
        self.cancelled.store(cancelled, Relaxed);
        if cancelled > CANCELLED_MAX && self.is_http2() && !self.watch.is_cutting.load(Relaxed) {
            refrain::log_rarely!(
                warn,
                "a client cancelled too many HTTP/2 requests; its connection is closed"
            );
            self.raise_order(Order::Close);
        }
    }

    fn note_answered(&self) {
        self.head_since.store(0, Relaxed);
        self.idle_since.store(self.watch.now(), Relaxed);
        self.active.fetch_sub(1, Relaxed);
        self.answered.fetch_add(1, Relaxed);
        if self.has_withheld.swap(false, Relaxed) {
            self.wake();
        }
    }

    /// Whether no more requests are accepted from it.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining_since.load(Relaxed) != 0
    }

    /// Whether its connection ends after the next response.
    pub(crate) fn is_leaving(&self) -> bool {
        self.watch.is_leaving.load(Relaxed)
    }

    /// Whether it has taken everything that was sent to it.
    fn is_sent(&self) -> bool {
        self.send_since.load(Relaxed) == 0
    }

    /// The current order. The next one wakes the task of the context, which must be the same in every call.
    pub(crate) fn order(&self, context: &Context<'_>) -> Order {
        self.waker.get_or_init(|| context.waker().clone());
        match self.order.load(Relaxed) {
            0 => Order::Serve,
            1 => Order::Drain,
            2 => Order::TimeOut,
            _ => Order::Close,
        }
    }

    /// Whether the rest of a head did not arrive in time.
    pub(crate) fn has_timed_out(&self) -> bool {
        self.order.load(Relaxed) == Order::TimeOut as u8
    }

    /// Wakes the task of the connection.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    fn raise_order(&self, order: Order) {
        self.order.fetch_max(order as u8, Relaxed);
        self.wake();
    }

    /// Accepts no more requests from it.
    fn drain(&self, now: u64) {
        self.draining_since.store(now, Relaxed);
        self.raise_order(Order::Drain);
    }
}

/// A request in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Active {
    client: Arc<Client>,
    /// Method and target, for the log. Boxed, because this is moved often.
    asked: Option<Box<(Method, Uri)>>,
    /// Whether its response has begun.
    has_response: bool,
}

impl Active {
    pub(crate) fn start(client: &Arc<Client>) -> Self {
        client.active.fetch_add(1, Relaxed);
        client.head_since.store(0, Relaxed);
        Self {
            client: client.clone(),
            asked: None,
            has_response: false,
        }
    }

    /// As [`start`](Self::start), but logged if it is cut.
    pub(crate) fn answering(client: &Arc<Client>, asked: (Method, Uri)) -> Self {
        let mut active = Self::start(client);
        active.asked = Some(Box::new(asked));
        active
    }

    /// Notes that the response begins: no interim response may follow.
    pub(crate) fn note_response(&self) {
        self.client.interim.end();
    }

    /// Notes whether the response switches the connection to another protocol.
    pub(crate) fn note_status(&self, status: StatusCode) {
        let is_switched = status == StatusCode::SWITCHING_PROTOCOLS;
        self.client.is_switched.store(is_switched, Relaxed);
    }

    /// Whether the HTTP/1 connection ends with this request.
    pub(crate) fn is_last(&self) -> bool {
        let client = &self.client;
        let is_last = client.is_last() || client.is_draining() || client.is_leaving();
        is_last && !self.client.is_http2()
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if let Some((method, uri)) = self.asked.as_deref()
            && self.client.watch.is_cutting.load(Relaxed)
        {
            // A query may contain secrets.
            let path = uri.path();
            tracing::warn!(%method, path, "a request was cut off by the shutdown");
        }
        self.client.note_end(!self.has_response);
        self.client.note_answered();
    }
}

/// Tracks whether a client takes the body of a response.
#[derive(Debug)]
pub(crate) struct Taking {
    active: Active,
    /// `None` if the times of the connection suffice (HTTP/1).
    since: Option<Arc<AtomicU64>>,
}

impl Taking {
    /// Starts with the head: from now on the client must make room for the body.
    pub(crate) fn start(mut active: Active) -> Self {
        active.has_response = true;
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
            (true, 1..) => {
                since.store(0, Relaxed);
                let idle_since = &self.client.idle_since;
                idle_since.store(self.client.watch.now(), Relaxed);
            }
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
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        // TLS accepts writes that it sends later.
        self.note_sent(polled.is_ready());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
