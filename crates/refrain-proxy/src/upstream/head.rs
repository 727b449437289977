//! Parses the head of a response.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, Version};
use hyper::ext::ReasonPhrase;

use crate::http1::{Broken, Framing, Limits, Lines, Names, Said, collect, head_end, parsed};

/// The head of a response, and the framing of its body.
#[derive(Debug)]
pub(crate) struct UpstreamHead {
    pub(crate) status: StatusCode,
    /// Reason phrase of the upstream, if it is not the standard one.
    pub(crate) reason: Option<ReasonPhrase>,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
    /// Whether the connection can carry another request once the body has ended.
    pub(crate) stays_open: bool,
}

/// Parser state that a connection keeps between reads.
#[derive(Debug, Default)]
pub(crate) struct UpstreamHeadParser {
    names: Names,
    /// Offset of the first line that is not complete yet.
    start: usize,
}

impl UpstreamHeadParser {
    /// Takes a head off the front of the input; `None` if it is incomplete.
    ///
    /// # Errors
    /// When the head is malformed, over a limit, or ambiguous.
    pub(crate) fn take(
        &mut self,
        input: &mut BytesMut,
        is_to_head: bool,
        limits: Limits,
    ) -> Result<Option<UpstreamHead>, Broken> {
        let end = head_end(input, &mut self.start, Lines::Whole)?;
        if end.unwrap_or(input.len()) > limits.bytes_max {
            return Err(Broken("the response head is too large"));
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.start = 0;
        let bytes = input.split_to(end).freeze();
        parsed(limits.fields_max, |fields| {
            read(&bytes, fields, &mut self.names, is_to_head).map(Some)
        })
    }
}

impl UpstreamHead {
    /// Whether it is an interim response: 1xx except 101.
    pub(crate) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

fn read<'h>(
    bytes: &'h Bytes,
    fields: &mut [MaybeUninit<httparse::Header<'h>>],
    names: &mut Names,
    is_to_head: bool,
) -> Result<UpstreamHead, Broken> {
    let mut parsed = httparse::Response::new(&mut []);
    let complete = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, bytes, fields)
        .map_err(broken)?;
    let (Some(version), Some(code), Some(reason)) = (parsed.version, parsed.code, parsed.reason)
    else {
        return Err(Broken("the response has no status"));
    };
    if complete != httparse::Status::Complete(bytes.len()) {
        return Err(Broken("the end of the response head is ambiguous"));
    }
    let status = StatusCode::from_u16(code).map_err(|_| Broken("invalid status code"))?;
    let version = match version {
        1 => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let mut headers = HeaderMap::new();
    let said = collect(bytes, parsed.headers, names, &mut headers)?;
    let framing = framing(status, version, is_to_head, &said)?;
    let is_canonical = status.canonical_reason() == Some(reason);
    let own = || ReasonPhrase::try_from(bytes.slice_ref(reason.as_bytes())).ok();
    Ok(UpstreamHead {
        status,
        reason: if is_canonical { None } else { own() },
        headers,
        stays_open: version == Version::HTTP_11 && !said.closes && framing != Framing::UntilClose,
        framing,
    })
}

fn broken(error: httparse::Error) -> Broken {
    Broken(match error {
        httparse::Error::TooManyHeaders => "the response has too many headers",
        httparse::Error::Status | httparse::Error::Version => "malformed status line",
        _ => "malformed response header",
    })
}

fn framing(
    status: StatusCode,
    version: Version,
    is_to_head: bool,
    said: &Said,
) -> Result<Framing, Broken> {
    if said.is_chunked && (said.length.is_some() || version == Version::HTTP_10) {
        return Err(Broken(
            "the response is chunked and has Content-Length, or is chunked in HTTP/1.0",
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
