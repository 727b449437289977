//! From a response to an outcome: takes the body up to its cap, and keeps what may be replayed.

use std::pin::pin;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, header, response};
use http_body::Body as HttpBody;
use http_body_util::BodyExt;

use super::body::{Body, BodyError};
use crate::{
    outcome::{Outcome, Packer},
    policy::Operation,
};

/// A body that was read as far as its cap allows.
pub(super) enum Read<B> {
    /// All of it, and its trailers.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// More than the cap: what was read, and the rest.
    Over(Bytes, B),
}

impl<B> Read<B> {
    /// The body again.
    pub(super) fn into_body(self) -> Body<B> {
        match self {
            Self::Whole(body, trailers) => Body::with_trailers(body, trailers),
            Self::Over(front, rest) => Body::begun(front, rest),
        }
    }
}

/// Reads a body into memory, up to `bytes_max`.
pub(super) async fn read<B>(body: B, bytes_max: usize) -> Result<Read<B>, BodyError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > bytes_max {
        return Ok(Read::Over(Bytes::new(), body));
    }
    let mut body = body;
    let mut gathered = Gathered::default();
    let mut trailers = None;
    while let Some(frame) = pin!(&mut body).frame().await {
        match frame.map_err(Into::into)?.into_data() {
            Ok(data) => gathered.push(data),
            Err(frame) => trailers = frame.into_trailers().ok().map(Box::new),
        }
        if gathered.len() > bytes_max {
            return Ok(Read::Over(gathered.into_bytes(), body));
        }
    }
    Ok(Read::Whole(gathered.into_bytes(), trailers))
}

/// Chunks of a body. A body of one chunk, as most are, is not copied.
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

/// The outcome that is stored: status, replayable headers, body and trailers; without the body if that was over the cap.
pub(super) fn outcome(
    operation: &Operation,
    head: &response::Parts,
    body: Option<&[u8]>,
    trailers: Option<&HeaderMap>,
) -> Outcome {
    let replayed = |name: &HeaderName| operation.replays_header(name.as_str());
    pack(head, body, trailers, replayed)
}

/// The answer that those get who waited for one that was refused: all but what belongs to one connection or caller.
pub(super) fn answer(
    head: &response::Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
) -> Outcome {
    pack(head, Some(body), trailers, |name| !is_own(name))
}

fn pack(
    head: &response::Parts,
    body: Option<&[u8]>,
    trailers: Option<&HeaderMap>,
    keeps: impl Fn(&HeaderName) -> bool,
) -> Outcome {
    let headers = head
        .headers
        .iter()
        .filter(|(name, _)| keeps(name))
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    let room = body.map_or(0, <[u8]>::len);
    let mut packer = Packer::with_room(head.status.as_u16(), headers, room);
    match body {
        Some(body) => packer.push(body),
        None => packer.drop_body(),
    }
    let trailers = trailers
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    packer.finish(trailers)
}

/// Headers of one connection or one caller.
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
