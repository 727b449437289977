//! `ReadingBody` and `Running`: reads a body into memory up to its cap, and converts a response to an outcome.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header, response};

use super::{
    BodyError,
    body::{Body, Carried, Gathered, OverBudget, Share},
};
use crate::{
    RecordId,
    outcome::{self, Outcome, Packer},
    policy::Operation,
};

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
