//! A message on its way to the other side.

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

/// How much is gathered before it is written.
const GATHERED_MAX: usize = 16 << 10;
/// Pieces up to this length are gathered; longer ones are written from where they are.
pub(crate) const COPIED_MAX: usize = 4 << 10;

/// Trailers that would change how the message is read, or who it is from; they are never sent.
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

/// Names that stand in heads alone, since we ourselves write them there.
const NEVER_STARTS: [&str; 3] = ["x-forwarded-", "refrain-", "idempotency-"];

/// How the other side finds the end of the body.
#[derive(Debug)]
pub(crate) enum Length {
    /// So many bytes are still to come.
    Left(u64),
    /// In chunks, with trailers behind them.
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// A message on its way: what is written next, and what comes behind it.
pub(crate) struct Sending<B> {
    /// Head, sizes and short pieces, gathered.
    gathered: Vec<u8>,
    /// How much of it was written.
    written: usize,
    /// A long piece behind that.
    piece: Bytes,
    /// Whether the line behind the piece is to be ended.
    is_chunk_open: bool,
    body: B,
    length: Length,
    /// Nothing more comes of the body.
    is_gathered: bool,
    /// Whether any of it may have left.
    has_begun: bool,
    /// Whether anything has come of the body lately.
    has_moved: bool,
}

/// Why sending does not go on.
#[derive(Debug)]
pub(crate) enum Stuck {
    /// The other side takes no more.
    Io(io::Error),
    /// The body broke off, or is not as long as was said.
    Body(BodyError),
}

impl From<io::Error> for Stuck {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Sending<B> {
    /// A message, or what is left of one. `head` is all that comes before `body`.
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

    /// Whether any of it may have left.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// What is written from now on may have left even where the writing fails.
    pub(crate) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Whether anything has come of its body since this was last asked.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// What was gathered in, to be used again.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.gathered
    }

    /// Writes as much as there is and can be; ready once all of it has left.
    pub(crate) fn poll(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Stuck>> {
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

    /// Takes in what there is of the body, up to a limit.
    fn gather(&mut self, context: &mut Context<'_>) -> Result<(), Stuck> {
        while !self.is_gathered && self.piece.is_empty() && self.gathered.len() < GATHERED_MAX {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                break;
            };
            self.has_moved = true;
            match frame {
                None => self.finish(None)?,
                Some(frame) => {
                    let frame = frame.map_err(Stuck::Body)?;
                    match frame.into_data().map_err(|frame| frame.into_trailers()) {
                        Ok(data) => self.add(data)?,
                        Err(trailers) => self.finish(trailers.ok())?,
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, data: Bytes) -> Result<(), Stuck> {
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.length {
            Length::Left(left) => {
                let after = left.checked_sub(data.len() as u64);
                *left = after.ok_or_else(|| Stuck::Body("the body is too long".into()))?;
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

    fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Stuck> {
        match &self.length {
            Length::Left(0) | Length::UntilClose => {}
            Length::Left(_) => return Err(Stuck::Body("the body is too short".into())),
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
