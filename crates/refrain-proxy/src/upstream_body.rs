//! The bodies of requests to the upstream, and of its responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Empty;
use hyper::body::Incoming;
use refrain::http::{Body, BodyError};
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    admin::UpstreamErrors,
    clients::ClientBody,
    headers,
    pool::UpstreamPool,
    upstream::{SendState, UpstreamConnection},
};

/// The body of a response: the upstream's, or the proxy's own.
pub struct UpstreamBody(UpstreamBodyKind);

enum UpstreamBodyKind {
    Own(Option<Bytes>),
    Upstream(Box<UpstreamFlow>),
}

/// A body that is being received, and its connection.
pub(crate) struct UpstreamFlow {
    pub(crate) body: Incoming,
    /// `None` once the body has ended or failed.
    pub(crate) connection: Option<Box<UpstreamConnection>>,
    /// Whether the body has ended as it should.
    pub(crate) is_over: bool,
    /// Where the connection is returned to at the end.
    pub(crate) pool: Arc<UpstreamPool>,
    /// `None` if the layer applies the timeouts.
    pub(crate) stall: Option<Stall>,
    /// Whether the body may end with its connection: has neither a length nor chunks, and such a body counts as truncated.
    pub(crate) is_cut_by_close: bool,
    /// The part of the body that was read together with the head.
    pub(crate) front: Option<Bytes>,
    /// Counts a body that fails; `None` if the request is guarded, and its outcome is then unknown.
    pub(crate) errors: Option<UpstreamErrors>,
    /// Why the body failed; reported one poll later, so that the data before it can leave.
    pub(crate) broken: Option<BodyError>,
}

/// Timeout of a body that stalls.
pub(crate) struct Stall {
    after: Duration,
    /// Created when the body first stalls.
    sleep: Option<Pin<Box<Sleep>>>,
    has_moved: bool,
}

impl Stall {
    pub(crate) fn new(after: Duration) -> Self {
        Self {
            after,
            sleep: None,
            has_moved: false,
        }
    }
}

impl UpstreamBody {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self(UpstreamBodyKind::Own(Some(text.into())))
    }

    pub(crate) fn empty() -> Self {
        Self(UpstreamBodyKind::Own(None))
    }

    /// The upstream's body; its connection returns to the pool when the body has ended.
    pub(crate) fn upstream(mut flow: UpstreamFlow) -> Self {
        // Most bodies have already been read completely.
        if flow.body.size_hint().exact().is_some() {
            flow.take_front();
            if flow.body.is_end_stream() {
                flow.end();
                return Self(UpstreamBodyKind::Own(flow.front));
            }
        }
        Self(UpstreamBodyKind::Upstream(Box::new(flow)))
    }
}

impl UpstreamFlow {
    /// Takes the part of the body that has already been read.
    fn take_front(&mut self) {
        let idle = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.body).poll_frame(idle) {
            Poll::Ready(Some(Ok(frame))) => self.front = frame.into_data().ok(),
            Poll::Ready(Some(Err(error))) => self.broken = Some(error.into()),
            Poll::Ready(None) | Poll::Pending => {}
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(front) = self.front.take() {
            return Poll::Ready(Some(Ok(Frame::data(front))));
        }
        if let Some(broken) = self.broken.take() {
            self.connection = None;
            self.count_error("truncated");
            return Poll::Ready(Some(Err(broken)));
        }
        let Poll::Ready(frame) = self.poll_received(context) else {
            return self.poll_stall(context);
        };
        if let Some(stall) = &mut self.stall {
            stall.has_moved = true;
        }
        match frame {
            Err(error) => {
                self.broken = Some(error);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(mut frame) => {
                let trailers = frame.as_mut().and_then(Frame::trailers_mut);
                let has_trailers = trailers.map(headers::strip_trailers).is_some();
                if frame.is_none() || has_trailers || self.body.is_end_stream() {
                    self.end();
                }
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn count_error(&self, reason: &'static str) {
        if let Some(errors) = &self.errors {
            errors.get_or_create(&[("reason", reason)]).inc();
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        if let Some(connection) = self.connection.take() {
            self.pool.give_back(connection);
        }
    }

    fn poll_received(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, BodyError>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(match self.is_over {
                true => Ok(None),
                false => Err("the upstream's response failed before".into()),
            });
        };
        let _ = connection.poll_driver(context);
        let body = Pin::new(&mut self.body);
        let polled = match connection.is_driven_here() {
            // Only the driver advances the body, and is polled with it.
            true => body.poll_frame(&mut Context::from_waker(Waker::noop())),
            false => body.poll_frame(context),
        };
        Poll::Ready(match ready!(polled) {
            Some(frame) => frame.map(Some).map_err(Into::into),
            None if self.is_cut_by_close => {
                Err("the upstream closed the connection before the end of its response".into())
            }
            None => Ok(None),
        })
    }

    fn poll_stall(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(stall) = &mut self.stall else {
            return Poll::Pending;
        };
        let after = stall.after;
        let sleep = stall.sleep.get_or_insert_with(|| Box::pin(sleep(after)));
        while sleep.as_mut().poll(context).is_ready() {
            if !std::mem::take(&mut stall.has_moved) {
                self.connection = None;
                self.count_error("stalled");
                return Poll::Ready(Some(
                    Err("the upstream stopped sending its response".into()),
                ));
            }
            sleep.as_mut().reset(Instant::now() + stall.after);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.front.is_none() && self.broken.is_none() && self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        let front = self.front.as_ref().map_or(0, Bytes::len) as u64;
        match self.body.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(front + rest),
            None => SizeHint::default(),
        }
    }
}

impl HttpBody for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            UpstreamBodyKind::Own(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            UpstreamBodyKind::Upstream(flow) => flow.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            UpstreamBodyKind::Own(bytes) => bytes.is_none(),
            UpstreamBodyKind::Upstream(flow) => flow.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            UpstreamBodyKind::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            UpstreamBodyKind::Upstream(flow) => flow.size_hint(),
        }
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}

/// The body of a request to the upstream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// `None` once it was moved to `state`.
    body: Option<OutgoingBody>,
    /// Progress of the connection that sends it.
    state: Option<Arc<SendState>>,
    /// Whether the body failed after the response had begun: it never ends, so that it cannot be taken for a complete one.
    has_failed: bool,
}

#[derive(Debug)]
enum OutgoingBody {
    Client(Body<ClientBody>),
    /// Of a request that no client sent: a probe, or a delivered message.
    Own(Body<Empty<Bytes>>),
}

impl Outgoing {
    fn new(body: OutgoingBody) -> Self {
        Self {
            body: Some(body),
            state: None,
            has_failed: false,
        }
    }

    /// Reports the progress to the connection that sends the request.
    pub(crate) fn report_to(&mut self, state: &Arc<SendState>) {
        self.state = Some(state.clone());
    }
}

impl OutgoingBody {
    /// Whether it belongs to a request whose claim was granted.
    fn is_granted(&self) -> bool {
        match self {
            Self::Client(body) => body.is_granted(),
            Self::Own(body) => body.is_granted(),
        }
    }
}

impl From<Body<ClientBody>> for Outgoing {
    fn from(body: Body<ClientBody>) -> Self {
        Self::new(OutgoingBody::Client(body))
    }
}

impl From<Body<Empty<Bytes>>> for Outgoing {
    fn from(body: Body<Empty<Bytes>>) -> Self {
        Self::new(OutgoingBody::Own(body))
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.has_failed {
            return Poll::Pending;
        }
        let frame = ready!(match &mut self.body {
            Some(OutgoingBody::Client(body)) => Pin::new(body).poll_frame(context),
            Some(OutgoingBody::Own(body)) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        });
        if let Some(state) = &self.state {
            state.note_moved();
        }
        match (frame, &self.state) {
            (Some(Ok(mut frame)), _) => {
                if let Some(trailers) = frame.trailers_mut() {
                    headers::strip_trailers(trailers);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper would end the response, too.
            (Some(Err(_)), Some(state)) if state.has_response() => {
                self.has_failed = true;
                Poll::Pending
            }
            (Some(Err(error)), Some(state)) => {
                let text = error.to_string();
                state.fail(error);
                Poll::Ready(Some(Err(text.into())))
            }
            (frame, _) => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        if self.has_failed {
            return false;
        }
        match &self.body {
            Some(OutgoingBody::Client(body)) => body.is_end_stream(),
            Some(OutgoingBody::Own(body)) => body.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(OutgoingBody::Client(body)) => body.size_hint(),
            Some(OutgoingBody::Own(body)) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// hyper drops the body once it has taken all of it, which is before all of it was sent.
impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            let body = self.body.take_if(|body| body.is_granted());
            state.note_taken(body.map(Self::new));
        }
    }
}
