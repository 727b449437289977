//! A client's stream as hyper reads it: one checked request at a time.
//!
//! hyper accepts some heads that another server may read differently, such as one with two equal `Content-Length` fields,
//! and rejects others without saying why. So each head is checked before hyper sees any of it, and bytes after a request
//! are withheld until it is answered. A head that fails the check is replaced with a stand-in, for which the service
//! returns the problem. Chunked bodies are passed in chunks without extensions, so that hyper and this stream agree where
//! they end.

use std::{
    io::{self, Write as _},
    mem::MaybeUninit,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, BytesMut};
use http::{Uri, header};
use refrain::http::Code;
use refrain_http1::{
    Broken, Framing, HeadInfo, Input, Limits, Step, check_start, head_end, parsed,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::front::PRI;
use crate::{
    stream::Io,
    watch::{Client, WatchedStream},
};

/// Request that hyper parses in place of a refused one.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// Longest target that is accepted: the limit of the `http` crate.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;
/// Longest header name that is accepted: the limit of the `http` crate.
const NAME_BYTES_MAX: usize = u16::MAX as usize - 1;
/// Largest length of a body that hyper accepts.
const LENGTH_MAX: u64 = u64::MAX - 2;

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
    stream: WatchedStream<Io>,
    /// Bytes that were read and not passed yet.
    input: Input,
    /// Checked bytes that are passed before those of `input`.
    checked: BytesMut,
    /// Number of bytes of `input` that may be passed without another check.
    free: u64,
    heads: HeadCheck,
    /// Framing of the chunked body that is being passed.
    chunks: Option<Framing>,
    /// Whether everything that hyper wrote was flushed, so that interim responses may be written.
    is_flushed: bool,
    /// Requests that were passed.
    passed: u32,
    /// Whether the client has sent its last byte.
    has_ended: bool,
    refusal: Arc<Refusal>,
    limits: Limits,
    client: Arc<Client>,
}

impl CheckedStream {
    /// A stream from which `input` was already read.
    pub(super) fn new(
        stream: Io,
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
            is_flushed: true,
            passed: 0,
            has_ended: false,
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
    pub(super) fn into_parts(self) -> (Io, BytesMut) {
        (self.stream.stream, self.input.bytes)
    }

    /// Shrinks the buffers between requests, so that an idle connection does not hold the memory of a long one.
    fn release_memory(&mut self) {
        if self.is_between_requests() && self.input.bytes.is_empty() {
            self.input.rest();
            if self.checked.capacity() > 0 {
                self.checked = BytesMut::new();
            }
        }
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
        self.free == 0 && self.is_answered() && !self.client.is_last() && !self.client.is_switched()
    }

    /// Whether all requests that were passed were answered.
    fn is_answered(&self) -> bool {
        self.client.answered() == self.passed
    }

    /// Writes the interim responses that wait, unless hyper is writing a response.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_flushed {
            return Poll::Ready(Ok(()));
        }
        let Some(mut waiting) = self.client.interim.waiting() else {
            return Poll::Ready(Ok(()));
        };
        while !waiting.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &waiting))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            waiting.advance(written);
        }
        self.client.interim.note_written();
        Poll::Ready(Ok(()))
    }

    fn check_head(&mut self) -> bool {
        if self.input.bytes.is_empty() {
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
            if this.is_between_requests() && this.client.is_last() && this.is_answered() {
                // No other request is served, so hyper must not wait for one.
                break;
            }
            if this.is_withheld() {
                // The answer to the current request wakes this task.
                this.client.note_withheld();
                return Poll::Pending;
            }
            this.release_memory();
            if ready!(this.input.poll_read(&mut this.stream, context))? == 0 {
                if !this.is_answered() && !std::mem::replace(&mut this.has_ended, true) {
                    // hyper drops a request at the end of the stream; what needs no waiting is answered before.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
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
        ready!(self.poll_interim(context))?;
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(context))?;
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes only after it has written everything.
        self.is_flushed = true;
        ready!(self.poll_interim(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A head that passed the check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedHead {
    /// Length of the head in bytes.
    pub(super) len: usize,
    /// Framing of the body after it.
    pub(super) framing: Framing,
    /// Whether no other request may follow: the head has both `Transfer-Encoding`, which takes precedence, and `Content-Length`.
    pub(super) is_last: bool,
}

/// Why a head is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedHead {
    pub(super) code: Code,
    /// Explanation for the client.
    pub(super) why: &'static str,
}

impl RefusedHead {
    fn new(code: Code, why: &'static str) -> Self {
        Self { code, why }
    }

    /// The head did not arrive in time.
    fn timed_out() -> Self {
        let why = "The request head did not arrive in time. Nothing was executed.";
        Self::new(Code::RequestTimeout, why)
    }
}

impl From<Broken> for RefusedHead {
    fn from(Broken(why): Broken) -> Self {
        Self::new(Code::RequestMalformed, why)
    }
}

/// State of the check that a connection keeps between reads.
#[derive(Debug, Default)]
pub(super) struct HeadCheck {
    /// Offset of the first line that is not complete yet.
    start: usize,
}

impl HeadCheck {
    /// Checks the head at the front of the input; `None` if it is incomplete.
    ///
    /// # Errors
    /// When the head is malformed, over a limit, or ambiguous.
    pub(super) fn check(
        &mut self,
        input: &[u8],
        limits: Limits,
    ) -> Result<Option<CheckedHead>, RefusedHead> {
        if self.start == 0 {
            check_start(input)?;
        }
        // Servers have always accepted requests whose lines end with LF alone; they are forwarded with CR LF.
        let end = head_end(input, &mut self.start);
        if end.unwrap_or(input.len()) > limits.bytes_max {
            return Err(too_large(input, limits));
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.start = 0;
        let head = &input[..end];
        parsed(limits.fields_max, |fields| check(head, fields).map(Some))
    }
}

/// The refusal for a head that is too large, depending on which part is.
fn too_large(head: &[u8], limits: Limits) -> RefusedHead {
    let line = head.iter().position(|byte| *byte == b'\n');
    let first = line.unwrap_or(head.len());
    if first > TARGET_BYTES_MAX.min(limits.bytes_max) {
        return target_too_long();
    }
    let why = "The request head is too large; send fewer or shorter headers.";
    RefusedHead::new(Code::HeadTooLarge, why)
}

fn target_too_long() -> RefusedHead {
    let why = "The request target is too long; send a shorter one.";
    RefusedHead::new(Code::TargetTooLong, why)
}

fn check<'h>(
    head: &'h [u8],
    fields: &mut [MaybeUninit<httparse::Header<'h>>],
) -> Result<CheckedHead, RefusedHead> {
    let mut parsed = httparse::Request::new(&mut []);
    let complete = httparse::ParserConfig::default()
        .parse_request_with_uninit_headers(&mut parsed, head, fields)
        .map_err(refused)?;
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Broken("The request line is malformed.").into());
    };
    if complete != httparse::Status::Complete(head.len()) {
        return Err(Broken("The end of the request head is ambiguous.").into());
    }
    if method == "PRI" {
        return Err(Broken(PRI).into());
    }
    check_target(target)?;
    if parsed
        .headers
        .iter()
        .any(|field| field.name.len() > NAME_BYTES_MAX)
    {
        return Err(Broken("A header name is too long.").into());
    }
    let info = head_info(parsed.headers)?;
    if info.length.is_some_and(|length| length > LENGTH_MAX) {
        return Err(Broken("Content-Length is too large.").into());
    }
    if info.is_chunked && version == 0 {
        let why = "HTTP/1.0 has no chunked encoding; send Content-Length.";
        return Err(Broken(why).into());
    }
    Ok(CheckedHead {
        len: head.len(),
        framing: match info.is_chunked {
            true => Framing::chunked(),
            false => Framing::Length(info.length.unwrap_or(0)),
        },
        is_last: info.is_chunked && info.length.is_some(),
    })
}

fn refused(error: httparse::Error) -> RefusedHead {
    let why = match error {
        httparse::Error::TooManyHeaders => {
            let why = "The request has too many headers; send fewer.";
            return RefusedHead::new(Code::HeadTooLarge, why);
        }
        httparse::Error::HeaderName => "A header name is malformed.",
        httparse::Error::HeaderValue | httparse::Error::NewLine => "A header line is malformed.",
        httparse::Error::Version => "The HTTP version is not supported; send HTTP/1.1.",
        _ => "The request line is malformed.",
    };
    Broken(why).into()
}

fn check_target(target: &str) -> Result<(), RefusedHead> {
    if target.len() > TARGET_BYTES_MAX {
        return Err(target_too_long());
    }
    // Most targets are plain paths, which need no parser.
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~%?=&".contains(&byte);
    if target.starts_with('/') && target.bytes().all(is_usual) {
        return Ok(());
    }
    // The `http` crate would drop the fragment, and the client's intent would be lost.
    if target.contains('#') {
        return Err(Broken("The request target has a fragment; remove it.").into());
    }
    match Uri::try_from(target) {
        Ok(_) => Ok(()),
        Err(_) => Err(Broken("The request target is malformed.").into()),
    }
}

/// Reads the fields about the length of the body.
fn head_info(fields: &[httparse::Header<'_>]) -> Result<HeadInfo, Broken> {
    let mut info = HeadInfo::default();
    for field in fields {
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
            if field.name.eq_ignore_ascii_case(name.as_str()) {
                info.add_field(&name, field.value)?;
            }
        }
    }
    Ok(info)
}
