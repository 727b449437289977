//! A client connection that speaks HTTP/2 from its first byte: by ALPN, or in cleartext with prior knowledge.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use http::{Request, Response, header, request, uri::PathAndQuery};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioExecutor, TokioIo};
use refrain::http::Code;
use refrain_http1::Limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    ClientBody,
    frames::MeteredStream,
    front::{Front, FrontResponse, Fronting},
};
use crate::{stream::Io, watch::WatchedStream};

/// First bytes of every HTTP/2 connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most requests in progress of one connection.
const STREAMS_MAX: u32 = 256;
/// Most streams that a client has reset before hyper took their requests; one more closes the connection ("rapid reset").
const PENDING_RESETS_MAX: usize = 20;
/// Most streams that were reset because of the client's own errors.
const ERROR_RESETS_MAX: usize = 1_024;
/// Bytes that a client may send ahead of their readers, for each stream and for the connection.
const WINDOW: u32 = 1 << 20;
/// Longest frame of a client.
const FRAME_BYTES_MAX: u32 = 16 << 10;
/// Bytes of responses that are buffered for each stream.
const SEND_BUFFER: usize = 400 << 10;
/// Heads up to this multiple of the limit are rejected with a problem response; hyper rejects larger ones without a body.
const HEADROOM: u32 = 4;
/// Bytes that HTTP/2 counts for each field, besides its name and value.
const FIELD_OVERHEAD: usize = 32;

/// HTTP/2 settings of the proxy.
pub(super) struct Http2 {
    builder: http2::Builder<TokioExecutor>,
    limits: Limits,
    client_timeout: Duration,
}

impl Http2 {
    pub(super) fn new(limits: Limits, client_timeout: Duration) -> Self {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let bytes_max = u32::try_from(limits.bytes_max).unwrap_or(u32::MAX);
        builder
            .max_header_list_size(bytes_max.saturating_mul(HEADROOM))
            .max_concurrent_streams(STREAMS_MAX)
            // The defaults of hyper today. They bound what a hostile client costs, so they must not change with hyper.
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(ERROR_RESETS_MAX)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_send_buf_size(SEND_BUFFER);
        Self {
            builder,
            limits,
            client_timeout,
        }
    }
}

/// Serves a connection from which `read` was already read, until it ends or the proxy stops.
pub(super) async fn serve(
    http2: &Http2,
    stream: Io,
    read: BytesMut,
    front: Front,
) -> hyper::Result<()> {
    let client = front.client.clone();
    client.speaks_http2();
    let stream = WatchedStream {
        stream: MeteredStream::new(PrefixedStream { read, stream }, &client),
        client: client.clone(),
    };
    let front = Http2Front {
        front,
        limits: http2.limits,
        client_timeout: http2.client_timeout,
    };
    let mut serving = pin!(http2.builder.serve_connection(TokioIo::new(stream), front));
    let mut is_told = false;
    poll_fn(|context| {
        let is_ending = client.is_draining() || client.is_leaving();
        if is_ending && !std::mem::replace(&mut is_told, true) {
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await
}

/// Handles the requests of one connection.
struct Http2Front {
    front: Front,
    limits: Limits,
    client_timeout: Duration,
}

impl Service<Request<Incoming>> for Http2Front {
    type Response = Response<FrontResponse>;
    type Error = std::convert::Infallible;
    type Future = Fronting;

    fn call(&self, request: Request<Incoming>) -> Fronting {
        let (head, body) = request.into_parts();
        if let Some(why) = too_large(&head, self.limits) {
            return self.front.refused(Code::HeadTooLarge, why);
        }
        let body = ClientBody::new(&head.headers, body, self.client_timeout, &self.front.client);
        self.front.call(head, body)
    }
}

/// Why a head is over a limit; `None` if it is not.
fn too_large(head: &request::Parts, limits: Limits) -> Option<&'static str> {
    // Clients may send each cookie in a field of its own; they are forwarded as one.
    let cookies = head.headers.get_all(header::COOKIE).iter().count();
    if head.headers.len() - cookies.saturating_sub(1) > limits.fields_max {
        return Some("The request has too many headers; send fewer.");
    }
    let target = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let fields = head.headers.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD);
    let is_over = target.len() + fields.sum::<usize>() > limits.bytes_max;
    is_over.then_some("The request head is too large; send fewer or shorter headers.")
}

/// A stream whose first bytes were already read.
struct PrefixedStream {
    read: BytesMut,
    stream: Io,
}

impl AsyncRead for PrefixedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let len = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..len]);
        self.read.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
