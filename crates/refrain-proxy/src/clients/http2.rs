//! A client that speaks HTTP/2 in the clear, from its first byte.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioExecutor, TokioIo};
use refrain::policy::ProxySettings;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    ClientBody,
    front::{Answer, Front, Fronting},
};
use crate::watch::WatchedStream;

/// What a client says first that speaks HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const STREAMS_MAX: u32 = 256;

/// How this proxy speaks HTTP/2.
pub(super) struct Http2 {
    builder: http2::Builder<TokioExecutor>,
    client_timeout: Duration,
}

impl Http2 {
    pub(super) fn new(settings: &ProxySettings) -> Self {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let head_bytes_max = u32::try_from(settings.head_bytes_max).unwrap_or(u32::MAX);
        builder
            .max_header_list_size(head_bytes_max)
            .max_concurrent_streams(STREAMS_MAX);
        Self {
            builder,
            client_timeout: settings.client_timeout,
        }
    }
}

/// Serves a connection of which `read` was read, until it ends or all are told to stop.
pub(super) async fn serve(
    http2: &Http2,
    stream: TcpStream,
    read: BytesMut,
    front: Front,
) -> hyper::Result<()> {
    let client = front.client.clone();
    client.speaks_http2();
    let stream = WatchedStream {
        stream: Begun { read, stream },
        client: client.clone(),
    };
    let front = Http2Front {
        front,
        client_timeout: http2.client_timeout,
    };
    let mut serving = pin!(http2.builder.serve_connection(TokioIo::new(stream), front));
    let mut is_told = false;
    poll_fn(|context| {
        if client.is_draining() && !std::mem::replace(&mut is_told, true) {
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await
}

/// Answers the requests of one connection.
struct Http2Front {
    front: Front,
    client_timeout: Duration,
}

impl Service<Request<Incoming>> for Http2Front {
    type Response = Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Fronting;

    fn call(&self, request: Request<Incoming>) -> Fronting {
        let (head, body) = request.into_parts();
        let body = ClientBody::stream(body, self.client_timeout);
        self.front.clone().call(Box::new(head), body)
    }
}

/// A connection of which something was read already.
struct Begun {
    read: BytesMut,
    stream: TcpStream,
}

impl AsyncRead for Begun {
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

impl AsyncWrite for Begun {
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
