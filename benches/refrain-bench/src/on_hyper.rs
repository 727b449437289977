//! A proxy on hyper around the same layer: the alternative to the proxy's own HTTP/1.
//!
//! It has what a request needs and nothing more: no limits, timeouts, metrics, forwarding headers or strict checks of
//! heads, and it does not know whether a byte of a request was sent.
//! So a complete proxy on hyper costs more than this one.

use std::{
    io::Write as _,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use anyhow::Result;
use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    client::conn::http1::{self as client, SendRequest},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use refrain::{
    Engine, Policy,
    http::{Body, RefrainLayer},
};
use tokio::net::{TcpListener, TcpStream};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::harness;

/// Serves on one thread, and prints the address.
pub(crate) fn serve(store: &str, upstream: SocketAddr) -> Result<()> {
    harness::thread_runtime()?.block_on(async {
        let engine = Engine::new(refrain_stores::open(store).await?);
        let layer = RefrainLayer::new(engine, Policy::default()).forwarding();
        let forward = Forward(Arc::new(Pool {
            upstream,
            idle: Mutex::default(),
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = layer.layer(forward.clone());
            let service =
                service_fn(move |request: Request<Incoming>| service.clone().call(request));
            tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}

/// Connections to the upstream that carry no request.
struct Pool {
    upstream: SocketAddr,
    idle: Mutex<Vec<Sender>>,
}

type Sender = SendRequest<Body<Incoming>>;

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<Sender> {
        loop {
            let idle = self.idle().pop();
            let Some(mut sender) = idle else {
                return self.connect().await;
            };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
    }

    async fn connect(&self) -> Result<Sender> {
        let stream = TcpStream::connect(self.upstream).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Sends requests to the upstream.
#[derive(Clone)]
struct Forward(Arc<Pool>);

impl Service<Request<Body<Incoming>>> for Forward {
    type Response = Response<UpstreamBody>;
    type Error = anyhow::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<UpstreamBody>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Incoming>>) -> Self::Future {
        let pool = self.0.clone();
        Box::pin(async move {
            let mut sender = pool.connection().await?;
            let response = sender.send_request(request).await?;
            Ok(response.map(|body| UpstreamBody {
                body,
                connection: Some((sender, pool)),
            }))
        })
    }
}

/// The body of a response; gives the connection back at its end.
struct UpstreamBody {
    body: Incoming,
    connection: Option<(Sender, Arc<Pool>)>,
}

impl HttpBody for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let is_over = matches!(polled, Poll::Ready(None)) || self.body.is_end_stream();
        if is_over && let Some((sender, pool)) = self.connection.take() {
            pool.idle().push(sender);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
