//! Converts a response to an outcome: reads the body up to its cap, and keeps the replayable headers.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Response, StatusCode, header, response};
use http_body::Body as HttpBody;

use super::{
    body::{Body, BodyError},
    budget::Share,
};
use crate::{
    RecordId,
    outcome::{self, Outcome, Packer},
    policy::Operation,
};

/// Result of reading a body up to its cap.
pub(super) enum Read<B> {
    /// The whole body, its trailers, and its share of the budget.
    Whole(Bytes, Option<Box<HeaderMap>>, Share),
    /// Over the cap: the bytes read so far, the rest, and their share of the budget.
    Over(Bytes, B, Share),
    /// The budget has no room for it now. The bytes read so far are dropped.
    OverBudget,
}

impl<B> Read<B> {
    /// The body again; `None` if it was over the budget.
    pub(super) fn into_body(self) -> Option<Body<B>> {
        match self {
            Self::Whole(body, trailers, share) => {
                Some(Body::with_trailers(body, trailers).counted(share))
            }
            Self::Over(front, rest, share) => Some(Body::begun(front, rest).counted(share)),
            Self::OverBudget => None,
        }
    }
}

/// Future that reads a body into memory, up to a cap.
pub(super) struct Reading<B> {
    /// `None` after the result was returned.
    body: Option<B>,
    bytes_max: usize,
    gathered: Gathered,
    trailers: Option<Box<HeaderMap>>,
    share: Share,
}

impl<B> Reading<B> {
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
}

impl<B> Future for Reading<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Output = Result<Read<B>, BodyError>;

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
            match ready!(Pin::new(&mut *body).poll_frame(context)) {
                None => {
                    this.body = None;
                    let bytes = std::mem::take(&mut this.gathered).into_bytes();
                    let share = std::mem::take(&mut this.share);
                    return Poll::Ready(Ok(Read::Whole(bytes, this.trailers.take(), share)));
                }
                Some(frame) => match frame.map_err(Into::into)?.into_data() {
                    Ok(data) if this.share.take(data.len()) => this.gathered.push(data),
                    Ok(_) => {
                        this.body = None;
                        this.gathered = Gathered::default();
                        this.share = Share::default();
                        return Poll::Ready(Ok(Read::OverBudget));
                    }
                    Err(frame) => this.trailers = frame.into_trailers().ok().map(Box::new),
                },
            }
            is_over = this.gathered.len() > this.bytes_max;
        }
        let gathered = std::mem::take(&mut this.gathered).into_bytes();
        let share = std::mem::take(&mut this.share);
        let body = this.body.take();
        let over = body.map(|body| Ok(Read::Over(gathered, body, share)));
        over.map_or(Poll::Pending, Poll::Ready)
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

/// The outcome to store: status, replayable headers, body and trailers; without the body if it was over the cap.
pub(super) fn outcome(
    operation: &Operation,
    head: &response::Parts,
    body: Option<&[u8]>,
    trailers: Option<&HeaderMap>,
) -> Outcome {
    let head = Head {
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
    let packer = Head::of(response).pack(body, replayed);
    packer.finish_for(Some(record), fields(trailers))
}

/// The response for duplicates that waited for a request that was released: without the headers of one connection or caller.
/// `None` if its body was not read to the end.
pub(super) fn answer<B>(response: &Response<Body<B>>, is_to_head: bool) -> Option<Outcome> {
    let (body, trailers) = response.body().whole()?;
    let is_shown =
        |name: &HeaderName| !is_own(name) || is_to_head && *name == header::CONTENT_LENGTH;
    let packer = Head::of(response).pack(Some(body), is_shown);
    Some(packer.finish(fields(trailers)))
}

/// Status and headers of a response.
struct Head<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
}

impl<'a> Head<'a> {
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
