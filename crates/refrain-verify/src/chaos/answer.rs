//! Responses: from the upstream or from this proxy, and how they are sent to the client.

use std::{io::Write as _, mem::MaybeUninit};

use http::StatusCode;
use httparse::{Header, ParserConfig};
use refrain_http1::{Broken, Framing, HeadInfo, Names};

use super::{
    flow::{Flow, Manner},
    head::{ROOM, Refused, check_end, pass_fields, put, refused, write_chunked},
    request::RequestFlags,
};

/// A response whose body has not been read yet.
#[derive(Debug)]
pub(super) struct UnreadResponse {
    pub(super) status: StatusCode,
    /// The head as sent to the client, without its final fields and blank line.
    head: Vec<u8>,
    /// Body of a response made by this proxy.
    own: Vec<u8>,
    framing: Framing,
    is_chunked: bool,
    /// Whether the upstream keeps the connection open for another request.
    pub(super) stays_open: bool,
    asked: RequestFlags,
}

impl UnreadResponse {
    /// Returns a text response made by this proxy; the connection closes after it.
    pub(super) fn own(status: StatusCode, text: &str, asked: RequestFlags) -> Self {
        let own = format!("refrain chaos: {text}\n").into_bytes();
        let reason = status.canonical_reason().unwrap_or_default();
        let mut head = start(status, reason, asked, 0);
        // Writing to memory cannot fail.
        let _ = write!(
            head,
            "content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n",
            own.len()
        );
        Self {
            status,
            head,
            own: if asked.is_to_head { Vec::new() } else { own },
            framing: Framing::Length(0),
            is_chunked: false,
            stays_open: false,
            asked,
        }
    }

    /// Whether this response lets the client send another request on the same connection.
    pub(super) fn keeps_alive(&self) -> bool {
        let ends_with_connection = !self.is_chunked && !matches!(self.framing, Framing::Length(_));
        self.asked.keeps_alive && !ends_with_connection
    }

    /// Returns the message to send to the client.
    pub(super) fn into_flow(mut self, keeps_alive: bool, manner: Manner) -> Flow {
        let connection: &[u8] = match (self.asked.is_new, keeps_alive) {
            (true, true) | (false, false) => b"",
            (true, false) => b"connection: close\r\n",
            (false, true) => b"connection: keep-alive\r\n",
        };
        self.head.extend_from_slice(connection);
        self.head.extend_from_slice(b"\r\n");
        self.head.extend_from_slice(&self.own);
        Flow::new(self.head, self.framing, self.is_chunked, manner)
    }

    /// Returns the message for a response that is read and discarded.
    pub(super) fn into_discarded_flow(self) -> Flow {
        Flow::new(Vec::new(), self.framing, false, Manner::Unheard)
    }
}

/// Parses a complete response head.
pub(super) fn read<'h>(
    bytes: &'h [u8],
    fields: &mut [MaybeUninit<Header<'h>>],
    names: &mut Names,
    asked: RequestFlags,
) -> Result<UnreadResponse, Refused> {
    let mut parsed = httparse::Response::new(&mut []);
    let end = ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, bytes, fields)
        .map_err(refused)?;
    let (Some(version), Some(code), Some(reason)) = (parsed.version, parsed.code, parsed.reason)
    else {
        return Err(Broken("The response has no status.").into());
    };
    check_end(end, bytes)?;
    let status = StatusCode::from_u16(code).map_err(|_| Broken("Invalid response status."))?;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Broken("The upstream switched protocols without an Upgrade request.").into());
    }
    let mut head = start(status, reason, asked, bytes.len());
    let info = pass_fields(&mut head, parsed.headers, names)?;
    let is_new = version == 1;
    if info.is_chunked && !is_new {
        return Err(Broken("HTTP/1.0 does not support chunked bodies.").into());
    }
    let framing = framing(status, asked, &info);
    let ends_with_connection = framing == Framing::UntilClose;
    write_chunked(
        &mut head,
        asked.is_new && (info.is_chunked || ends_with_connection),
    );
    Ok(UnreadResponse {
        status,
        head,
        own: Vec::new(),
        stays_open: (is_new || info.keeps_alive)
            && !info.closes
            && !(info.is_chunked && info.length.is_some())
            && !ends_with_connection,
        is_chunked: asked.is_new && !matches!(framing, Framing::Length(_)),
        framing,
        asked,
    })
}

fn framing(status: StatusCode, asked: RequestFlags, info: &HeadInfo) -> Framing {
    let is_bare = asked.is_to_head
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    match info.length {
        _ if is_bare => Framing::Length(0),
        _ if info.is_chunked => Framing::chunked(),
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    }
}

fn start(status: StatusCode, reason: &str, asked: RequestFlags, length: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(length + ROOM);
    let version = match asked.is_new {
        true => "HTTP/1.1 ",
        false => "HTTP/1.0 ",
    };
    put(&mut head, &[version, status.as_str(), " ", reason, "\r\n"]);
    head
}
