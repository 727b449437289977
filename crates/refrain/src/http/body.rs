//! All states: the body of requests and responses, its memory budget, and the bounds of bodies and services that can be
//! guarded.
//!
//! A body is whole in memory, passed through, partly in memory and partly passed through, or read while a recorder fills it.
//! A body in memory is counted towards the budget as it is read, not by its declared length.
//! Requests beyond the budget are rejected before the claim. Responses of operations are counted too, and never rejected.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tower_service::Service;

use super::{BodyError, Decision, REFRAIN_RECORD, live::Follower};
use crate::{RecordId, engine::SentMark};

/// Default budget.
const BUFFERED_BYTES_MAX: usize = 256 << 20;
/// An eighth of the budget is reserved for bodies up to this size: a few unfinished uploads must not block all other clients.
const SMALL_BYTES_MAX: usize = 64 << 10;

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
    /// How long the service took for that request.
    pub(super) served: Option<Duration>,
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
            served: None,
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

/// Names the record in a response, or in a request for its receipt.
pub(super) fn add_record(headers: &mut HeaderMap, record: RecordId) {
    // Hexadecimal digits are always a valid header value.
    if let Ok(record) = HeaderValue::try_from(record.to_string()) {
        headers.insert(REFRAIN_RECORD, record);
    }
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
    whole: Option<oneshot::Sender<Result<Bytes, TooLong>>>,
}

/// The body is longer than the copy may be.
#[derive(Debug)]
pub(super) struct TooLong;

impl BodyCopy {
    /// The receiver gets the body after it has passed, or that it is longer than `bytes_max`; it gets nothing if the body is
    /// not read to its end, or `share` has no room for it.
    pub(super) fn new(
        bytes_max: usize,
        share: Share,
    ) -> (Self, oneshot::Receiver<Result<Bytes, TooLong>>) {
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
                if self.gathered.len() + data.len() > self.bytes_max {
                    if let Some(whole) = self.whole.take() {
                        let _ = whole.send(Err(TooLong));
                    }
                    return self.discard();
                }
                match self.share.take(data.len()) {
                    true => self.gathered.push(data.clone()),
                    false => self.discard(),
                }
            }
            Some(None) => self.discard(),
            None => {
                if let Some(whole) = self.whole.take() {
                    let gathered = std::mem::take(&mut self.gathered);
                    let _ = whole.send(Ok(gathered.into_bytes()));
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

/// Memory budget for buffered bodies, and the bytes in use.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUFFERED_BYTES_MAX)
    }
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used: AtomicUsize::new(0),
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Size of the largest body that fits into the empty budget.
    pub(super) fn body_bytes_max(&self) -> usize {
        let large = self.bytes_max - self.bytes_max / 8;
        large.max(self.bytes_max.min(SMALL_BYTES_MAX))
    }
}

/// Error of a request body that the budget has no room for now.
#[derive(Debug, thiserror::Error)]
#[error("the memory budget for bodies is used up")]
pub(super) struct OverBudget;

/// Bytes of the budget that one body uses, returned on drop. Without a budget nothing is counted.
#[derive(Debug, Default)]
pub(super) struct Share {
    budget: Option<Arc<Budget>>,
    bytes: usize,
    is_refusable: bool,
}

impl Share {
    /// For a request body, which is rejected beyond the budget.
    pub(super) fn refusable(budget: &Arc<Budget>) -> Self {
        let mut share = Self::counted(budget);
        share.is_refusable = true;
        share
    }

    /// For the response of an operation, which is counted and never rejected.
    pub(super) fn counted(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Some(budget.clone()),
            bytes: 0,
            is_refusable: false,
        }
    }

    /// For the body of a replay; `None` if the budget has no room for it.
    ///
    /// Small bodies are not counted, because the number of connections bounds them. A body that never fits is not rejected.
    pub(super) fn of_replay(budget: &Arc<Budget>, bytes: usize) -> Option<Self> {
        if bytes <= SMALL_BYTES_MAX {
            return Some(Self::default());
        }
        let mut share = match bytes <= budget.body_bytes_max() {
            true => Self::refusable(budget),
            false => Self::counted(budget),
        };
        share.take(bytes).then_some(share)
    }

    /// Takes that many more bytes. Takes nothing and returns `false` if the budget has no room for them.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let bytes_max = match self.is_refusable {
            false => usize::MAX,
            true if self.bytes + bytes <= SMALL_BYTES_MAX => budget.bytes_max,
            true => budget.body_bytes_max(),
        };
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= bytes_max);
        let is_taken = budget.used.fetch_update(Relaxed, Relaxed, add).is_ok();
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }

    /// Returns all but `bytes` bytes to the budget.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if let Some(budget) = &self.budget
            && less > 0
        {
            budget.used.fetch_sub(less, Relaxed);
            self.bytes -= less;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_back_and_only_answers_exceed_the_budget() {
        let budget = Arc::new(Budget::new(1 << 20));
        let share = || Share::refusable(&budget);
        let (mut first, mut second, mut third) = (share(), share(), share());
        assert!(first.take(budget.body_bytes_max()));
        assert!(!second.take(SMALL_BYTES_MAX + 1));
        assert!(second.take(SMALL_BYTES_MAX));
        assert!(!second.take(1), "it is not small any more");
        assert!(third.take(SMALL_BYTES_MAX));
        assert!(!share().take(1));
        assert_eq!(budget.used(), 1 << 20);
        let mut answer = Share::counted(&budget);
        assert!(answer.take(1 << 20));
        assert_eq!(budget.used(), 2 << 20);
        answer.shrink(5);
        drop((first, second, third));
        assert_eq!(budget.used(), 5);
        drop(answer);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_largest_body_that_fits_can_be_read() {
        for bytes_max in [1, 1_000, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 1 << 30] {
            let budget = Arc::new(Budget::new(bytes_max));
            let fits = budget.body_bytes_max();
            assert!(Share::refusable(&budget).take(fits), "{bytes_max}");
            assert!(!Share::refusable(&budget).take(fits + 1), "{bytes_max}");
        }
    }
}
