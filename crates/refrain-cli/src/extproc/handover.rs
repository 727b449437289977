//! The service below the layer: hands each request back to its stream, where Envoy sends it to the upstream, and waits
//! there for the response.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use refrain::{
    http::{Body, BodyError, Failure},
    record::Reason,
};
use tokio::sync::{mpsc, oneshot};
use tower_service::Service;

/// Request extension: the stream of a request.
#[derive(Debug, Clone)]
pub(super) struct ExchangeHandle {
    /// Receives the call of the layer, at most one.
    pub(super) calls: mpsc::Sender<UpstreamCall>,
    /// Whether the operation is only observed, so that both bodies are read without a claim.
    pub(super) is_observed: bool,
}

/// A request that the layer passes on to the upstream.
#[derive(Debug)]
pub(super) struct UpstreamCall {
    pub(super) headers: HeaderMap,
    /// Whether Refrain has to see the whole response.
    pub(super) is_watched: bool,
    /// Receives the response. Dropped, the outcome is unknown.
    pub(super) response: oneshot::Sender<Response<StreamBody>>,
}

/// Response extension: the response comes from the upstream.
#[derive(Debug, Clone, Copy)]
pub(super) struct FromUpstream;

/// A body of an exchange, which Envoy sends as a whole.
#[derive(Debug)]
pub(super) enum StreamBody {
    /// `None` once it was read.
    Whole(Option<Bytes>),
    /// Envoy sends it on demand.
    OnDemand(OnDemand),
}

/// A request body that Envoy has not sent yet.
#[derive(Debug)]
pub(super) struct OnDemand {
    /// Sent when the body is first read.
    pub(super) wanted: Option<oneshot::Sender<()>>,
    pub(super) bytes: oneshot::Receiver<Bytes>,
    /// The declared length.
    pub(super) declared: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("the stream ended before the request body")]
struct BodyCut;

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => bytes.take(),
            Self::OnDemand(body) => {
                if let Some(wanted) = body.wanted.take() {
                    let _ = wanted.send(());
                }
                let read = std::task::ready!(Pin::new(&mut body.bytes).poll(context));
                *self = Self::Whole(None);
                match read {
                    Ok(bytes) => Some(bytes),
                    Err(_) => return Poll::Ready(Some(Err(BodyCut.into()))),
                }
            }
        };
        let frame = bytes.filter(|bytes| !bytes.is_empty()).map(Frame::data);
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |it| it.len() as u64))
            }
            Self::OnDemand(body) => {
                let mut hint = SizeHint::new();
                hint.set_lower(body.declared);
                hint
            }
        }
    }
}

/// The service that the layer guards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handover;

impl Service<Request<Body<StreamBody>>> for Handover {
    type Response = Response<StreamBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<StreamBody>>) -> Self::Future {
        let (head, body) = request.into_parts();
        Box::pin(async move {
            let handed = hand_over(head, body).await;
            Ok(handed.unwrap_or_else(failed))
        })
    }
}

async fn hand_over(
    mut head: request::Parts,
    mut body: Body<StreamBody>,
) -> Result<Response<StreamBody>, Failure> {
    let Some(exchange) = head.extensions.remove::<ExchangeHandle>() else {
        return Err(Failure::NotSent);
    };
    if exchange.is_observed {
        read(&mut body).await?;
    }
    let (response, responded) = oneshot::channel();
    let call = UpstreamCall {
        headers: head.headers,
        is_watched: body.is_granted() || exchange.is_observed,
        response,
    };
    // The stream has ended, so that Envoy was not told to continue.
    exchange
        .calls
        .try_send(call)
        .map_err(|_| Failure::NotSent)?;
    // Marks the request as sent: it cannot be cancelled any more.
    drop(body);
    let responded = responded.await;
    responded.map_err(|_| Failure::Lost(Reason::Reset))
}

/// Reads an observed body, which the layer sees only then. Envoy has its own copy.
async fn read(body: &mut Body<StreamBody>) -> Result<(), Failure> {
    while let Some(frame) = body.frame().await {
        frame.map_err(|_| Failure::NotSent)?;
    }
    Ok(())
}

/// The response of a stream that has ended, which nobody receives.
fn failed(failure: Failure) -> Response<StreamBody> {
    let mut response = Response::new(StreamBody::Whole(None));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(failure);
    response
}
