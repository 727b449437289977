//! The head of an answer as the client gets it.

use std::io::Write as _;

use http::{HeaderValue, StatusCode, Version, header, response};
use hyper::ext::ReasonPhrase;

use super::head::Asked;
use crate::{
    headers,
    http1::{Length, write_field},
    watch::Date,
};

/// An answer's head, and what is known of its body.
pub(super) struct Reply<'r> {
    pub(super) head: &'r response::Parts,
    /// How long the body is, where that is known.
    pub(super) size: Option<u64>,
    pub(super) asked: Asked,
    /// Whether the connection may be used again.
    pub(super) keeps_alive: bool,
}

impl Reply<'_> {
    /// Writes the head; answers how the body has to follow, and whether the connection may be used again behind it.
    pub(super) fn write(&self, out: &mut Vec<u8>, date: &Date) -> (Length, bool) {
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
        let status = self.head.status;
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        let usual = || status.canonical_reason().unwrap_or_default().as_bytes();
        let own = self.head.extensions.get::<ReasonPhrase>();
        out.extend_from_slice(own.map_or_else(usual, ReasonPhrase::as_bytes));
        out.extend_from_slice(b"\r\n");
    }

    fn write_fields(&self, out: &mut Vec<u8>) -> Seen {
        let mut seen = Seen::default();
        for (name, value) in &self.head.headers {
            match *name {
                header::CONTENT_LENGTH => seen.length = headers::number(value),
                header::TRANSFER_ENCODING => {}
                header::CONNECTION if !self.switches() => seen.closes |= is_close(value),
                header::DATE => {
                    seen.has_date = true;
                    write_field(out, name, value.as_bytes());
                }
                _ => write_field(out, name, value.as_bytes()),
            }
        }
        seen
    }

    fn switches(&self) -> bool {
        self.head.status == StatusCode::SWITCHING_PROTOCOLS
    }

    /// What is known of the length counts before what was said.
    fn write_length(&self, out: &mut Vec<u8>, said: Option<u64>) -> Length {
        let status = self.head.status;
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            return Length::Left(0);
        }
        let is_bare = self.asked.is_to_head || status == StatusCode::NOT_MODIFIED;
        let known = match is_bare {
            // What the answer would have been long.
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

/// What was met among the fields of an answer.
#[derive(Default)]
struct Seen {
    length: Option<u64>,
    has_date: bool,
    closes: bool,
}

fn is_close(value: &HeaderValue) -> bool {
    value.as_bytes().eq_ignore_ascii_case(b"close")
}
