//! All states: the body of requests and responses, and the bounds of bodies and services that can be guarded.
//!
//! A body is whole in memory, passed through, partly in memory and partly passed through, or read while a recorder fills it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tower_service::Service;

use super::{BodyError, Decision, capture::Share, live::Follower};
use crate::engine::SentMark;

/// Bounds of a body that can be guarded.
pub trait Carried: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static {}

impl<B> Carried for B where
    B: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static
{
}

/// Bounds of a service that can be guarded.
pub trait Guarded<B, R>:
    Service<Request<Body<B>>, Response = Response<R>, Error: Send, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S, B, R> Guarded<B, R> for S where
    S: Service<Request<Body<B>>, Response = Response<R>, Error: Send, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// A request or response body around a body of type `B`.
#[derive(Debug)]
pub struct Body<B> {
    /// Bytes in memory, sent first.
    front: Option<Bytes>,
    /// Everything after `front`.
    rest: Rest<B>,
    /// Copies the body while it is passed through.
    copy: Option<Box<BodyCopy>>,
    /// Decision about the request that this response body belongs to.
    pub(super) decision: Option<Decision>,
    /// Its share of the memory budget for bodies.
    share: Share,
    is_granted: bool,
    /// Marks a forwarded request as sent: the forwarding service drops the body once all of it was sent.
    sent: Option<SentMark>,
}

#[derive(Debug)]
enum Rest<B> {
    Nothing,
    Trailers(Box<HeaderMap>),
    Through(B),
    /// A recorder reads the body; this follows it.
    Live(Box<Follower>),
}

impl<B> Body<B> {
    /// Passes a body through untouched.
    pub fn through(body: B) -> Self {
        Self::of(None, Rest::Through(body))
    }

    /// Passes a body through untouched while `copy` collects it.
    pub(super) fn copied(body: B, copy: BodyCopy) -> Self {
        Self {
            copy: Some(Box::new(copy)),
            ..Self::through(body)
        }
    }

    /// The part of a body that was already read, then the rest of it.
    pub fn begun(front: Bytes, rest: B) -> Self {
        Self::of(Some(front), Rest::Through(rest))
    }

    /// A body that is recorded while it is produced.
    pub(super) fn live(follower: Follower) -> Self {
        Self::of(None, Rest::Live(Box::new(follower)))
    }

    /// A whole body from memory.
    pub fn full(bytes: Bytes) -> Self {
        Self::with_trailers(bytes, None)
    }

    /// A whole body from memory, followed by trailers.
    pub fn with_trailers(bytes: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self::of(Some(bytes), trailers.map_or(Rest::Nothing, Rest::Trailers))
    }

    /// The same body, counted towards the memory budget until it is dropped.
    pub(super) fn counted(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// The same body, marked as belonging to a request whose claim was granted.
    #[must_use]
    pub fn granted(mut self) -> Self {
        self.is_granted = true;
        self
    }

    /// The same body, with a mark that is dropped with it.
    pub(super) fn sent_as(mut self, mark: SentMark) -> Self {
        self.sent = Some(mark);
        self
    }

    /// Whether it is the body of a request whose claim was granted: the layer enforces its timeouts and settles it.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.is_granted
    }

    /// The whole body and its trailers, if it is in memory.
    pub(super) fn whole(&self) -> Option<(&[u8], Option<&HeaderMap>)> {
        let trailers = match &self.rest {
            Rest::Nothing => None,
            Rest::Trailers(trailers) => Some(&**trailers),
            Rest::Through(_) | Rest::Live(_) => return None,
        };
        Some((self.front.as_deref().unwrap_or_default(), trailers))
    }

    /// Replaces the bytes in memory by an equal buffer.
    pub(super) fn refill(&mut self, front: Bytes) {
        self.front = Some(front).filter(|front| !front.is_empty());
    }

    fn of(front: Option<Bytes>, rest: Rest<B>) -> Self {
        Self {
            front: front.filter(|front| !front.is_empty()),
            rest,
            copy: None,
            decision: None,
            share: Share::default(),
            is_granted: false,
            sent: None,
        }
    }
}

impl<B> HttpBody for Body<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(front) = self.front.take() {
            return Poll::Ready(Some(Ok(Frame::data(front))));
        }
        let this = &mut *self;
        if let Rest::Through(body) = &mut this.rest {
            let polled = Pin::new(&mut *body).poll_frame(context);
            if let (Poll::Ready(frame), Some(copy)) = (&polled, &mut this.copy) {
                copy.push(frame.as_ref().map(|frame| frame.as_ref().ok()));
                if body.is_end_stream() {
                    copy.push(None);
                }
            }
            return polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        }
        if let Rest::Live(follower) = &mut this.rest {
            return follower.poll_frame(context);
        }
        let trailers = match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Trailers(trailers) => Some(Ok(Frame::trailers(*trailers))),
            Rest::Nothing | Rest::Through(_) | Rest::Live(_) => None,
        };
        Poll::Ready(trailers)
    }

    fn is_end_stream(&self) -> bool {
        self.front.is_none()
            && match &self.rest {
                Rest::Nothing => true,
                Rest::Trailers(_) => false,
                Rest::Through(body) => body.is_end_stream(),
                Rest::Live(follower) => follower.is_done(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let front = self.front.as_ref().map_or(0, |front| front.len() as u64);
        let mut hint = SizeHint::new();
        let rest = match &self.rest {
            Rest::Nothing => return SizeHint::with_exact(front),
            // HTTP/1 cannot send trailers after a body with a declared length.
            Rest::Trailers(_) => {
                hint.set_lower(front);
                return hint;
            }
            Rest::Through(body) => body.size_hint(),
            Rest::Live(follower) => follower.size_hint(),
        };
        hint.set_lower(front + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(front + upper);
        }
        hint
    }
}

/// Stores the decision in the response.
pub(super) fn marked<R>(decision: Decision, mut response: Response<Body<R>>) -> Response<Body<R>> {
    response.body_mut().decision = Some(decision);
    response
}

/// Collects the chunks of a body. A body of one chunk, the usual case, is not copied.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    first: Bytes,
    more: BytesMut,
}

impl Gathered {
    pub(super) fn push(&mut self, data: Bytes) {
        match (self.first.is_empty(), self.more.is_empty()) {
            (true, true) => self.first = data,
            (false, true) => {
                self.more.reserve(self.first.len() + data.len());
                self.more.extend_from_slice(&self.first);
                self.more.extend_from_slice(data.chunk());
                self.first = Bytes::new();
            }
            _ => self.more.extend_from_slice(data.chunk()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.more.len()
    }

    pub(super) fn into_bytes(self) -> Bytes {
        match self.more.is_empty() {
            true => self.first,
            false => self.more.freeze(),
        }
    }
}

/// Collects a request body while it is passed through, and sends the whole body at its end.
#[derive(Debug)]
pub(super) struct BodyCopy {
    gathered: Gathered,
    share: Share,
    bytes_max: usize,
    /// `None` after the body was sent or dropped.
    whole: Option<oneshot::Sender<Bytes>>,
}

impl BodyCopy {
    /// The receiver gets the body after it has passed; it gets nothing if the body is not read to its end, is longer than
    /// `bytes_max`, or `share` has no room for it.
    pub(super) fn new(bytes_max: usize, share: Share) -> (Self, oneshot::Receiver<Bytes>) {
        let (whole, receiver) = oneshot::channel();
        let copy = Self {
            gathered: Gathered::default(),
            share,
            bytes_max,
            whole: Some(whole),
        };
        (copy, receiver)
    }

    /// Takes the next frame: `None` at the end, `Some(None)` if the body failed.
    pub(super) fn push(&mut self, frame: Option<Option<&Frame<Bytes>>>) {
        match frame {
            Some(Some(frame)) => {
                let data = frame.data_ref().filter(|_| self.whole.is_some());
                let Some(data) = data else { return };
                if !self.share.take(data.len()) {
                    return self.discard();
                }
                self.gathered.push(data.clone());
                if self.gathered.len() > self.bytes_max {
                    self.discard();
                }
            }
            Some(None) => self.discard(),
            None => {
                if let Some(whole) = self.whole.take() {
                    let gathered = std::mem::take(&mut self.gathered);
                    let _ = whole.send(gathered.into_bytes());
                }
            }
        }
    }

    fn discard(&mut self) {
        self.whole = None;
        self.gathered = Gathered::default();
        self.share.shrink(0);
    }
}
