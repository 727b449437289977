//! A client connection that speaks HTTP/1.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, Response, Version, header};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::rt::TokioIo;
use refrain_http1::{Input, Limits};
use tokio::{io::AsyncWriteExt as _, sync::oneshot};

use super::{
    body::{ClientBody, LINGER_BYTES_MAX, linger},
    checked::{CheckedStream, Refusal},
    front::{Front, FrontResponse, Fronting},
};
use crate::{
    stream::Io,
    tunnel::{self, OpenedTunnel},
    watch::{Active, Client},
};

/// HTTP/1 settings of the proxy.
pub(super) struct Http1 {
    builder: http1::Builder,
    limits: Limits,
    client_timeout: Duration,
}

impl Http1 {
    pub(super) fn new(limits: Limits, client_timeout: Duration) -> Self {
        let mut builder = http1::Builder::new();
        builder
            // The check of heads and the watch of connections enforce the limits, with problem responses.
            .max_buf_size(limits.bytes_max.saturating_add(1))
            .max_headers(limits.fields_max)
            .header_read_timeout(None);
        Self {
            builder,
            limits,
            client_timeout,
        }
    }
}

/// Sends the connection to the tunnel that the current request opens.
type TunnelSender = oneshot::Sender<OpenedTunnel>;

/// Serves a connection from which `input` was already read, until it ends or the proxy stops.
pub(super) async fn serve(http1: &Http1, stream: Io, input: Input, front: Front) -> io::Result<()> {
    let client = front.client.clone();
    let refusal = Arc::<Refusal>::default();
    let tunnel = Arc::<Mutex<Option<TunnelSender>>>::default();
    let stream = CheckedStream::new(stream, input, &client, http1.limits, refusal.clone());
    let service = Http1Front {
        front,
        refusal,
        client_timeout: http1.client_timeout,
        tunnel: tunnel.clone(),
    };
    let io = TokioIo::new(stream);
    let mut serving = http1.builder.serve_connection(io, service);
    let mut is_told = false;
    let served = poll_fn(|context| {
        let polled = serving.poll_without_shutdown(context);
        // A client that has sent a part of a head may still complete it.
        if polled.is_ready() || is_told || !client.is_draining() || client.is_mid_head() {
            return polled;
        }
        // hyper would add `close` to the fields of `101`, which some clients reject.
        if may_switch(&tunnel) {
            return polled;
        }
        is_told = true;
        Pin::new(&mut serving).graceful_shutdown();
        serving.poll_without_shutdown(context)
    })
    .await;
    let served = match served {
        // hyper may still have to send a part of the last response.
        Ok(()) if !client.is_switched() => (&mut serving).await,
        served => served,
    };
    let http1::Parts { io, read_buf, .. } = serving.into_parts();
    let stream = io.into_inner();
    let opened = tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(opened) = opened.filter(|_| served.is_ok() && client.is_switched()) else {
        let closed = close(stream, &client).await;
        return served.map_err(io::Error::other).and(closed);
    };
    let (stream, rest) = stream.into_parts();
    let read = [&read_buf[..], &rest[..]].concat();
    // If the receiver is gone, the connection is just closed.
    let _ = opened.send(OpenedTunnel { stream, read });
    Ok(())
}

/// Whether the current request asks for an upgrade, and was not answered otherwise yet.
fn may_switch(tunnel: &Mutex<Option<TunnelSender>>) -> bool {
    let tunnel = tunnel.lock().unwrap_or_else(PoisonError::into_inner);
    tunnel.as_ref().is_some_and(|opened| !opened.is_closed())
}

/// Closes a connection. A client that still sends is read for a while, because a reset could destroy the response.
async fn close(mut stream: CheckedStream, client: &Arc<Client>) -> io::Result<()> {
    stream.shutdown().await?;
    if !stream.is_quiet() {
        // Keeps the idle timeout from closing the connection meanwhile.
        let _active = Active::start(client);
        linger(LINGER_BYTES_MAX, |context| stream.poll_discard(context)).await;
    }
    Ok(())
}

/// Handles the requests of one connection.
struct Http1Front {
    front: Front,
    refusal: Arc<Refusal>,
    client_timeout: Duration,
    tunnel: Arc<Mutex<Option<TunnelSender>>>,
}

impl Service<Request<Incoming>> for Http1Front {
    type Response = Response<FrontResponse>;
    type Error = std::convert::Infallible;
    type Future = Fronting;

    fn call(&self, request: Request<Incoming>) -> Fronting {
        if let Some(refused) = self.refusal.take() {
            return self.front.refused(refused.code, refused.why);
        }
        let (mut head, body) = request.into_parts();
        let is_new = head.version == Version::HTTP_11;
        if is_new && head.method == Method::GET && head.headers.contains_key(header::UPGRADE) {
            let opened = tunnel::offer(&mut head);
            *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        }
        if is_new {
            self.front.client.interim.begin();
        }
        let body = ClientBody::new(&head.headers, body, self.client_timeout, &self.front.client);
        self.front.call(head, body)
    }
}
