//! `ReadingBody` to `Replied`: bodies in memory, with their budget, and the conversion of a response to an outcome.
//!
//! A body is read up to its cap. It is counted towards the budget as it is read, not by its declared length.
//! Requests beyond the budget are rejected before the claim. Responses of operations are counted too, and never rejected.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header, response};

use super::{
    BodyError,
    body::{Body, Carried, Gathered},
};
use crate::{
    RecordId,
    outcome::{self, Outcome, Packer},
    policy::Operation,
};

/// Default budget.
const BUFFERED_BYTES_MAX: usize = 256 << 20;
/// An eighth of the budget is reserved for bodies up to this size: a few unfinished uploads must not block all other clients.
const SMALL_BYTES_MAX: usize = 64 << 10;

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

/// A body in memory.
pub(super) struct ReadBody {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<Box<HeaderMap>>,
    /// Its share of the memory budget for bodies.
    share: Share,
}

impl ReadBody {
    /// The body again, with the unread rest of a body over the cap.
    pub(super) fn into_body<B>(self, rest: Option<B>) -> Body<B> {
        let body = match rest {
            None => Body::with_trailers(self.bytes, self.trailers),
            Some(rest) => Body::begun(self.bytes, rest),
        };
        body.counted(self.share)
    }
}

/// Result of reading a body: the bytes in memory, and the unread rest if the body is over the cap.
/// The error is [`OverBudget`] if the budget has no room for a request body.
pub(super) type ReadResult<B> = Result<(ReadBody, Option<B>), BodyError>;

/// Future that reads a body into memory, up to a cap.
pub(super) struct BodyReader<B> {
    /// `None` after the result was returned.
    body: Option<B>,
    bytes_max: usize,
    gathered: Gathered,
    trailers: Option<Box<HeaderMap>>,
    share: Share,
}

impl<B> BodyReader<B> {
    /// Reads a body and counts its bytes in `share`.
    pub(super) fn new(body: B, bytes_max: usize, share: Share) -> Self {
        Self {
            body: Some(body),
            bytes_max,
            gathered: Gathered::default(),
            trailers: None,
            share,
        }
    }

    /// The result, with the rest of a body over the cap.
    fn finish(&mut self, rest: Option<B>) -> Poll<ReadResult<B>> {
        let read = ReadBody {
            bytes: std::mem::take(&mut self.gathered).into_bytes(),
            trailers: self.trailers.take(),
            share: std::mem::take(&mut self.share),
        };
        Poll::Ready(Ok((read, rest)))
    }
}

impl<B: Carried> Future for BodyReader<B> {
    type Output = ReadResult<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Pending;
        };
        // A body with a declared length over the cap is not read at all.
        let known = match this.gathered.len() {
            0 => usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX),
            gathered => gathered,
        };
        let mut is_over = known > this.bytes_max;
        while !is_over {
            let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(context)) else {
                this.body = None;
                return this.finish(None);
            };
            match frame.map_err(Into::<BodyError>::into)?.into_data() {
                Ok(data) if this.share.take(data.len()) => this.gathered.push(data),
                Ok(_) => {
                    this.body = None;
                    this.gathered = Gathered::default();
                    this.share = Share::default();
                    return Poll::Ready(Err(OverBudget.into()));
                }
                Err(frame) => this.trailers = frame.into_trailers().ok().map(Box::new),
            }
            is_over = this.gathered.len() > this.bytes_max;
        }
        let rest = this.body.take();
        this.finish(rest)
    }
}

/// The outcome to store: status, replayable headers, body and trailers; without the body if it was over the cap.
pub(super) fn outcome(
    operation: &Operation,
    head: &response::Parts,
    body: Option<&[u8]>,
    trailers: Option<&HeaderMap>,
) -> Outcome {
    let head = ResponseHead {
        status: head.status,
        headers: &head.headers,
    };
    let replayed = |name: &HeaderName| operation.replays_header(name.as_str());
    head.pack(body, replayed).finish(fields(trailers))
}

/// The outcome of a response whose body was read, sealed for its record.
pub(super) fn sealed<B>(
    operation: &Operation,
    response: &Response<Body<B>>,
    record: RecordId,
    is_to_head: bool,
) -> Outcome {
    let (body, trailers) = response.body().whole().unzip();
    let trailers = trailers.flatten();
    let replayed = |name: &HeaderName| {
        operation.replays_header(name.as_str()) || is_to_head && *name == header::CONTENT_LENGTH
    };
    let packer = ResponseHead::of(response).pack(body, replayed);
    packer.finish_for(Some(record), fields(trailers))
}

/// The response for duplicates that waited for a request that was released: without the headers of one connection or caller.
/// `None` if its body was not read to the end.
pub(super) fn answer<B>(response: &Response<Body<B>>, is_to_head: bool) -> Option<Outcome> {
    let (body, trailers) = response.body().whole()?;
    let is_shown =
        |name: &HeaderName| !is_own(name) || is_to_head && *name == header::CONTENT_LENGTH;
    let packer = ResponseHead::of(response).pack(Some(body), is_shown);
    Some(packer.finish(fields(trailers)))
}

/// Status and headers of a response.
struct ResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
}

impl<'a> ResponseHead<'a> {
    fn of<B>(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
        }
    }

    fn pack(&self, body: Option<&[u8]>, keeps: impl Fn(&HeaderName) -> bool) -> Packer {
        let headers = || {
            let headers = self.headers.iter().filter(|(name, _)| keeps(name));
            headers.map(|(name, value)| (name.as_str(), value.as_bytes()))
        };
        let headers_len = headers().map(|(name, value)| outcome::pair_len(name, value));
        let body_len = body.map_or(0, <[u8]>::len);
        let status = self.status.as_u16();
        let mut packer = Packer::with_rooms(status, headers(), headers_len.sum(), body_len);
        match body {
            Some(body) => packer.push(body),
            None => packer.drop_body(),
        }
        packer
    }
}

fn fields(headers: Option<&HeaderMap>) -> impl Iterator<Item = (&str, &[u8])> {
    let fields = headers.into_iter().flatten();
    fields.map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// Whether the header belongs to one connection or one caller.
fn is_own(name: &HeaderName) -> bool {
    const OWN: [HeaderName; 10] = [
        header::SET_COOKIE,
        header::CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
        header::UPGRADE,
        header::TE,
        header::TRAILER,
        header::DATE,
    ];
    OWN.contains(name)
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
