//! Connections to the upstream, over hyper: each carries one request at a time.
//!
//! A connection has no task of its own, except to finish sending a request that is answered early: hyper's connection is
//! polled where the response is awaited. So a request that is dropped ends its exchange at once.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header, response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{Connection, Parts, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use refrain::http::BodyError;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until, timeout},
};

use crate::{
    clients::InterimSender, interim_scan::InterimScan, stream::Io, upstream_body::Outgoing,
};

/// Progress of the request that a connection sends; shared by the connection, its stream and the body of the request.
#[derive(Debug, Default)]
pub(crate) struct SendState {
    /// Whether any byte of the request may have been sent.
    has_begun: AtomicBool,
    /// Whether the request has made progress since the last look.
    has_moved: AtomicBool,
    /// Whether hyper has taken the whole body, or does not want the rest of it.
    is_taken: AtomicBool,
    /// Whether all of the request was sent.
    is_sent: AtomicBool,
    /// Whether the head of the response has arrived.
    has_response: AtomicBool,
    /// Whether a read only checks that the stream is quiet.
    is_probe: AtomicBool,
    /// Whether the bytes that arrive may be interim responses.
    may_be_interim: AtomicBool,
    /// Receives interim responses.
    interim: Mutex<Option<InterimSender>>,
    /// Why the client's body failed.
    failed: Mutex<Option<BodyError>>,
    /// The body of a guarded request after hyper has taken all of it: it is dropped once it was sent.
    taken: Mutex<Option<Outgoing>>,
}

impl SendState {
    fn start(&self, interim: Option<InterimSender>) {
        for flag in [
            &self.has_begun,
            &self.has_moved,
            &self.is_taken,
            &self.is_sent,
            &self.has_response,
        ] {
            flag.store(false, Relaxed);
        }
        self.may_be_interim.store(true, Relaxed);
        *lock(&self.interim) = interim;
    }

    /// Passes the interim responses in these bytes to the client.
    fn scan(&self, scan: &mut InterimScan, bytes: &[u8]) -> io::Result<()> {
        let scanned = scan.scan(bytes, |status, fields| {
            if let Some(interim) = &*lock(&self.interim) {
                interim.send(status, fields);
            }
        });
        if scanned != Ok(true) {
            self.may_be_interim.store(false, Relaxed);
            *lock(&self.interim) = None;
        }
        scanned
            .map(drop)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Notes that a part of the request was taken from the client, or sent.
    pub(crate) fn note_moved(&self) {
        self.has_moved.store(true, Relaxed);
    }

    fn take_moved(&self) -> bool {
        self.has_moved.swap(false, Relaxed)
    }

    fn is_sent(&self) -> bool {
        self.is_sent.load(Relaxed)
    }

    /// Whether the head of the response has arrived: a failure of the request no longer matters.
    pub(crate) fn has_response(&self) -> bool {
        self.has_response.load(Relaxed)
    }

    pub(crate) fn fail(&self, error: BodyError) {
        *lock(&self.failed) = Some(error);
    }

    /// Notes that hyper has taken the whole body, and keeps `body` until it was sent.
    pub(crate) fn note_taken(&self, body: Option<Outgoing>) {
        *lock(&self.taken) = body;
        self.is_taken.store(true, Relaxed);
    }

    /// Notes that hyper has written everything that it has taken.
    fn note_flushed(&self) {
        if self.is_taken.load(Relaxed) && !self.is_sent.swap(true, Relaxed) {
            drop(lock(&self.taken).take());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream of a connection.
pub(crate) struct Wire {
    pub(crate) io: Io,
    state: Arc<SendState>,
    /// Why the request cannot be sent. The upstream may have responded before, so it is reported where the response ends.
    broken: Option<io::Error>,
    scan: InterimScan,
}

impl Wire {
    pub(crate) fn new(io: Io) -> (Self, Arc<SendState>) {
        let state = Arc::<SendState>::default();
        (
            Self {
                io,
                state: state.clone(),
                broken: None,
                scan: InterimScan::default(),
            },
            state,
        )
    }

    /// Writes to the stream, and notes the progress.
    fn poll_send<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Io>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.broken.is_some() {
            return Poll::Pending;
        }
        // Over TLS some encrypted bytes may leave even if the write as a whole fails.
        if matches!(self.io, Io::Tls(_)) {
            self.state.has_begun.store(true, Relaxed);
        }
        match ready!(write(Pin::new(&mut self.io), context)) {
            Ok(written) => {
                self.state.has_begun.store(true, Relaxed);
                self.state.note_moved();
                Poll::Ready(Ok(written))
            }
            Err(error) if self.state.has_begun.load(Relaxed) => {
                self.broken = Some(error);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// hyper's side of a connection.
type Driver = Connection<TokioIo<Wire>, Outgoing>;

/// A connection to the upstream.
pub(crate) struct UpstreamConnection {
    sender: SendRequest<Outgoing>,
    /// hyper's side of the connection; `None` once it runs in a task of its own.
    driver: Option<Box<Driver>>,
    /// Whether the connection has ended, so that the driver must not be polled again.
    has_ended: bool,
    state: Arc<SendState>,
    /// Whether the upstream speaks HTTP/1.0, in which hyper would send the next request.
    is_old: bool,
    /// Whether TLS tells an intended close from a broken connection.
    pub(crate) is_authenticated: bool,
    /// Created once, and reset only after it fires: most responses arrive long before that.
    timer: Option<Pin<Box<Sleep>>>,
    /// Counts the connection towards the limit.
    permit: Option<OwnedSemaphorePermit>,
    /// Tells a driver in a task of its own that the response is still read.
    reading: Option<Arc<()>>,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum ExchangeFailure {
    /// The connection ended before it took the request, which may be sent over another one.
    Unsent(Box<Request<Outgoing>>),
    /// The client's body failed.
    Client(BodyError),
    /// The connection failed before any byte of the request was sent.
    NotSent(hyper::Error),
    /// The connection ended or failed, or the response is malformed.
    Lost(hyper::Error),
    /// The response is malformed.
    Malformed(&'static str),
    /// The exchange stalled for too long.
    Stalled,
}

/// How long an exchange may stall.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Until the response begins; `None` if the layer applies the timeouts.
    pub(crate) response: Option<Duration>,
    /// For the rest of a request once the response has begun.
    pub(crate) rest: Duration,
}

impl UpstreamConnection {
    pub(crate) fn new(
        sender: SendRequest<Outgoing>,
        driver: Driver,
        state: Arc<SendState>,
        is_authenticated: bool,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            sender,
            driver: Some(Box::new(driver)),
            has_ended: false,
            state,
            is_old: false,
            is_authenticated,
            timer: None,
            permit: Some(permit),
            reading: None,
        }
    }

    /// Sends a request, and reads the head of its response. Interim responses before it go to `interim`.
    ///
    /// # Cancellation
    /// The connection must be dropped if the future is.
    pub(crate) async fn exchange(
        &mut self,
        mut request: Request<Outgoing>,
        interim: Option<InterimSender>,
        patience: Patience,
        since: Instant,
    ) -> Result<Response<Incoming>, ExchangeFailure> {
        self.state.start(interim);
        request.body_mut().report_to(&self.state);
        // Only the driver advances it, and is polled with it, so it needs neither a waker nor a budget of its own.
        let mut response = pin!(unconstrained(self.sender.try_send_request(request)));
        let mut wait = Wait {
            since,
            is_sent: false,
        };
        let received = poll_fn(|context| {
            let driven = self.poll_driver(context).is_ready();
            let idle = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(received) = response.as_mut().poll(idle) {
                return Poll::Ready(Ok(received));
            }
            if driven {
                // Dropping the driver reports the end to the response.
                self.driver = None;
                return response.as_mut().poll(idle).map(Ok);
            }
            let stalled = self.poll_stalled(&mut wait, patience.response, context);
            stalled.map(|()| Err(ExchangeFailure::Stalled))
        })
        .await?;
        let response = received.map_err(|error| self.failure(error))?;
        self.state.has_response.store(true, Relaxed);
        self.is_old = response.version() == Version::HTTP_10;
        check_framing(response.headers(), response.version())
            .map_err(ExchangeFailure::Malformed)?;
        let is_sent = self.state.is_sent();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return match is_sent && self.has_ended {
                true => Ok(response),
                false => Err(ExchangeFailure::Malformed(
                    "the upstream switched protocols before the request was complete",
                )),
            };
        }
        if !is_sent && !self.has_ended {
            self.drive_in_background(patience.rest);
        }
        Ok(response)
    }

    /// Polls hyper's side of the connection; ready once the connection has ended.
    pub(crate) fn poll_driver(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_ended {
            return Poll::Ready(());
        }
        let Some(driver) = &mut self.driver else {
            return Poll::Pending;
        };
        // Errors reach the response or its body.
        let polled = driver.poll_without_shutdown(context).map(drop);
        self.has_ended = polled.is_ready();
        polled
    }

    /// Whether it is polled where the response is awaited.
    pub(crate) fn is_driven_here(&self) -> bool {
        self.driver.is_some()
    }

    /// Whether the response has ended, and hyper accepts another request. Bytes after the response end the connection:
    /// they would be taken for the next one.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.poll_idle().is_pending()
            && self.driver.is_some()
            && self.sender.is_ready()
            && self.state.is_sent()
            && !self.is_old
    }

    /// Polls hyper's side without a waker: an idle connection wakes nobody.
    fn poll_idle(&mut self) -> Poll<()> {
        let idle = &mut Context::from_waker(Waker::noop());
        let driving = poll_fn(|context| self.poll_driver(context));
        pin!(unconstrained(driving)).poll(idle)
    }

    /// Whether the connection can carry another request: the upstream has neither closed it nor sent bytes without a request.
    ///
    /// Asks the kernel, because the runtime may not have seen newly arrived bytes yet.
    pub(crate) fn is_reusable(&mut self) -> bool {
        self.state.is_probe.store(true, Relaxed);
        let is_idle = self.is_idle();
        self.state.is_probe.store(false, Relaxed);
        is_idle
    }

    /// Ready once the exchange has stalled for too long.
    fn poll_stalled(
        &mut self,
        wait: &mut Wait,
        patience: Option<Duration>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(patience) = patience else {
            return Poll::Pending;
        };
        if !wait.is_sent && self.state.is_sent() {
            // Only now does the upstream have the whole request: the wait for its response starts here.
            *wait = Wait {
                since: Instant::now(),
                is_sent: true,
            };
        }
        loop {
            ready!(self.poll_moment(wait.since + patience, context));
            if !self.state.take_moved() {
                return Poll::Ready(());
            }
            wait.since = Instant::now();
        }
    }

    /// Ready at this moment or shortly after it.
    fn poll_moment(&mut self, moment: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(moment)));
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= moment {
                return Poll::Ready(());
            }
            timer.as_mut().reset(moment);
        }
    }

    fn failure(&self, mut error: TrySendError<Request<Outgoing>>) -> ExchangeFailure {
        if let Some(request) = error.take_message() {
            return ExchangeFailure::Unsent(Box::new(request));
        }
        if let Some(failed) = lock(&self.state.failed).take() {
            return ExchangeFailure::Client(failed);
        }
        match self.state.has_begun.load(Relaxed) {
            true => ExchangeFailure::Lost(error.into_error()),
            false => ExchangeFailure::NotSent(error.into_error()),
        }
    }

    /// Sends the rest of a request in a task of its own, while its response is already read.
    ///
    /// The task ends with the connection, or when the response was read and the request makes no progress for `patience`.
    fn drive_in_background(&mut self, patience: Duration) {
        let Some(mut driver) = self.driver.take() else {
            return;
        };
        let (permit, state) = (self.permit.take(), self.state.clone());
        let reading = self.reading.insert(Arc::default());
        let reading = Arc::downgrade(reading);
        tokio::spawn(async move {
            let _permit = permit;
            let mut is_alive = true;
            while is_alive {
                let driven = poll_fn(|context| driver.poll_without_shutdown(context));
                let has_ended = timeout(patience, driven).await.is_ok();
                is_alive = !has_ended && (state.take_moved() || reading.strong_count() > 0);
            }
        });
    }

    /// The stream, the bytes that were read from it and not parsed, and its permit; after a switch of protocols.
    pub(crate) fn into_parts(self) -> Option<(Io, Bytes, Option<OwnedSemaphorePermit>)> {
        let Parts { io, read_buf, .. } = self.driver?.into_parts();
        Some((io.into_inner().io, read_buf, self.permit))
    }
}

/// A wait for the head of a response.
struct Wait {
    /// When the exchange last made progress.
    since: Instant,
    /// Whether the whole request was sent.
    is_sent: bool,
}

/// Rejects a head that states the length of its body twice: two programs could end the response at different places,
/// and one client would get another's response.
fn check_framing(headers: &HeaderMap, version: Version) -> Result<(), &'static str> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let (length, encoding) = (lengths.next(), encodings.next());
    let is_number = |value: &HeaderValue| value.as_bytes().iter().all(u8::is_ascii_digit);
    if lengths.next().is_some()
        || encodings.next().is_some()
        || length.is_some() && encoding.is_some()
    {
        return Err("the response states the length of its body twice");
    }
    if length.is_some_and(|length| !is_number(length)) {
        return Err("the Content-Length of the response is not a number");
    }
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    match encoding {
        Some(encoding) if !is_chunked(encoding) || version == Version::HTTP_10 => {
            Err("the transfer encoding of the response is not supported")
        }
        _ => Ok(()),
    }
}

/// Whether the body after the head of a response ends with its connection: it has neither a length nor chunks.
pub(crate) fn ends_with_connection(is_to_head: bool, head: &response::Parts) -> bool {
    let has_no_body = is_to_head
        || head.status.is_informational()
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED;
    let has_length = head.headers.contains_key(header::CONTENT_LENGTH)
        || head.headers.contains_key(header::TRANSFER_ENCODING);
    !has_no_body && !has_length
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.is_probe.load(Relaxed) {
            // To hyper, a stream that is not quiet has ended.
            return match self.io.is_quiet() {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            };
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        if self.state.may_be_interim.load(Relaxed) {
            let Self { state, scan, .. } = &mut *self;
            state.scan(scan, &buffer.filled()[before..])?;
        }
        match self.broken.take() {
            // A connection that was reset does not end a response as one that was closed does.
            Some(error) if buffer.filled().len() == before => Poll::Ready(Err(error)),
            broken => {
                self.broken = broken;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |io, context| io.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |io, context| {
            io.poll_write_vectored(context, slices)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper flushes the stream only when it has written everything that it has taken.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken.is_some() {
            return Poll::Pending;
        }
        match ready!(Pin::new(&mut self.io).poll_flush(context)) {
            Ok(()) => {
                self.state.note_flushed();
                Poll::Ready(Ok(()))
            }
            Err(error) if self.state.has_begun.load(Relaxed) => {
                self.broken = Some(error);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
