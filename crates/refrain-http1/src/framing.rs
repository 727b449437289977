//! Finds the end of a message body.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Broken;

/// Longest line with the size of a chunk, extensions included.
const SIZE_LINE_MAX: usize = 1 << 10;
/// Most bytes of chunk extensions in one body: they are ignored, but still cost time.
const EXTENSION_BYTES_MAX: usize = 16 << 10;
const TRAILER_BYTES_MAX: usize = 16 << 10;
const TRAILER_FIELDS_MAX: usize = 64;

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// In chunks.
    Chunked {
        /// Position within the chunks.
        at: Chunks,
        /// Bytes that extensions may still take.
        extensions_max: usize,
    },
    /// It ends with the connection.
    UntilClose,
}

/// Position of a body within its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunks {
    /// Before the line with the size of a chunk.
    Size,
    /// Within a chunk, of which this many bytes are left.
    Within(u64),
    /// Before the line ending after a chunk.
    LineEnd,
    /// After the last chunk.
    Trailers,
    /// After the whole body.
    Over,
}

/// The next part of a body.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// A piece of the body.
    Data(Bytes),
    /// Trailers after the last chunk.
    Trailers(HeaderMap),
    /// More bytes must be read first.
    More,
    /// The body has ended.
    End,
}

impl Framing {
    /// Chunked framing, before the first chunk.
    pub fn chunked() -> Self {
        Self::Chunked {
            at: Chunks::Size,
            extensions_max: EXTENSION_BYTES_MAX,
        }
    }

    /// Whether the body has ended.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Self::Length(0)
                | Self::Chunked {
                    at: Chunks::Over,
                    ..
                }
        )
    }

    /// Takes the next part of the body off the front of the input.
    ///
    /// # Errors
    /// When the chunks are malformed.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Step, Broken> {
        match self {
            Self::Length(left) => Ok(data(input, left)),
            Self::Chunked { at, extensions_max } => at.next(input, extensions_max),
            Self::UntilClose if input.is_empty() => Ok(Step::More),
            Self::UntilClose => Ok(Step::Data(input.split().freeze())),
        }
    }

    /// Whether the body is complete if the connection ends now.
    pub fn ends_with_connection(&self) -> bool {
        self.is_over() || *self == Self::UntilClose
    }
}

/// Takes as many of the `left` bytes as are available.
fn data(input: &mut BytesMut, left: &mut u64) -> Step {
    if *left == 0 {
        return Step::End;
    }
    let len = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    if len == 0 {
        return Step::More;
    }
    *left -= len as u64;
    Step::Data(input.split_to(len).freeze())
}

impl Chunks {
    fn next(&mut self, input: &mut BytesMut, extensions_max: &mut usize) -> Result<Step, Broken> {
        loop {
            match self {
                Self::Size => match take_size(input, extensions_max)? {
                    None => return Ok(Step::More),
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Within(size),
                },
                Self::Within(0) => *self = Self::LineEnd,
                Self::Within(left) => return Ok(data(input, left)),
                Self::LineEnd => match take_line_end(input)? {
                    false => return Ok(Step::More),
                    true => *self = Self::Size,
                },
                Self::Trailers => {
                    let Some(trailers) = take_trailers(input)? else {
                        return Ok(Step::More);
                    };
                    *self = Self::Over;
                    if !trailers.is_empty() {
                        return Ok(Step::Trailers(trailers));
                    }
                }
                Self::Over => return Ok(Step::End),
            }
        }
    }
}

/// The first line without its CR LF; `None` if it is incomplete. A bare LF is an error.
fn line(input: &[u8], bytes_max: usize) -> Result<Option<&[u8]>, Broken> {
    let within = &input[..input.len().min(bytes_max)];
    match memchr::memchr(b'\n', within) {
        None if within.len() < input.len() => Err(Broken("a line of the chunked body is too long")),
        None => Ok(None),
        Some(at) => match within[..at].split_last() {
            Some((b'\r', line)) => Ok(Some(line)),
            _ => Err(Broken("a line of the chunked body ends without CR")),
        },
    }
}

fn take_size(input: &mut BytesMut, extensions_max: &mut usize) -> Result<Option<u64>, Broken> {
    let Some(line) = line(input, SIZE_LINE_MAX)? else {
        return Ok(None);
    };
    let digits = memchr::memchr(b';', line).unwrap_or(line.len());
    let (digits, extensions) = line.split_at(digits);
    let left = extensions_max.checked_sub(extensions.len());
    *extensions_max = left.ok_or(Broken("the chunk extensions are too long"))?;
    let (read, size) = (line.len() + 2, size(digits, extensions)?);
    input.advance(read);
    Ok(Some(size))
}

/// Parses a chunk size: hexadecimal digits, followed by blanks only.
fn size(digits: &[u8], extensions: &[u8]) -> Result<u64, Broken> {
    let bad = Broken("invalid chunk size");
    let blanks = digits.iter().rev().take_while(|byte| b" \t".contains(byte));
    let digits = &digits[..digits.len() - blanks.count()];
    let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    if digits.is_empty() || digits.len() > 16 || !extensions.iter().all(is_text) {
        return Err(bad);
    }
    let mut size = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(16).ok_or(bad)?;
        size = size << 4 | u64::from(digit);
    }
    Ok(size)
}

fn take_line_end(input: &mut BytesMut) -> Result<bool, Broken> {
    match &input[..] {
        [b'\r', b'\n', ..] => {
            input.advance(2);
            Ok(true)
        }
        [] | [b'\r'] => Ok(false),
        _ => Err(Broken("a chunk is longer than its size")),
    }
}

fn take_trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, Broken> {
    let mut end = 0;
    loop {
        let Some(line) = line(&input[end..], TRAILER_BYTES_MAX)? else {
            return Ok(None);
        };
        end += line.len() + 2;
        if line.is_empty() {
            break;
        }
        if end > TRAILER_BYTES_MAX {
            return Err(Broken("the trailers are too large"));
        }
    }
    let bytes = input.split_to(end).freeze();
    trailers(&bytes).map(Some)
}

fn trailers(bytes: &Bytes) -> Result<HeaderMap, Broken> {
    let bad = Broken("the trailers are malformed");
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(bytes, &mut fields)
    else {
        return Err(bad);
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| bad)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| bad)?;
        trailers.append(name, value);
    }
    Ok(trailers)
}
