//! A message on its way from one side to the other: as it comes, cut, trickling, or heard by nobody.

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

/// How much is gathered before it is written.
const GATHERED_MAX: usize = 16 << 10;
/// What is longer is written from where it was read to.
const COPIED_MAX: usize = 4 << 10;
/// How long what is before a cut has to leave.
const BEFORE_THE_CUT: Duration = Duration::from_millis(50);
/// How often a trickling body gives out a piece.
const TRICKLES_PER_SECOND: u64 = 20;

/// A message on its way.
#[derive(Debug)]
pub(super) struct Flow {
    /// What is written next: the head, and what was gathered of the body.
    out: Vec<u8>,
    /// How much of that was written.
    written: usize,
    /// Where the body ends that is read.
    framing: Framing,
    /// Whether the body leaves in chunks.
    is_chunked: bool,
    manner: Manner,
    /// Nothing more comes of the body.
    is_gathered: bool,
    /// Whether any of it has left.
    has_begun: bool,
    /// Whether all of it has left.
    is_sent: bool,
    /// Whether no more of it is taken.
    is_given_up: bool,
}

/// How a message goes on.
#[derive(Debug)]
pub(super) enum Manner {
    AsItComes,
    /// Its body breaks off behind so many bytes.
    Cut(u64),
    /// What is before the cut has to leave first.
    Cutting(Pin<Box<Sleep>>),
    Slow(Box<Trickle>),
    Unheard,
}

/// A body that trickles.
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

    /// So many bytes a second.
    pub(super) fn slow(rate: u64) -> Self {
        let piece = (rate / TRICKLES_PER_SECOND).max(1);
        Self::Slow(Box::new(Trickle {
            held: Bytes::new(),
            piece: usize::try_from(piece).unwrap_or(usize::MAX),
            pause: Box::pin(sleep(Duration::ZERO)),
        }))
    }
}

/// Why a message does not go on.
#[derive(Debug)]
pub(super) enum Stuck {
    /// Who sends it broke off, or what came is no body.
    From(io::Error),
    /// Who gets it takes no more.
    To(io::Error),
    /// It was cut on purpose.
    Cut,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From(error) | Self::To(error) => error.fmt(f),
            Self::Cut => f.write_str("cut on purpose"),
        }
    }
}

impl From<Broken> for Stuck {
    fn from(broken: Broken) -> Self {
        Self::From(io::Error::new(io::ErrorKind::InvalidData, broken))
    }
}

impl Flow {
    /// A message of which nothing has left. `head` is all that comes before the body.
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

    /// A message that is there as a whole.
    pub(super) fn whole(message: Vec<u8>) -> Self {
        Self::new(message, Framing::Length(0), false, Manner::AsItComes)
    }

    /// Whether any of it has left.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether all of it has left: what comes next is another message.
    pub(super) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether all of it has left, or no more of it is taken.
    pub(super) fn is_over(&self) -> bool {
        self.is_sent || self.is_given_up
    }

    /// No more of it is taken.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Whether nothing of the body is left to be read.
    pub(super) fn is_read(&self) -> bool {
        self.is_gathered || self.framing.is_over()
    }

    /// Takes in what was read of a message that is to be had as a whole; all of it once that is there.
    ///
    /// # Errors
    /// When what came is no body.
    pub(super) fn take_whole(&mut self, input: &mut BytesMut) -> Result<Option<Vec<u8>>, Stuck> {
        self.gather(input, usize::MAX)?;
        Ok(self.is_gathered.then(|| std::mem::take(&mut self.out)))
    }

    /// How much of it is gathered.
    pub(super) fn gathered_len(&self) -> usize {
        self.out.len()
    }

    /// Takes from one side and gives to the other what there is and can be; ready once all of it has left.
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

    /// Writes a long piece of a body that goes on as it is.
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

    /// Ready when the next piece may go.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.manner {
            Manner::Slow(trickle) => trickle.pause.as_mut().poll(context),
            _ => Poll::Ready(()),
        }
    }

    /// Takes in what was read of the body, up to a limit; whether more has to be read before it can go on.
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
            // Writing to memory does not fail.
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

    /// Nothing more comes from who sends it.
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
    /// The next piece; the pause behind it makes up the rate.
    fn next(&mut self) -> Bytes {
        let pause = Duration::from_millis(1_000 / TRICKLES_PER_SECOND);
        self.pause.as_mut().reset(Instant::now() + pause);
        self.held.split_to(self.piece.min(self.held.len()))
    }
}
