//! A client's stream as hyper reads it: one checked request at a time.
//!
//! Bytes after a request are withheld until it is answered, so each head is checked before hyper sees any of it.
//! A head that fails the check is replaced with a stand-in, for which the service returns the problem.
//! Chunked bodies are passed in chunks without extensions, so that hyper and this stream agree where they end.

use std::{
    io::{self, Write as _},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, BytesMut};
use refrain_http1::{Framing, Input, Limits, Step};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::head::{HeadCheck, RefusedHead};
use crate::watch::{Client, WatchedStream};

/// Request that hyper parses in place of a refused one.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// The refusal of the head that was replaced with the stand-in.
#[derive(Debug, Default)]
pub(super) struct Refusal(Mutex<Option<RefusedHead>>);

impl Refusal {
    pub(super) fn take(&self) -> Option<RefusedHead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, refused: RefusedHead) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
    }
}

/// A client's stream that passes one checked request at a time to hyper.
pub(super) struct CheckedStream {
    stream: WatchedStream<TcpStream>,
    /// Bytes that were read and not passed yet.
    input: Input,
    /// Checked bytes that are passed before those of `input`.
    checked: BytesMut,
    /// Number of bytes of `input` that may be passed without another check.
    free: u64,
    heads: HeadCheck,
    /// Framing of the chunked body that is being passed.
    chunks: Option<Framing>,
    /// Requests that were passed.
    passed: u32,
    refusal: Arc<Refusal>,
    limits: Limits,
    client: Arc<Client>,
}

impl CheckedStream {
    /// A stream from which `input` was already read.
    pub(super) fn new(
        stream: TcpStream,
        input: Input,
        client: &Arc<Client>,
        limits: Limits,
        refusal: Arc<Refusal>,
    ) -> Self {
        Self {
            stream: WatchedStream {
                stream,
                client: client.clone(),
            },
            input,
            checked: BytesMut::new(),
            free: 0,
            heads: HeadCheck::default(),
            chunks: None,
            passed: 0,
            refusal,
            limits,
            client: client.clone(),
        }
    }

    /// Whether the client has sent nothing but whole requests, and all of them were passed.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_between_requests() && self.input.bytes.is_empty()
    }

    /// Whether every request was passed to its end.
    fn is_between_requests(&self) -> bool {
        self.free == 0 && self.chunks.is_none() && self.checked.is_empty()
    }

    /// Reads and discards bytes; returns their number, 0 at the end of the stream.
    pub(super) fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        self.input.bytes.clear();
        let polled = self.input.poll_read(&mut self.stream, context);
        polled.map(|read| read.unwrap_or(0))
    }

    /// The stream, and the bytes that were read and not passed.
    pub(super) fn into_parts(self) -> (TcpStream, BytesMut) {
        (self.stream.stream, self.input.bytes)
    }

    /// Passes the bytes that may be passed; returns whether there were any.
    fn pass(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        if !self.checked.is_empty() {
            let len = self.checked.len().min(buffer.remaining());
            buffer.put_slice(&self.checked[..len]);
            self.checked.advance(len);
            return true;
        }
        let free = usize::try_from(self.free).unwrap_or(usize::MAX);
        let len = free.min(self.input.bytes.len()).min(buffer.remaining());
        buffer.put_slice(&self.input.bytes[..len]);
        self.input.bytes.advance(len);
        self.free -= len as u64;
        len > 0
    }

    /// Checks the next bytes; returns whether some may be passed.
    fn check(&mut self) -> io::Result<bool> {
        let Some(framing) = &mut self.chunks else {
            return Ok(self.is_turn() && self.check_head());
        };
        let is_more = pass_chunk(framing, &mut self.input.bytes, &mut self.checked)?;
        if framing.is_over() {
            self.chunks = None;
        }
        Ok(is_more)
    }

    /// Whether the next head may be passed: all requests before it were answered.
    fn is_turn(&self) -> bool {
        self.free == 0 && !self.client.is_last() && self.client.answered() == self.passed
    }

    fn check_head(&mut self) -> bool {
        if self.input.bytes.is_empty() {
            self.input.rest();
            return false;
        }
        let head = match self.heads.check(&self.input.bytes, self.limits) {
            Ok(Some(head)) => head,
            Ok(None) if self.client.has_timed_out() => {
                return self.refuse(RefusedHead::timed_out());
            }
            Ok(None) => {
                self.client.note_head();
                return false;
            }
            Err(refused) => return self.refuse(refused),
        };
        self.passed = self.passed.wrapping_add(1);
        if head.is_last {
            self.client.note_last();
        }
        match head.framing {
            Framing::Length(length) => self.free = length.saturating_add(head.len as u64),
            framing => {
                self.checked.unsplit(self.input.bytes.split_to(head.len));
                self.chunks = Some(framing);
            }
        }
        true
    }

    fn refuse(&mut self, refused: RefusedHead) -> bool {
        self.refusal.set(refused);
        self.checked.extend_from_slice(STAND_IN);
        self.passed = self.passed.wrapping_add(1);
        self.client.note_last();
        true
    }

    /// Whether bytes after the current request were read, and have to wait until it is answered.
    pub(super) fn is_withheld(&self) -> bool {
        self.is_between_requests() && !self.input.bytes.is_empty() && !self.is_turn()
    }
}

/// Moves the next part of a chunked body to `checked`; returns whether there was one.
fn pass_chunk(
    framing: &mut Framing,
    input: &mut BytesMut,
    checked: &mut BytesMut,
) -> io::Result<bool> {
    let malformed = |broken| io::Error::new(io::ErrorKind::InvalidData, broken);
    match framing.next(input).map_err(malformed)? {
        Step::More => return Ok(false),
        Step::Data(data) => {
            write!(checked.writer(), "{:x}\r\n", data.len())?;
            checked.extend_from_slice(&data);
            checked.extend_from_slice(b"\r\n");
        }
        Step::Trailers(trailers) => {
            checked.extend_from_slice(b"0\r\n");
            for (name, value) in &trailers {
                checked.extend_from_slice(name.as_str().as_bytes());
                checked.extend_from_slice(b": ");
                checked.extend_from_slice(value.as_bytes());
                checked.extend_from_slice(b"\r\n");
            }
            checked.extend_from_slice(b"\r\n");
        }
        Step::End => checked.extend_from_slice(b"0\r\n\r\n"),
    }
    Ok(true)
}

impl AsyncRead for CheckedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.pass(buffer) {
            if this.check()? {
                continue;
            }
            if this.is_withheld() {
                // The answer to the current request wakes this task.
                this.client.note_withheld();
                return Poll::Pending;
            }
            if ready!(this.input.poll_read(&mut this.stream, context))? == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CheckedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
