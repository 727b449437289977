//! Encodes the head of a response for the client.

use std::io::Write as _;

use http::{StatusCode, Version, header, response};
use hyper::ext::ReasonPhrase;

use super::head::RequestTraits;
use crate::{
    headers,
    http1::{Length, write_field},
    watch::Date,
};

/// The head of a response, and the size of its body.
pub(super) struct Reply<'r, F> {
    pub(super) status: StatusCode,
    /// Reason phrase, if it is not the standard one.
    pub(super) reason: Option<&'r [u8]>,
    pub(super) fields: F,
    /// Length of the body, if it is known.
    pub(super) size: Option<u64>,
    pub(super) asked: RequestTraits,
    /// Whether the connection may be reused.
    pub(super) keeps_alive: bool,
}

/// The [`Reply`] for the head of a response.
pub(super) fn from_head(
    head: &response::Parts,
    size: Option<u64>,
    asked: RequestTraits,
    keeps_alive: bool,
) -> Reply<'_, impl Iterator<Item = (&str, &[u8])>> {
    let fields = head.headers.iter();
    Reply {
        status: head.status,
        reason: head.extensions.get().map(ReasonPhrase::as_bytes),
        fields: fields.map(|(name, value)| (name.as_str(), value.as_bytes())),
        size,
        asked,
        keeps_alive,
    }
}

impl<'r, F: Iterator<Item = (&'r str, &'r [u8])>> Reply<'r, F> {
    /// Writes the head; returns how the body must be sent, and whether the connection may be reused after it.
    pub(super) fn write(mut self, out: &mut Vec<u8>, date: &Date) -> (Length, bool) {
        self.write_start(out);
        let seen = self.write_fields(out);
        if !seen.has_date {
            write_field(out, &header::DATE, date.as_bytes());
        }
        let length = self.write_length(out, seen.length);
        let keeps_alive = self.keeps_alive && !seen.closes && !matches!(length, Length::UntilClose);
        self.write_connection(out, keeps_alive);
        out.extend_from_slice(b"\r\n");
        (length, keeps_alive)
    }

    fn write_start(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.asked.version {
            Version::HTTP_10 => b"HTTP/1.0 ",
            _ => b"HTTP/1.1 ",
        });
        out.extend_from_slice(self.status.as_str().as_bytes());
        out.push(b' ');
        let usual = || {
            self.status
                .canonical_reason()
                .unwrap_or_default()
                .as_bytes()
        };
        out.extend_from_slice(self.reason.unwrap_or_else(usual));
        out.extend_from_slice(b"\r\n");
    }

    fn write_fields(&mut self, out: &mut Vec<u8>) -> SeenReplyFields {
        let (mut seen, switches) = (SeenReplyFields::default(), self.switches());
        for (name, value) in &mut self.fields {
            match name {
                "content-length" => seen.length = headers::number(value),
                "transfer-encoding" => {}
                "connection" if !switches => seen.closes |= is_close(value),
                "date" => {
                    seen.has_date = true;
                    write_field(out, name, value);
                }
                _ => write_field(out, name, value),
            }
        }
        seen
    }

    fn switches(&self) -> bool {
        self.status == StatusCode::SWITCHING_PROTOCOLS
    }

    /// Writes the length of the body. The known length takes precedence over the declared one, except where no body is sent.
    fn write_length(&self, out: &mut Vec<u8>, said: Option<u64>) -> Length {
        let status = self.status;
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            return Length::Left(0);
        }
        let is_bare = self.asked.is_to_head || status == StatusCode::NOT_MODIFIED;
        let known = match is_bare {
            // The length that the body would have.
            true => said.or(self.size.filter(|size| *size > 0)),
            false => self.size.or(said),
        };
        if let Some(length) = known {
            // Writing to memory does not fail.
            let _ = write!(out, "content-length: {length}\r\n");
        }
        match known {
            _ if is_bare => Length::Left(0),
            Some(length) => Length::Left(length),
            None if self.asked.version == Version::HTTP_10 => Length::UntilClose,
            None => {
                write_field(out, &header::TRANSFER_ENCODING, b"chunked");
                Length::Chunked
            }
        }
    }

    fn write_connection(&self, out: &mut Vec<u8>, keeps_alive: bool) {
        match (self.asked.version, keeps_alive) {
            _ if self.switches() => {}
            (Version::HTTP_10, true) => write_field(out, &header::CONNECTION, b"keep-alive"),
            (Version::HTTP_10, false) | (_, true) => {}
            (_, false) => write_field(out, &header::CONNECTION, b"close"),
        }
    }
}

/// Fields of a response that are written last or not at all.
#[derive(Default)]
struct SeenReplyFields {
    length: Option<u64>,
    has_date: bool,
    closes: bool,
}

fn is_close(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"close")
}
