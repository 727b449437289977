//! A client connection: completes its TLS handshake, detects whether it speaks HTTP/1.1 or HTTP/2, and serves it.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use refrain::policy::ProxySettings;
use refrain_http1::{Input, Limits};
use tokio::net::TcpStream;

use crate::{
    current::{ConnectionService, CurrentLayer},
    forward::Forward,
    stream::Io,
    telemetry::Telemetry,
    tls::{ServerTls, TlsConnection},
    wake_batch::WakeBatch,
    watch::{Client, Order, Watch},
};

mod body;
mod checked;
mod frames;
mod front;
mod http1;
mod http2;
mod interim;

pub(crate) use body::ClientBody;
use front::Front;
pub(crate) use interim::{Interim, InterimSender};

/// Least value of the limit for a head's size.
const HEAD_BYTES_MIN: usize = 8 << 10;

/// State shared by the client connections of one thread.
#[derive(Clone)]
pub(crate) struct Clients {
    layer: Arc<CurrentLayer>,
    forward: Forward,
    watch: Arc<Watch>,
    wake_batch: Arc<WakeBatch>,
    http1: Arc<http1::Http1>,
    http2: Arc<http2::Http2>,
    telemetry: Option<Arc<Telemetry>>,
    tls: Option<Arc<ServerTls>>,
}

impl Clients {
    pub(crate) fn new(
        layer: Arc<CurrentLayer>,
        forward: Forward,
        watch: Arc<Watch>,
        wake_batch: Arc<WakeBatch>,
        settings: &ProxySettings,
        telemetry: Option<Arc<Telemetry>>,
    ) -> Self {
        let limits = Limits {
            bytes_max: settings.head_bytes_max.max(HEAD_BYTES_MIN),
            fields_max: settings.headers_max,
        };
        Self {
            layer,
            forward,
            watch,
            wake_batch,
            http1: Arc::new(http1::Http1::new(limits, settings.client_timeout)),
            http2: Arc::new(http2::Http2::new(limits, settings.client_timeout)),
            telemetry,
            tls: None,
        }
    }

    /// Serves connections with TLS, if there is any.
    pub(crate) fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// Serves a connection until it ends, stalls for too long, or the proxy stops. Keeps `held` alive until then.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    pub(crate) fn serve(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        held: impl Send + 'static,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let _held = &held;
            let client = self.watch.open();
            let wake_batch = self.wake_batch.clone();
            let mut serving = pin!(self.speak(stream, peer, client.clone()));
            let mut waker = None;
            poll_fn(|context| {
                let waker = waker.get_or_insert_with(|| wake_batch.waker(context));
                let context = &mut Context::from_waker(waker);
                if client.order(context) == Order::Close {
                    tracing::debug!(%peer, "a client timed out: its connection is closed");
                    return Poll::Ready(());
                }
                serving.as_mut().poll(context).map(|ended| {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "a client connection failed");
                    }
                })
            })
            .await;
        }
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    fn speak(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        client: Arc<Client>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        async move {
            let connection = match &self.tls {
                None => TlsConnection::plain(stream),
                // Boxed: the handshake is short, and its future is far larger than the rest.
                Some(tls) => Box::pin(tls.accept(stream)).await?,
            };
            let TlsConnection {
                mut stream,
                protocol,
                certificate,
            } = connection;
            let mut input = Input::default();
            let version = match protocol.as_deref() {
                Some(b"h2") => Version::Two,
                Some(_) => Version::One,
                None => {
                    let polling =
                        poll_fn(|context| poll_version(&mut stream, &mut input, &client, context));
                    polling.await?
                }
            };
            let is_tls = self.tls.is_some();
            let forward = self.forward.of(peer.ip(), is_tls, client.clone());
            let front = Front {
                service: Arc::new(ConnectionService::new(&self.layer, forward)),
                client,
                telemetry: self.telemetry,
                certificate,
                has_base: self.forward.has_base(),
            };
            match version {
                Version::None => Ok(()),
                Version::One => {
                    let serving = http1::serve(&self.http1, stream, input, front);
                    serving.await
                }
                Version::Two => {
                    let serving = http2::serve(&self.http2, stream, input.bytes, front);
                    Box::pin(serving).await.map_err(io::Error::other)
                }
            }
        }
    }
}

/// HTTP version of a client.
enum Version {
    /// Unknown: the connection ended, or the proxy is draining.
    None,
    One,
    Two,
}

/// Detects the HTTP version by the first bytes.
fn poll_version(
    stream: &mut Io,
    input: &mut Input,
    client: &Client,
    context: &mut Context<'_>,
) -> Poll<io::Result<Version>> {
    loop {
        let read = &input.bytes[..];
        if read.len() >= http2::PREFACE.len() && read.starts_with(http2::PREFACE) {
            return Poll::Ready(Ok(Version::Two));
        }
        if !http2::PREFACE.starts_with(read) {
            return Poll::Ready(Ok(Version::One));
        }
        if !read.is_empty() {
            client.note_head();
            // The timeout is reported in HTTP/1.
            if client.has_timed_out() {
                return Poll::Ready(Ok(Version::One));
            }
        } else if stream.poll_read_ready(context)?.is_pending() {
            return idle(client);
        }
        match input.poll_read(stream, context)? {
            Poll::Ready(0) => return Poll::Ready(Ok(Version::None)),
            Poll::Ready(_) => {}
            Poll::Pending if input.bytes.is_empty() => return idle(client),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Ends a connection that has sent nothing once the proxy is draining.
fn idle(client: &Client) -> Poll<io::Result<Version>> {
    match client.is_draining() {
        true => Poll::Ready(Ok(Version::None)),
        false => Poll::Pending,
    }
}

#[cfg(test)]
mod tests;
