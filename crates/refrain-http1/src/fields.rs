//! The fields of a head, and what they say about the connection and the body.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::Broken;

/// Fields of which no allocation is made to read them.
const FIELDS_USUAL: usize = 100;
/// Names that a connection remembers.
const NAMES_MAX: usize = 32;

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// All of it.
    pub bytes_max: usize,
    /// Its fields.
    pub fields_max: usize,
}

/// Which ends of lines are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// CR and LF.
    Whole,
    /// LF, with or without CR.
    Either,
}

/// Checks that a request does not start with an empty line, which some servers skip and others refuse.
///
/// # Errors
/// When it does.
pub fn check_start(input: &[u8]) -> Result<(), Broken> {
    match input.first() {
        Some(b'\r' | b'\n') => Err(Broken("The request starts with an empty line; remove it.")),
        _ => Ok(()),
    }
}

/// Where a head ends: behind its first empty line. `start` is where the line starts up to which was looked before.
///
/// # Errors
/// When a line ends otherwise than it may.
pub fn head_end(input: &[u8], start: &mut usize, lines: Lines) -> Result<Option<usize>, Broken> {
    while let Some(len) = memchr::memchr(b'\n', &input[*start..]) {
        let line = &input[*start..*start + len];
        *start += len + 1;
        match line {
            [b'\r'] => return Ok(Some(*start)),
            [.., b'\r'] => {}
            _ if lines == Lines::Whole => {
                return Err(Broken("A line of the head ends without CR."));
            }
            [] => return Ok(Some(*start)),
            _ => {}
        }
    }
    Ok(None)
}

/// Lends room for as many fields as there may be.
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

/// The names of the fields of the last head, of which the next one mostly has the same in the same places.
#[derive(Debug, Default)]
pub struct Names(Vec<HeaderName>);

impl Names {
    /// The name of the field at this place of a head.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn of(&mut self, at: usize, name: &[u8]) -> Result<HeaderName, Broken> {
        let is_same = |known: &&HeaderName| known.as_str().as_bytes().eq_ignore_ascii_case(name);
        if let Some(known) = self.0.get(at).filter(is_same) {
            return Ok(known.clone());
        }
        let read = HeaderName::from_bytes(name)
            .map_err(|_| Broken("The name of a field is malformed."))?;
        if at < self.0.len() {
            self.0[at] = read.clone();
        } else if at < NAMES_MAX {
            self.0.push(read.clone());
        }
        Ok(read)
    }
}

/// What the fields say about the connection and the body.
#[derive(Debug, Default)]
pub struct Said {
    /// The connection ends behind this message.
    pub closes: bool,
    /// The connection goes on, where it would not by itself.
    pub keeps_alive: bool,
    /// How long the body is.
    pub length: Option<u64>,
    /// The body comes in chunks.
    pub is_chunked: bool,
    /// The body is sent once somebody wants it.
    pub expects_continue: bool,
    /// Something else is to be spoken from now on.
    pub upgrades: bool,
}

/// Reads the fields of a head, of which `head` is all, into `headers`, which are empty.
///
/// # Errors
/// When one is malformed, or they say two things about the length of the body.
pub fn collect(
    head: &Bytes,
    fields: &[httparse::Header<'_>],
    names: &mut Names,
    headers: &mut HeaderMap,
) -> Result<Said, Broken> {
    // One is going to be added on the way.
    headers.reserve(fields.len() + 1);
    let mut said = Said::default();
    for (at, field) in fields.iter().enumerate() {
        let name = names.of(at, field.name.as_bytes())?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value))
            .map_err(|_| Broken("A field is malformed."))?;
        said.hear(&name, field.value)?;
        headers.append(name, value);
    }
    Ok(said)
}

impl Said {
    /// Takes in what a field says.
    ///
    /// # Errors
    /// When it is malformed, or another one has said how long the body is.
    pub fn hear(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Broken> {
        match *name {
            header::CONNECTION => {
                self.closes |= has_token(value, b"close");
                self.keeps_alive |= has_token(value, b"keep-alive");
            }
            header::CONTENT_LENGTH => {
                let before = self.length.replace(length(value)?);
                if before.is_some() {
                    return Err(Broken("Content-Length stands twice; send it once."));
                }
            }
            header::TRANSFER_ENCODING => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    let message = "Transfer-Encoding is not understood; send chunked, or a length.";
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
    length.ok_or(Broken("Content-Length is no number."))
}
