//! Requests: how they are parsed and sent to the upstream.

use std::mem::MaybeUninit;

use http::{Method, StatusCode, Uri};
use httparse::{Header, ParserConfig};
use refrain_http1::{Broken, Framing, HeadInfo, Names};

use super::{
    flow::{Flow, Manner},
    head::{ROOM, Refused, check_end, pass_fields, put, refused, write_chunked},
};

/// Maximum length of a request target, in bytes: the limit of [`Uri`].
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// A request whose body has not been read yet.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) asked: RequestFlags,
    /// The message to send to the upstream.
    pub(super) onward: Flow,
}

/// Properties of a request that determine its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestFlags {
    /// Whether the client speaks HTTP/1.1.
    pub(super) is_new: bool,
    /// Whether it is a HEAD request.
    pub(super) is_to_head: bool,
    pub(super) keeps_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
}

impl RequestFlags {
    /// Defaults for a request that could not be parsed.
    pub(super) const NOTHING: Self = Self {
        is_new: true,
        is_to_head: false,
        keeps_alive: false,
        expects_continue: false,
    };
}

/// Parses a complete request head.
pub(super) fn read<'h>(
    bytes: &'h [u8],
    fields: &mut [MaybeUninit<Header<'h>>],
    names: &mut Names,
) -> Result<Request, Refused> {
    let mut head = httparse::Request::new(&mut []);
    let end = ParserConfig::default()
        .parse_request_with_uninit_headers(&mut head, bytes, fields)
        .map_err(refused)?;
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Err(Broken("The first line is not a request line.").into());
    };
    check_end(end, bytes)?;
    let uri = uri(target)?;
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| Broken("Malformed method."))?;
    if method == Method::CONNECT {
        let why = "CONNECT is not supported.";
        return Err(Refused::new(StatusCode::NOT_IMPLEMENTED, why));
    }
    let mut out = Vec::with_capacity(bytes.len() + ROOM);
    put(&mut out, &[method.as_str(), " ", target, " HTTP/1.1\r\n"]);
    let info = pass_fields(&mut out, head.headers, names)?;
    let is_new = version == 1;
    if info.is_chunked && !is_new {
        return Err(
            Broken("HTTP/1.0 does not support chunked bodies; send Content-Length.").into(),
        );
    }
    write_chunked(&mut out, info.is_chunked);
    out.extend_from_slice(b"\r\n");
    let asked = request_flags(&method, is_new, &info);
    let framing = match info.is_chunked {
        true => Framing::chunked(),
        false => Framing::Length(info.length.unwrap_or(0)),
    };
    Ok(Request {
        onward: Flow::new(out, framing, info.is_chunked, Manner::AsItComes),
        method,
        uri,
        asked,
    })
}

fn request_flags(method: &Method, is_new: bool, info: &HeadInfo) -> RequestFlags {
    // Chunked encoding overrides the length. A request with both may be a smuggling attempt: no other one follows.
    let is_twofold = info.is_chunked && info.length.is_some();
    RequestFlags {
        is_new,
        is_to_head: *method == Method::HEAD,
        keeps_alive: !info.closes && !is_twofold && (is_new || info.keeps_alive),
        expects_continue: is_new && info.expects_continue,
    }
}

fn uri(target: &str) -> Result<Uri, Refused> {
    if target.len() > TARGET_BYTES_MAX {
        let why = "The request target is too long; send a shorter one.";
        return Err(Refused::new(StatusCode::URI_TOO_LONG, why));
    }
    let uri = target.parse();
    uri.map_err(|_| Broken("Malformed request target.").into())
}
