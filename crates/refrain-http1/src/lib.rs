//! HTTP/1 message framing, for programs with their own HTTP/1 code: where a head and a body end, and what a head says about that.
//!
//! Input that another program may read differently is never accepted: it is [`Broken`], and its connection must not be used again.
//! Writing messages is left to the caller.
//!
//! ```
//! use bytes::BytesMut;
//! use refrain_http1::{Framing, Step};
//! let mut input = BytesMut::from("3\r\nabc\r\n0\r\n\r\nGET");
//! let mut body = Framing::chunked();
//! assert_eq!(body.next(&mut input)?, Step::Data("abc".into()));
//! assert_eq!(body.next(&mut input)?, Step::End);
//! assert_eq!(input, "GET");
//! # Ok::<(), refrain_http1::Broken>(())
//! ```

use std::{
    io,
    mem::MaybeUninit,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use http::{HeaderName, header};
use tokio::io::{AsyncRead, AsyncReadExt as _};

mod framing;

pub use framing::{Chunks, Framing, Step};

/// Most fields that are parsed without an allocation.
const FIELDS_USUAL: usize = 100;
/// Most names that a connection caches.
const NAMES_MAX: usize = 32;
/// Least free space to read into.
const READ_MIN: usize = 1 << 10;
const READ_USUAL: usize = 8 << 10;
/// Largest read size; it grows up to this while reads fill the buffer.
const READ_MAX: usize = 256 << 10;

/// Malformed message, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

/// Read buffer of a connection.
#[derive(Debug)]
pub struct Input {
    /// Bytes that were read and not consumed yet; consumed from the front.
    pub bytes: BytesMut,
    /// Space that is reserved for the next read.
    room: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            bytes: BytesMut::new(),
            room: READ_USUAL,
        }
    }
}

impl Input {
    /// Reads into the buffer; returns the number of bytes, 0 at the end of the stream.
    pub fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            // Reuse the front of the allocation, which is warm in the processor's cache, unless a piece of it is still held.
            let _ = self.bytes.try_reclaim(self.room);
        }
        if self.bytes.capacity() - self.bytes.len() < READ_MIN {
            self.bytes.reserve(self.room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(io.read_buf(&mut self.bytes)).poll(context))?;
        if read == room {
            self.room = (self.room * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Shrinks a buffer that grew for a long message, so that an idle connection does not hold its memory.
    pub fn rest(&mut self) {
        if self.room > READ_USUAL {
            self.room = READ_USUAL;
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }
}

/// Size limits of a head.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes of the whole head.
    pub bytes_max: usize,
    /// Most fields.
    pub fields_max: usize,
}

/// Checks that a request does not start with an empty line, which some servers skip and others reject.
///
/// # Errors
/// When it does.
pub fn check_start(input: &[u8]) -> Result<(), Broken> {
    match input.first() {
        Some(b'\r' | b'\n') => Err(Broken("The request starts with an empty line; remove it.")),
        _ => Ok(()),
    }
}

/// Finds the end of a head: after its first empty line. `start` is the offset of the first incomplete line, kept between calls.
///
/// Lines may end with LF alone, as servers have always accepted.
pub fn head_end(input: &[u8], start: &mut usize) -> Option<usize> {
    while let Some(len) = memchr::memchr(b'\n', &input[*start..]) {
        let line = &input[*start..*start + len];
        *start += len + 1;
        if matches!(line, [] | [b'\r']) {
            return Some(*start);
        }
    }
    None
}

/// Calls `parse` with space for `fields_max` fields.
pub fn parsed<'h, T>(
    fields_max: usize,
    parse: impl FnOnce(&mut [MaybeUninit<httparse::Header<'h>>]) -> T,
) -> T {
    if fields_max <= FIELDS_USUAL {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
        return parse(&mut fields[..fields_max]);
    }
    parse(&mut vec![MaybeUninit::uninit(); fields_max])
}

/// Cache of the field names of the last head: the next one mostly has the same names in the same positions.
#[derive(Debug, Default)]
pub struct Names(Vec<HeaderName>);

impl Names {
    /// The name of the field at this position of a head.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn of(&mut self, at: usize, name: &[u8]) -> Result<HeaderName, Broken> {
        let is_same = |known: &&HeaderName| known.as_str().as_bytes().eq_ignore_ascii_case(name);
        if let Some(known) = self.0.get(at).filter(is_same) {
            return Ok(known.clone());
        }
        let read =
            HeaderName::from_bytes(name).map_err(|_| Broken("A header name is malformed."))?;
        if at < self.0.len() {
            self.0[at] = read.clone();
        } else if at < NAMES_MAX {
            self.0.push(read.clone());
        }
        Ok(read)
    }
}

/// Connection and framing information from the fields of a head.
#[derive(Debug, Default)]
pub struct HeadInfo {
    /// The connection ends after this message (`Connection: close`).
    pub closes: bool,
    /// The connection stays open, even in HTTP/1.0 (`Connection: keep-alive`).
    pub keeps_alive: bool,
    /// Length of the body (`Content-Length`).
    pub length: Option<u64>,
    /// The body is chunked (`Transfer-Encoding: chunked`).
    pub is_chunked: bool,
    /// The client waits for a 100 before it sends the body (`Expect: 100-continue`).
    pub expects_continue: bool,
    /// The client asks for another protocol (`Upgrade`).
    pub upgrades: bool,
}

impl HeadInfo {
    /// Evaluates a field.
    ///
    /// # Errors
    /// When it is malformed, names an unsupported transfer encoding, or repeats the length of the body.
    pub fn add_field(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Broken> {
        match *name {
            header::CONNECTION => {
                self.closes |= has_token(value, b"close");
                self.keeps_alive |= has_token(value, b"keep-alive");
            }
            header::CONTENT_LENGTH => {
                let before = self.length.replace(length(value)?);
                if before.is_some() {
                    return Err(Broken("Content-Length is sent twice; send it once."));
                }
            }
            header::TRANSFER_ENCODING => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    let message =
                        "Transfer-Encoding is not supported; send chunked, or Content-Length.";
                    return Err(Broken(message));
                }
                self.is_chunked = true;
            }
            header::EXPECT => {
                self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
            }
            header::UPGRADE => self.upgrades = true,
            _ => {}
        }
        Ok(())
    }
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    let mut tokens = value.split(|byte| *byte == b',');
    tokens.any(|it| it.trim_ascii().eq_ignore_ascii_case(token))
}

fn length(value: &[u8]) -> Result<u64, Broken> {
    let text = std::str::from_utf8(value).ok();
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.ok_or(Broken("Content-Length is not a number."))
}
