//! One client's connection: HTTP/1.1 or HTTP/2 in the clear, whichever it speaks.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{body::Incoming, service::Service};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use refrain::{
    http::{Body, BodyError, RefrainLayer, RefrainService},
    policy::ProxySettings,
};
use tokio::net::TcpStream;
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::{
    bell::Bell,
    faults,
    forward::Forward,
    headers,
    upstream_body::UpstreamBody,
    watch::{Active, Client, ClientBody, Order, Taking, Watch, WatchedStream},
};

/// What hyper takes without being told, and then faster.
const HEADERS_USUAL: usize = 100;

/// What the connections of one thread share.
#[derive(Clone)]
pub(crate) struct Clients {
    layer: RefrainLayer,
    forward: Forward,
    watch: Arc<Watch>,
    bell: Arc<Bell>,
    builder: Arc<Builder<TokioExecutor>>,
}

impl Clients {
    pub(crate) fn new(
        layer: RefrainLayer,
        forward: Forward,
        watch: Arc<Watch>,
        bell: Arc<Bell>,
        settings: &ProxySettings,
    ) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        if settings.headers_max != HEADERS_USUAL {
            builder.http1().max_headers(settings.headers_max);
        }
        builder
            .http1()
            .max_buf_size(settings.head_bytes_max.max(8 << 10))
            // Who stands still is watched for elsewhere.
            .header_read_timeout(None);
        let head_bytes_max = u32::try_from(settings.head_bytes_max).unwrap_or(u32::MAX);
        builder
            .http2()
            .max_header_list_size(head_bytes_max)
            .max_concurrent_streams(256);
        Self {
            layer,
            forward,
            watch,
            bell,
            builder: Arc::new(builder),
        }
    }

    /// Serves a connection until it ends, stands still for too long, or all are told to stop.
    pub(crate) async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        let client = self.watch.open();
        let stream = WatchedStream {
            stream,
            client: client.clone(),
        };
        let front = Front {
            service: self.layer.layer(self.forward.of(peer.ip())),
            client: client.clone(),
        };
        let serving = self
            .builder
            .serve_connection_with_upgrades(TokioIo::new(stream), front);
        let mut serving = pin!(serving);
        let mut is_draining = false;
        let mut waker = None;
        poll_fn(|context| {
            let waker = waker.get_or_insert_with(|| self.bell.waker(context));
            let context = &mut Context::from_waker(waker);
            match client.order(context) {
                Order::Serve => {}
                Order::Drain => {
                    if !std::mem::replace(&mut is_draining, true) {
                        serving.as_mut().graceful_shutdown();
                    }
                }
                Order::Close => {
                    tracing::debug!(%peer, "a client stood still: its connection is closed");
                    return Poll::Ready(());
                }
            }
            serving.as_mut().poll(context).map(|ended| {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a client's connection ended");
                }
            })
        })
        .await;
    }
}

/// In front of the layer: makes requests of all versions alike, and knows which are being answered.
#[derive(Clone)]
struct Front {
    service: RefrainService<Forward>,
    client: Arc<Client>,
}

type Answering = <RefrainService<Forward> as tower_service::Service<Request<ClientBody>>>::Future;

impl Service<Request<Incoming>> for Front {
    type Response = Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Fronting;

    fn call(&self, request: Request<Incoming>) -> Fronting {
        self.client.speaks(request.version());
        let active = Active::start(&self.client);
        let (mut head, body) = request.into_parts();
        if let Some(fault) = faults::of(&head) {
            return Fronting::refused(faults::answer(fault), active);
        }
        headers::normalise(&mut head);
        let body = ClientBody::new(body, &self.client);
        let answering = self.service.clone().call(Request::from_parts(head, body));
        Fronting {
            making: Making::Answer(answering),
            active: Some(active),
        }
    }
}

/// An answer that is being made.
struct Fronting {
    making: Making,
    active: Option<Active>,
}

enum Making {
    Answer(Answering),
    /// Nothing was asked for that could be answered. `None` once it was told.
    Refusal(Option<Box<Response<Body<UpstreamBody>>>>),
}

impl Fronting {
    fn refused(answer: Response<Body<UpstreamBody>>, active: Active) -> Self {
        Self {
            making: Making::Refusal(Some(Box::new(answer))),
            active: Some(active),
        }
    }
}

impl Future for Fronting {
    type Output = Result<Response<Answer>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &mut self.making {
            Making::Answer(answering) => Pin::new(answering).poll(context),
            Making::Refusal(answer) => match answer.take() {
                Some(answer) => Poll::Ready(Ok(*answer)),
                None => Poll::Pending,
            },
        };
        polled.map_ok(|response| {
            let taking = self.active.take().map(Taking::start);
            response.map(|body| Answer { body, taking })
        })
    }
}

/// An answer's body; the request counts as being answered until this is dropped.
struct Answer {
    body: Body<UpstreamBody>,
    taking: Option<Taking>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Some(taking) = &self.taking {
            taking.note(polled.is_ready());
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
