//! Sends a message: its head, body and trailers.

use std::{
    io::{self, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderName, header};
use http_body::Body;
use refrain::http::BodyError;
use tokio::io::AsyncWrite;

/// Buffered bytes from which on they are written before more of the body is read.
const GATHERED_MAX: usize = 16 << 10;
/// Longest piece that is copied into the buffer; longer ones are written from where they are.
pub(crate) const COPIED_MAX: usize = 4 << 10;

/// Trailers that would change how the message is read, or its sender; they are never sent.
const NEVER_TRAILERS: [HeaderName; 20] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    header::MAX_FORWARDS,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::VIA,
    header::WWW_AUTHENTICATE,
];

/// Prefixes of names that the proxy itself writes into heads; they are never sent as trailers.
const NEVER_STARTS: [&str; 3] = ["x-forwarded-", "refrain-", "idempotency-"];

/// How the receiver finds the end of the body.
#[derive(Debug)]
pub(crate) enum Length {
    /// This many bytes are left.
    Left(u64),
    /// In chunks, with trailers after them.
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// A message that is being sent: the buffered bytes, and the body that follows.
pub(crate) struct Sending<B> {
    /// Buffer of the head, chunk sizes and short pieces.
    gathered: Vec<u8>,
    /// How much of the buffer was written.
    written: usize,
    /// A long piece that follows the buffer.
    piece: Bytes,
    /// Whether the chunk still needs its line ending.
    is_chunk_open: bool,
    body: B,
    length: Length,
    /// Whether no more of the body is needed.
    is_gathered: bool,
    /// Whether any byte may have been sent.
    has_begun: bool,
    /// Whether the body has made progress lately.
    has_moved: bool,
}

/// Why sending failed.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The receiver takes no more.
    Io(io::Error),
    /// The body failed, or does not have its declared length.
    Body(BodyError),
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Sending<B> {
    /// A message, or the rest of one. `head` is everything before `body`.
    pub(crate) fn new(head: Vec<u8>, length: Length, body: B) -> Self {
        Self {
            gathered: head,
            written: 0,
            piece: Bytes::new(),
            is_chunk_open: false,
            is_gathered: matches!(length, Length::Left(0)),
            body,
            length,
            has_begun: false,
            has_moved: false,
        }
    }

    /// Whether any byte may have been sent.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Counts bytes as sent from now on, even if writing them fails.
    pub(crate) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Whether the body has made progress since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// The buffer, for reuse.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.gathered
    }

    /// Writes as much as possible; ready once the whole message is sent.
    pub(crate) fn poll(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            self.gather(context)?;
            if !self.gathered.is_empty() || !self.piece.is_empty() {
                ready!(self.poll_write(io, context))?;
                continue;
            }
            ready!(Pin::new(io).poll_flush(context))?;
            return match self.is_gathered {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            };
        }
    }

    /// Reads the available part of the body, up to a limit.
    fn gather(&mut self, context: &mut Context<'_>) -> Result<(), SendError> {
        while !self.is_gathered && self.piece.is_empty() && self.gathered.len() < GATHERED_MAX {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                break;
            };
            self.has_moved = true;
            match frame {
                None => self.finish(None)?,
                Some(frame) => {
                    let frame = frame.map_err(SendError::Body)?;
                    match frame.into_data().map_err(|frame| frame.into_trailers()) {
                        Ok(data) => self.add(data)?,
                        Err(trailers) => self.finish(trailers.ok())?,
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, data: Bytes) -> Result<(), SendError> {
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.length {
            Length::Left(left) => {
                let after = left.checked_sub(data.len() as u64);
                *left = after.ok_or_else(|| {
                    SendError::Body("the body is longer than its Content-Length".into())
                })?;
                self.is_gathered = *left == 0;
            }
            Length::Chunked => {
                write!(self.gathered, "{:x}\r\n", data.len())?;
                self.is_chunk_open = true;
            }
            Length::UntilClose => {}
        }
        if data.len() > COPIED_MAX {
            self.piece = data;
            return Ok(());
        }
        self.gathered.extend_from_slice(&data);
        self.close_chunk();
        Ok(())
    }

    fn close_chunk(&mut self) {
        if std::mem::take(&mut self.is_chunk_open) {
            self.gathered.extend_from_slice(b"\r\n");
        }
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), SendError> {
        match &self.length {
            Length::Left(0) | Length::UntilClose => {}
            Length::Left(_) => {
                return Err(SendError::Body(
                    "the body is shorter than its Content-Length".into(),
                ));
            }
            Length::Chunked => {
                self.gathered.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.iter().flatten() {
                    if is_trailer(name) {
                        write_field(&mut self.gathered, name, value.as_bytes());
                    }
                }
                self.gathered.extend_from_slice(b"\r\n");
            }
        }
        self.is_gathered = true;
        Ok(())
    }

    fn poll_write(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let (front, io) = (&self.gathered[self.written..], Pin::new(io));
        let polled = match self.piece.is_empty() {
            true => io.poll_write(context, front),
            false => {
                let slices = [IoSlice::new(front), IoSlice::new(&self.piece)];
                io.poll_write_vectored(context, &slices)
            }
        };
        let len = ready!(polled)?;
        if len == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.has_begun = true;
        self.advance(len);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, len: usize) {
        let front = len.min(self.gathered.len() - self.written);
        self.written += front;
        self.piece.advance(len - front);
        if self.written == self.gathered.len() {
            self.gathered.clear();
            self.written = 0;
        }
        if self.gathered.is_empty() && self.piece.is_empty() {
            self.close_chunk();
        }
    }
}

fn is_trailer(name: &HeaderName) -> bool {
    let is_ours = |start| name.as_str().starts_with(start);
    !NEVER_TRAILERS.contains(name) && !NEVER_STARTS.into_iter().any(is_ours)
}

/// Writes one line of a head or of trailers.
pub(crate) fn write_field(out: &mut Vec<u8>, name: impl AsRef<str>, value: &[u8]) {
    out.extend_from_slice(name.as_ref().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
