//! The head of a message: its end, and what its fields say about the connection and the body.

use std::mem::MaybeUninit;

use http::{HeaderName, header};

use super::Broken;

/// Most fields that are parsed without an allocation.
const FIELDS_USUAL: usize = 100;
/// Most names that a connection caches.
const NAMES_MAX: usize = 32;

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
