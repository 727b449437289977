//! Request and response heads: parsing, and forwarding to the other side.
//!
//! Fields are forwarded as they came, in their case and order, without hop-by-hop fields.

use bytes::{Buf as _, BytesMut};
use http::{HeaderName, StatusCode, header};
use httparse::{Header, Status};
use refrain_http1::{Broken, HeadInfo, Limits, Names, check_start, head_end, parsed};

use super::{
    answer::{self, UnreadResponse},
    request::{self, Request, RequestFlags},
};

/// Limits on a head.
const LIMITS: Limits = Limits {
    bytes_max: 256 << 10,
    fields_max: 100,
};
/// Spare capacity after a head, which usually avoids another allocation.
pub(super) const ROOM: usize = 1 << 10;

/// Why a head is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    status: StatusCode,
    pub(super) why: &'static str,
}

impl Refused {
    pub(super) fn new(status: StatusCode, why: &'static str) -> Self {
        Self { status, why }
    }

    pub(super) fn answer(&self) -> UnreadResponse {
        UnreadResponse::own(self.status, self.why, RequestFlags::NOTHING)
    }
}

impl From<Broken> for Refused {
    fn from(Broken(why): Broken) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }
}

/// State of a connection's head parser.
#[derive(Debug, Default)]
pub(super) struct HeadParser {
    names: Names,
    /// Start of the line at which the search for the end of the head resumes.
    start: usize,
}

impl HeadParser {
    /// Takes a request head from the front of the input; `None` if it is incomplete.
    ///
    /// # Errors
    /// When it is malformed, over a limit, or ambiguous.
    pub(super) fn request(&mut self, input: &mut BytesMut) -> Result<Option<Request>, Refused> {
        if self.start == 0 {
            check_start(input)?;
        }
        let Some(end) = self.end(input)? else {
            return Ok(None);
        };
        let head = parsed(LIMITS.fields_max, |fields| {
            request::read(&input[..end], fields, &mut self.names)
        });
        input.advance(end);
        head.map(Some)
    }

    /// Takes a response head from the front of the input; `None` if it is incomplete. Skips interim (1xx) responses.
    ///
    /// # Errors
    /// When it is malformed, or over a limit.
    pub(super) fn answer(
        &mut self,
        input: &mut BytesMut,
        asked: RequestFlags,
    ) -> Result<Option<UnreadResponse>, Refused> {
        while let Some(end) = self.end(input)? {
            let head = parsed(LIMITS.fields_max, |fields| {
                answer::read(&input[..end], fields, &mut self.names, asked)
            });
            input.advance(end);
            let head = head?;
            // Interim responses are for this proxy, not for the client.
            if !head.status.is_informational() {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    fn end(&mut self, input: &[u8]) -> Result<Option<usize>, Refused> {
        let end = head_end(input, &mut self.start);
        if end.unwrap_or(input.len()) > LIMITS.bytes_max {
            return Err(Refused::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "The request head is too large; send fewer or shorter headers.",
            ));
        }
        if end.is_some() {
            self.start = 0;
        }
        Ok(end)
    }
}

/// Writes the forwarded fields and returns what all fields say. Drops the length of a chunked body.
pub(super) fn pass_fields(
    out: &mut Vec<u8>,
    fields: &[Header<'_>],
    names: &mut Names,
) -> Result<HeadInfo, Broken> {
    let (mut info, mut length) = (HeadInfo::default(), None);
    for (at, field) in fields.iter().enumerate() {
        let name = names.of(at, field.name.as_bytes())?;
        info.add_field(&name, field.value)?;
        match name {
            header::CONTENT_LENGTH => length = Some(field),
            name if stays_behind(&name) => {}
            _ => write_field(out, field),
        }
    }
    if let Some(length) = length.filter(|_| !info.is_chunked) {
        write_field(out, length);
    }
    Ok(info)
}

/// Whether a field is hop-by-hop.
fn stays_behind(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::TRANSFER_ENCODING
        | header::TE
        | header::UPGRADE
        | header::EXPECT => true,
        _ => ["keep-alive", "proxy-connection"].contains(&name.as_str()),
    }
}

fn write_field(out: &mut Vec<u8>, field: &Header<'_>) {
    put(out, &[field.name, ": "]);
    out.extend_from_slice(field.value);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn write_chunked(out: &mut Vec<u8>, is_chunked: bool) {
    if is_chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
}

pub(super) fn put(out: &mut Vec<u8>, texts: &[&str]) {
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
}

pub(super) fn check_end(end: Status<usize>, bytes: &[u8]) -> Result<(), Broken> {
    match end == Status::Complete(bytes.len()) {
        true => Ok(()),
        false => Err(Broken(
            "The end of the head is ambiguous; end lines with CRLF.",
        )),
    }
}

pub(super) fn refused(error: httparse::Error) -> Refused {
    let why = match error {
        httparse::Error::TooManyHeaders => {
            let why = "Too many header fields; send fewer.";
            return Refused::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why);
        }
        httparse::Error::HeaderName => "Malformed header name.",
        httparse::Error::HeaderValue | httparse::Error::NewLine => "Malformed header.",
        httparse::Error::Version => "Unsupported HTTP version; send HTTP/1.1.",
        _ => "Malformed first line.",
    };
    Broken(why).into()
}
