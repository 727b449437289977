//! The body of a client's request, with its timeout, and the rest of a request that nobody reads.
//!
//! Many clients send a whole request before they read. Closing the connection or resetting the stream destroys the response in transit.
//! So the rest of the request is read for a while, within limits that no client can extend.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use refrain::http::BodyError;
use tokio::{
    runtime::Handle,
    time::{Sleep, sleep, timeout},
};

use crate::watch::Client;

/// Most bytes of an unwanted HTTP/1 body that are read so that the connection can be reused.
const DISCARDED_BYTES_MAX: usize = 64 << 10;
/// Most bytes that are read before a connection is closed.
pub(super) const LINGER_BYTES_MAX: usize = 64 << 20;
/// Longest time of reading.
const LINGER_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest pause of the client.
const LINGER_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The body of a client's request.
///
/// When it is dropped, the rest of it is read and discarded: a client that sends its whole request first may reuse the
/// connection then. If too much of an HTTP/1 body is left, the connection ends with the response.
pub(crate) struct ClientBody {
    /// `None` once it is discarded.
    body: Option<Incoming>,
    /// Longest wait for the next piece.
    timeout: Duration,
    /// Runs while the next piece is awaited.
    late: Option<Pin<Box<Sleep>>>,
    /// Whether the client waits for `100 Continue`, which is sent when the body is first read.
    is_held_back: bool,
    client: Arc<Client>,
}

impl ClientBody {
    /// The body after a head with these fields. `timeout` is the longest wait for the next piece.
    pub(super) fn new(
        headers: &HeaderMap,
        body: Incoming,
        timeout: Duration,
        client: &Arc<Client>,
    ) -> Self {
        Self {
            body: Some(body),
            timeout,
            late: None,
            is_held_back: headers.contains_key(header::EXPECT),
            client: client.clone(),
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_held_back = false;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            self.late = None;
            if frame.is_none() {
                self.body = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.timeout;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(late.as_mut().poll(context));
        self.client.note_last();
        if !self.client.is_http2() {
            self.body = None;
        }
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        // Dropping the body of an HTTP/2 stream resets the stream, which could destroy the response.
        let is_http2 = self.client.is_http2();
        let bytes_max = if is_http2 {
            LINGER_BYTES_MAX
        } else {
            DISCARDED_BYTES_MAX
        };
        let is_long = body.size_hint().lower() > bytes_max as u64;
        if !is_http2 && (self.is_held_back || is_long) {
            self.client.note_last();
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(linger(bytes_max, move |context| {
                let polled = Pin::new(&mut body).poll_frame(context);
                polled.map(|frame| match frame {
                    Some(Ok(frame)) => frame.data_ref().map_or(1, |data| data.len().max(1)),
                    Some(Err(_)) | None => 0,
                })
            }));
        }
    }
}

impl std::fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientBody")
    }
}

/// Reads to the end, or until more than `bytes_max` have come, or too slowly. `poll_read` returns the number of bytes that have come; 0 at the end.
pub(super) async fn linger(
    bytes_max: usize,
    mut poll_read: impl FnMut(&mut Context<'_>) -> Poll<usize>,
) {
    let reading = async {
        let mut read = 0;
        while read <= bytes_max {
            match timeout(LINGER_PAUSE_MAX, poll_fn(&mut poll_read)).await {
                Ok(more @ 1..) => read += more,
                Ok(0) | Err(_) => return,
            }
        }
    };
    // It makes no difference whether the end was reached.
    let _ = timeout(LINGER_TIME_MAX, reading).await;
}
