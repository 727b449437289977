//! The head of an answer.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use hyper::ext::ReasonPhrase;

use super::{Broken, Framing};

/// Fields of which no allocation is made to read them.
const FIELDS_USUAL: usize = 100;

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) bytes_max: usize,
    pub(crate) fields_max: usize,
}

/// The head of an answer, and what it says about the bytes behind it.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    /// What the upstream calls the status, where that is not what everybody calls it.
    pub(crate) reason: Option<ReasonPhrase>,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
    /// Whether the connection can carry another request once the body has ended.
    pub(crate) stays_open: bool,
}

impl Head {
    /// Takes a head off the front of what was read; `None` when it is not all there.
    ///
    /// # Errors
    /// When it is malformed, over a limit, or could be read in two ways.
    pub(crate) fn take(
        input: &mut BytesMut,
        is_to_head: bool,
        limits: Limits,
    ) -> Result<Option<Self>, Broken> {
        let end = end(input)?;
        if end.unwrap_or(input.len()) > limits.bytes_max {
            return Err(Broken("the head of the answer is too large"));
        }
        let Some(end) = end else {
            return Ok(None);
        };
        let bytes = input.split_to(end).freeze();
        if limits.fields_max <= FIELDS_USUAL {
            let mut fields = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
            return read(&bytes, &mut fields[..limits.fields_max], is_to_head).map(Some);
        }
        let mut fields = vec![MaybeUninit::uninit(); limits.fields_max];
        read(&bytes, &mut fields, is_to_head).map(Some)
    }

    /// Whether it only comes before the answer.
    pub(crate) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Where the head ends: behind its first empty line. A line ends with both its characters, or somebody else may end it elsewhere.
fn end(input: &[u8]) -> Result<Option<usize>, Broken> {
    let mut start = 0;
    while let Some(len) = memchr::memchr(b'\n', &input[start..]) {
        let at = start + len;
        match len.checked_sub(1) {
            Some(0) if input[start] == b'\r' => return Ok(Some(at + 1)),
            Some(before) if input[start + before] == b'\r' => start = at + 1,
            _ => return Err(Broken("a line of the answer's head ends without CR")),
        }
    }
    Ok(None)
}

fn read<'h>(
    bytes: &'h Bytes,
    fields: &mut [MaybeUninit<httparse::Header<'h>>],
    is_to_head: bool,
) -> Result<Head, Broken> {
    let mut parsed = httparse::Response::new(&mut []);
    let complete = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, bytes, fields)
        .map_err(broken)?;
    let (Some(version), Some(code), Some(reason)) = (parsed.version, parsed.code, parsed.reason)
    else {
        return Err(Broken("the answer has no status"));
    };
    if complete != httparse::Status::Complete(bytes.len()) {
        return Err(Broken("the answer's head does not end where it seems to"));
    }
    let status = StatusCode::from_u16(code).map_err(|_| Broken("the status is none"))?;
    let version = match version {
        1 => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let (headers, said) = collect(bytes, parsed.headers)?;
    let framing = framing(status, version, is_to_head, &said)?;
    let is_canonical = status.canonical_reason() == Some(reason);
    let own = || ReasonPhrase::try_from(bytes.slice_ref(reason.as_bytes())).ok();
    Ok(Head {
        status,
        reason: if is_canonical { None } else { own() },
        headers,
        stays_open: version == Version::HTTP_11 && !said.closes && framing != Framing::UntilClose,
        framing,
    })
}

fn broken(error: httparse::Error) -> Broken {
    Broken(match error {
        httparse::Error::TooManyHeaders => "the answer has too many headers",
        httparse::Error::Status | httparse::Error::Version => "the answer's first line is none",
        _ => "a header of the answer is malformed",
    })
}

/// What the headers say about the connection and the body.
#[derive(Debug, Default)]
struct Said {
    closes: bool,
    length: Option<u64>,
    is_chunked: bool,
}

fn collect(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<(HeaderMap, Said), Broken> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    let mut said = Said::default();
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| Broken("a header of the answer has no name"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value))
            .map_err(|_| Broken("a header of the answer has no value"))?;
        match name {
            header::CONNECTION => said.closes |= closes(field.value),
            header::CONTENT_LENGTH => {
                let length = length(field.value)?;
                if said.length.replace(length).is_some_and(|it| it != length) {
                    return Err(Broken("the answer has two lengths"));
                }
                headers.insert(name, value);
                continue;
            }
            header::TRANSFER_ENCODING => {
                if said.is_chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Broken("the answer's Transfer-Encoding is not understood"));
                }
                said.is_chunked = true;
            }
            _ => {}
        }
        headers.append(name, value);
    }
    Ok((headers, said))
}

fn closes(value: &[u8]) -> bool {
    let mut tokens = value.split(|byte| *byte == b',');
    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"close"))
}

fn length(value: &[u8]) -> Result<u64, Broken> {
    let text = std::str::from_utf8(value).ok();
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.ok_or(Broken("the answer's Content-Length is no number"))
}

fn framing(
    status: StatusCode,
    version: Version,
    is_to_head: bool,
    said: &Said,
) -> Result<Framing, Broken> {
    if said.is_chunked && (said.length.is_some() || version == Version::HTTP_10) {
        return Err(Broken(
            "the answer has a length and chunks, or chunks of old",
        ));
    }
    let is_bare = status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    Ok(match said.length {
        _ if is_bare || is_to_head => Framing::Length(0),
        _ if said.is_chunked => Framing::chunked(),
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    })
}
