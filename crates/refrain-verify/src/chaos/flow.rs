//! Forwards one message from one side to the other: unchanged, cut, slowed, or discarded.

use std::{
    fmt,
    io::{self, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use refrain_http1::{Broken, Framing, Step};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep},
};

use super::side::Side;

/// Maximum number of body bytes buffered before a write.
const GATHERED_MAX: usize = 16 << 10;
/// Longer pieces are written directly from the read buffer, without a copy.
const COPIED_MAX: usize = 4 << 10;
/// Time for the bytes before a cut to be sent.
const BEFORE_THE_CUT: Duration = Duration::from_millis(50);
/// Writes per second of a slowed body.
const TRICKLES_PER_SECOND: u64 = 20;

/// A message being forwarded.
#[derive(Debug)]
pub(super) struct Flow {
    /// Bytes to write next: the head, and buffered body bytes.
    out: Vec<u8>,
    /// Number of bytes of `out` already written.
    written: usize,
    /// Framing of the incoming body: where it ends.
    framing: Framing,
    /// Whether the outgoing body is chunked.
    is_chunked: bool,
    manner: Manner,
    /// Whether the whole body has been read into `out`.
    is_gathered: bool,
    /// Whether any byte was sent.
    has_begun: bool,
    /// Whether the whole message was sent.
    is_sent: bool,
    /// Whether sending was abandoned.
    is_given_up: bool,
}

/// How a message is forwarded.
#[derive(Debug)]
pub(super) enum Manner {
    AsItComes,
    /// The body is cut after this many bytes.
    Cut(u64),
    /// The cut is reached; waits until the bytes before it are sent.
    Cutting(Pin<Box<Sleep>>),
    Slow(Box<Trickle>),
    Unheard,
}

/// State of a slowed body.
#[derive(Debug)]
pub(super) struct Trickle {
    held: Bytes,
    piece: usize,
    pause: Pin<Box<Sleep>>,
}

impl Manner {
    fn cutting() -> Self {
        Self::Cutting(Box::pin(sleep(BEFORE_THE_CUT)))
    }

    /// Slows to about this many bytes per second, in pieces of whole bytes and thus at least 20 bytes per second.
    pub(super) fn slow(rate: u64) -> Self {
        let piece = (rate / TRICKLES_PER_SECOND).max(1);
        Self::Slow(Box::new(Trickle {
            held: Bytes::new(),
            piece: usize::try_from(piece).unwrap_or(usize::MAX),
            pause: Box::pin(sleep(Duration::ZERO)),
        }))
    }
}

/// Why a message cannot be forwarded further.
#[derive(Debug)]
pub(super) enum Stuck {
    /// The sender closed the connection, or its body is malformed.
    From(io::Error),
    /// The receiver accepts no more.
    To(io::Error),
    /// Cut by a fault.
    Cut,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From(error) | Self::To(error) => error.fmt(f),
            Self::Cut => f.write_str("connection cut by a chaos rule"),
        }
    }
}

impl From<Broken> for Stuck {
    fn from(broken: Broken) -> Self {
        Self::From(io::Error::new(io::ErrorKind::InvalidData, broken))
    }
}

impl Flow {
    /// Returns an unsent message. `head` is everything before the body.
    pub(super) fn new(head: Vec<u8>, framing: Framing, is_chunked: bool, manner: Manner) -> Self {
        Self {
            out: head,
            written: 0,
            framing,
            is_chunked,
            manner,
            is_gathered: false,
            has_begun: false,
            is_sent: false,
            is_given_up: false,
        }
    }

    /// Returns a message that is completely in memory.
    pub(super) fn whole(message: Vec<u8>) -> Self {
        Self::new(message, Framing::Length(0), false, Manner::AsItComes)
    }

    /// Whether any byte was sent.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether the whole message was sent, so the next bytes belong to another message.
    pub(super) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether the whole message was sent, or sending was abandoned.
    pub(super) fn is_over(&self) -> bool {
        self.is_sent || self.is_given_up
    }

    /// Abandons sending.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Whether the whole body was read.
    pub(super) fn is_read(&self) -> bool {
        self.is_gathered || self.framing.is_over()
    }

    /// Buffers the input of a message that is needed in one piece; returns the message once it is complete.
    ///
    /// # Errors
    /// When the body is malformed.
    pub(super) fn take_whole(&mut self, input: &mut BytesMut) -> Result<Option<Vec<u8>>, Stuck> {
        self.gather(input, usize::MAX)?;
        Ok(self.is_gathered.then(|| std::mem::take(&mut self.out)))
    }

    /// Number of bytes buffered.
    pub(super) fn gathered_len(&self) -> usize {
        self.out.len()
    }

    /// Moves as many bytes as possible from one side to the other; ready once the whole message is sent.
    pub(super) fn poll<F, T>(
        &mut self,
        from: &mut Side<F>,
        to: &mut T,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Stuck>>
    where
        F: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.poll_long(&mut from.input.bytes, to, context)).map_err(Stuck::To)?;
            let is_wanting = match self.poll_pause(context) {
                Poll::Ready(()) => self.gather(&mut from.input.bytes, GATHERED_MAX)?,
                Poll::Pending => false,
            };
            ready!(self.poll_write(to, context)).map_err(Stuck::To)?;
            if self.is_gathered {
                self.is_sent = true;
                return Poll::Ready(Ok(()));
            }
            if let Manner::Cutting(pause) = &mut self.manner {
                ready!(pause.as_mut().poll(context));
                return Poll::Ready(Err(Stuck::Cut));
            }
            ready!(self.poll_pause(context));
            if is_wanting && ready!(from.poll_read(context)).map_err(Stuck::From)? == 0 {
                self.end()?;
            }
        }
    }

    /// Writes a long piece of an unchanged body directly from the read buffer.
    fn poll_long(
        &mut self,
        input: &mut BytesMut,
        to: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let (Framing::Length(left), Manner::AsItComes) = (&mut self.framing, &self.manner) else {
            return Poll::Ready(Ok(()));
        };
        while self.out.is_empty() && input.len() > COPIED_MAX && *left > 0 {
            let len = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
            let written = ready!(Pin::new(&mut *to).poll_write(context, &input[..len]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            input.advance(written);
            *left -= written as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the next piece may be sent.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.manner {
            Manner::Slow(trickle) => trickle.pause.as_mut().poll(context),
            _ => Poll::Ready(()),
        }
    }

    /// Buffers body bytes up to a limit; returns whether it needs more input.
    fn gather(&mut self, input: &mut BytesMut, bytes_max: usize) -> Result<bool, Stuck> {
        while !self.is_gathered && self.out.len() < bytes_max {
            match &mut self.manner {
                Manner::Cutting(_) => break,
                Manner::Cut(0) if !self.framing.is_over() => {
                    self.manner = Manner::cutting();
                    break;
                }
                Manner::Slow(trickle) if !trickle.held.is_empty() => {
                    let piece = trickle.next();
                    self.add(&piece);
                    break;
                }
                _ => {}
            }
            match self.framing.next(input)? {
                Step::More => return Ok(true),
                Step::End => self.finish(None),
                Step::Trailers(trailers) => self.finish(Some(trailers)),
                Step::Data(data) => self.take(data),
            }
        }
        Ok(false)
    }

    fn take(&mut self, data: Bytes) {
        match &mut self.manner {
            Manner::AsItComes => self.add(&data),
            Manner::Cut(left) => match left.checked_sub(data.len() as u64) {
                Some(after) => {
                    *left = after;
                    self.add(&data);
                }
                None => {
                    let before = usize::try_from(*left).map_or(&data[..], |left| &data[..left]);
                    self.manner = Manner::cutting();
                    self.add(before);
                }
            },
            Manner::Slow(trickle) => trickle.held = data,
            Manner::Cutting(_) | Manner::Unheard => {}
        }
    }

    fn add(&mut self, data: &[u8]) {
        if self.is_chunked && !data.is_empty() {
            // Writing to memory cannot fail.
            let _ = write!(self.out, "{:x}\r\n", data.len());
            self.out.extend_from_slice(data);
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.out.extend_from_slice(data);
        }
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) {
        self.is_gathered = true;
        if !self.is_chunked {
            return;
        }
        self.out.extend_from_slice(b"0\r\n");
        for (name, value) in trailers.iter().flatten() {
            self.out.extend_from_slice(name.as_str().as_bytes());
            self.out.extend_from_slice(b": ");
            self.out.extend_from_slice(value.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Handles end of stream from the sender.
    fn end(&mut self) -> Result<(), Stuck> {
        if !self.framing.ends_with_connection() {
            return Err(Stuck::From(io::ErrorKind::UnexpectedEof.into()));
        }
        self.finish(None);
        Ok(())
    }

    fn poll_write(
        &mut self,
        to: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let polled = Pin::new(&mut *to).poll_write(context, &self.out[self.written..]);
            let written = ready!(polled)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.has_begun = true;
            self.written += written;
        }
        self.out.clear();
        self.written = 0;
        Pin::new(to).poll_flush(context)
    }
}

impl Trickle {
    /// Returns the next piece, and starts the pause that keeps the rate.
    fn next(&mut self) -> Bytes {
        let pause = Duration::from_millis(1_000 / TRICKLES_PER_SECOND);
        self.pause.as_mut().reset(Instant::now() + pause);
        self.held.split_to(self.piece.min(self.held.len()))
    }
}
