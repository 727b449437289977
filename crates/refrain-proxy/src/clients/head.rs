//! Parses the head of a request.

use std::{cell::Cell, mem::MaybeUninit};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Uri, Version, header, request};
use refrain::http::Code;

use crate::{
    faults,
    http1::{Broken, Framing, Limits, Lines, Names, Said, check_start, collect, head_end, parsed},
};

/// Longest target that is accepted: the limit of the `http` crate.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;
/// Largest capacity of a header map that is kept for the next head.
const SPARE_FIELDS_MAX: usize = 64;

thread_local! {
    /// Emptied head of an earlier request, which the next one reuses instead of allocating.
    static SPARE: Cell<Option<Box<request::Parts>>> = const { Cell::new(None) };
}

/// Keeps a head that is no longer needed, for the next request to reuse.
pub(super) fn reuse(mut parts: Box<request::Parts>) {
    if parts.headers.capacity() > SPARE_FIELDS_MAX {
        return;
    }
    // Drop all references to the read buffer, so that its memory can be reused.
    parts.headers.clear();
    parts.extensions.clear();
    parts.uri = Uri::default();
    SPARE.set(Some(parts));
}

fn spare() -> Box<request::Parts> {
    let new = || Box::new(Request::new(()).into_parts().0);
    SPARE.take().unwrap_or_else(new)
}

/// The head of a request, and the framing of its body.
#[derive(Debug)]
pub(super) struct RequestHead {
    /// Boxed, because it is moved often.
    pub(super) parts: Box<request::Parts>,
    pub(super) framing: Framing,
    pub(super) asked: RequestTraits,
}

/// Properties of a request that decide how its response is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTraits {
    /// HTTP version of the client.
    pub(super) version: Version,
    /// Whether the method is HEAD, so that the response has no body.
    pub(super) is_to_head: bool,
    pub(super) keeps_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends its body.
    pub(super) expects_continue: bool,
    pub(super) upgrades: bool,
}

impl RequestTraits {
    /// Defaults for a request that could not be parsed.
    pub(super) fn nothing() -> Self {
        Self {
            version: Version::HTTP_11,
            is_to_head: false,
            keeps_alive: false,
            expects_continue: false,
            upgrades: false,
        }
    }
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
    pub(super) fn timed_out() -> Self {
        let why = "The request head did not arrive in time. Nothing was executed.";
        Self::new(Code::RequestTimeout, why)
    }
}

impl From<Broken> for RefusedHead {
    fn from(Broken(why): Broken) -> Self {
        Self::new(Code::RequestMalformed, why)
    }
}

/// Parser state that a connection keeps between reads.
#[derive(Debug, Default)]
pub(super) struct RequestHeadParser {
    names: Names,
    /// Offset of the first line that is not complete yet.
    start: usize,
}

impl RequestHeadParser {
    /// Takes a head off the front of the input; `None` if it is incomplete.
    ///
    /// # Errors
    /// When the head is malformed, over a limit, or ambiguous.
    pub(super) fn take(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<RequestHead>, RefusedHead> {
        if self.start == 0 {
            check_start(input)?;
        }
        // Servers have always accepted requests whose lines end with LF alone; they are forwarded with CR LF.
        let end = head_end(input, &mut self.start, Lines::Either)?;
        if end.unwrap_or(input.len()) > limits.bytes_max {
            return Err(too_large(input, limits));
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.start = 0;
        let bytes = input.split_to(end).freeze();
        parsed(limits.fields_max, |fields| {
            read(&bytes, fields, &mut self.names).map(Some)
        })
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

fn read<'h>(
    bytes: &'h Bytes,
    fields: &mut [MaybeUninit<httparse::Header<'h>>],
    names: &mut Names,
) -> Result<RequestHead, RefusedHead> {
    let mut parsed = httparse::Request::new(&mut []);
    let complete = httparse::ParserConfig::default()
        .parse_request_with_uninit_headers(&mut parsed, bytes, fields)
        .map_err(refused)?;
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Broken("The request line is malformed.").into());
    };
    if complete != httparse::Status::Complete(bytes.len()) {
        return Err(Broken("The end of the request head is ambiguous.").into());
    }
    let mut parts = spare();
    parts.method = method_of(method)?;
    parts.uri = target_of(bytes.slice_ref(target.as_bytes()))?;
    parts.version = match version {
        1 => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let said = collect(bytes, parsed.headers, names, &mut parts.headers)?;
    let framing = framing(&parts, &said)?;
    if said.is_chunked && said.length.is_some() {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let asked = request_traits(&parts, &said);
    Ok(RequestHead {
        parts,
        framing,
        asked,
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

fn method_of(method: &str) -> Result<Method, Broken> {
    if method == "PRI" {
        return Err(Broken(faults::PRI));
    }
    Method::from_bytes(method.as_bytes()).map_err(|_| Broken("Malformed method."))
}

fn target_of(target: Bytes) -> Result<Uri, RefusedHead> {
    if target.len() > TARGET_BYTES_MAX {
        return Err(target_too_long());
    }
    // The `http` crate would drop the fragment, and the client's intent would be lost.
    if target.contains(&b'#') {
        return Err(Broken("The request target has a fragment; remove it.").into());
    }
    let target = Uri::from_maybe_shared(target);
    target.map_err(|_| Broken("The request target is malformed.").into())
}

fn framing(parts: &request::Parts, said: &Said) -> Result<Framing, Broken> {
    match said.length {
        _ if said.is_chunked && parts.version == Version::HTTP_10 => Err(Broken(
            "HTTP/1.0 has no chunked encoding; send Content-Length.",
        )),
        _ if said.is_chunked => Ok(Framing::chunked()),
        length => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

fn request_traits(parts: &request::Parts, said: &Said) -> RequestTraits {
    let is_new = parts.version == Version::HTTP_11;
    // Transfer-Encoding takes precedence; a client that sends Content-Length too gets no second request on this connection.
    let is_twofold = said.is_chunked && said.length.is_some();
    RequestTraits {
        version: parts.version,
        is_to_head: parts.method == Method::HEAD,
        keeps_alive: !said.closes && !is_twofold && (is_new || said.keeps_alive),
        expects_continue: is_new && said.expects_continue,
        upgrades: is_new && said.upgrades && parts.method == Method::GET,
    }
}
