//! Encoding of the journal: its records, and the frames that they are appended in.
//!
//! Each record ends with its own checksum, so that later corruption is detected when a single record is read,
//! and is not copied into a rewritten file. A frame has length-prefixed records, and a checksum over all of them.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};

use crate::{
    Fingerprint, Key,
    client::moment::Moment,
    log::frame::{self, END, Format, FramePosition},
    varint::{self, Reader},
};

const INTENT: u8 = 1;
const ANSWERED: u8 = 2;
const DROPPED: u8 = 3;

/// Intended request under a key. Durable before its first byte is sent.
#[derive(Debug, Clone)]
pub(in crate::client) struct Intent {
    pub(in crate::client) key: Key,
    pub(in crate::client) fingerprint: Fingerprint,
    pub(in crate::client) created: Moment,
    /// Time after `created` from which nothing is sent.
    pub(in crate::client) deadline: Duration,
    /// Names of headers that the request had but that are not stored.
    pub(in crate::client) left_out: Vec<HeaderName>,
    pub(in crate::client) request: Request<Bytes>,
}

/// Stored answer of a call.
#[derive(Debug, Clone)]
pub(in crate::client) struct Answered {
    pub(in crate::client) key: Key,
    pub(in crate::client) fingerprint: Fingerprint,
    pub(in crate::client) at: Moment,
    pub(in crate::client) response: Response<Bytes>,
}

/// One record.
#[derive(Debug, Clone)]
pub(in crate::client) enum Record {
    Intent(Box<Intent>),
    Answered(Box<Answered>),
    /// The key is free again: nothing ran, the server demands another key, or an operator decided so.
    Dropped {
        key: Key,
        at: Moment,
        reason: String,
    },
}

impl Record {
    pub(in crate::client) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Self::Intent(intent) => encode_intent(&mut out, intent),
            Self::Answered(answered) => {
                out.push(ANSWERED);
                put(&mut out, answered.key.as_str().as_bytes());
                out.extend(answered.fingerprint.0);
                answered.at.encode(&mut out);
                out.extend(answered.response.status().as_u16().to_le_bytes());
                put_headers(&mut out, answered.response.headers());
                put(&mut out, answered.response.body());
            }
            Self::Dropped { key, at, reason } => {
                out.push(DROPPED);
                put(&mut out, key.as_str().as_bytes());
                at.encode(&mut out);
                put(&mut out, reason.as_bytes());
            }
        }
        let sum = crc32fast::hash(&out);
        out.extend(sum.to_le_bytes());
        out.into()
    }

    /// Decodes a record; `None` if it is invalid.
    pub(in crate::client) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut reader = Reader(verify_checksum(bytes)?);
        let kind = reader.u8()?;
        let key = Key::new(text(&mut reader)?).ok()?;
        let record = match kind {
            INTENT => Self::Intent(decode_intent(bytes, &mut reader, key)?.into()),
            ANSWERED => Self::Answered(decode_answered(bytes, &mut reader, key)?.into()),
            DROPPED => Self::Dropped {
                key,
                at: Moment::decode(&mut reader)?,
                reason: text(&mut reader)?.to_owned(),
            },
            _ => return None,
        };
        reader.0.is_empty().then_some(record)
    }
}

/// Returns a record without its checksum, if the checksum matches.
pub(super) fn verify_checksum(bytes: &[u8]) -> Option<&[u8]> {
    let (content, sum) = bytes.split_last_chunk::<4>()?;
    (crc32fast::hash(content) == u32::from_le_bytes(*sum)).then_some(content)
}

fn encode_intent(out: &mut Vec<u8>, intent: &Intent) {
    out.push(INTENT);
    put(out, intent.key.as_str().as_bytes());
    out.extend(intent.fingerprint.0);
    intent.created.encode(out);
    let deadline = u64::try_from(intent.deadline.as_millis()).unwrap_or(u64::MAX);
    out.extend(deadline.to_le_bytes());
    varint::put(out, intent.left_out.len() as u64);
    for name in &intent.left_out {
        put(out, name.as_str().as_bytes());
    }
    put(out, intent.request.method().as_str().as_bytes());
    put(out, intent.request.uri().to_string().as_bytes());
    put_headers(out, intent.request.headers());
    put(out, intent.request.body());
}

fn decode_intent(bytes: &Bytes, reader: &mut Reader<'_>, key: Key) -> Option<Intent> {
    let fingerprint = Fingerprint(reader.array()?);
    let created = Moment::decode(reader)?;
    let deadline = Duration::from_millis(reader.u64()?);
    let mut left_out = Vec::new();
    for _ in 0..reader.varint()? {
        left_out.push(HeaderName::from_bytes(reader.sized()?).ok()?);
    }
    let method = Method::from_bytes(reader.sized()?).ok()?;
    let uri = Uri::try_from(reader.sized()?).ok()?;
    let headers = headers(reader)?;
    let mut request = Request::new(bytes.slice_ref(reader.sized()?));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Some(Intent {
        key,
        fingerprint,
        created,
        deadline,
        left_out,
        request,
    })
}

fn decode_answered(bytes: &Bytes, reader: &mut Reader<'_>, key: Key) -> Option<Answered> {
    let fingerprint = Fingerprint(reader.array()?);
    let at = Moment::decode(reader)?;
    let status = StatusCode::from_u16(reader.u16()?).ok()?;
    let headers = headers(reader)?;
    let mut response = Response::new(bytes.slice_ref(reader.sized()?));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(Answered {
        key,
        fingerprint,
        at,
        response,
    })
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    varint::put(out, part.len() as u64);
    out.extend_from_slice(part);
}

fn put_headers(out: &mut Vec<u8>, headers: &HeaderMap) {
    varint::put(out, headers.len() as u64);
    for (name, value) in headers {
        put(out, name.as_str().as_bytes());
        put(out, value.as_bytes());
    }
}

fn headers(reader: &mut Reader<'_>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for _ in 0..reader.varint()? {
        let name = HeaderName::from_bytes(reader.sized()?).ok()?;
        let value = HeaderValue::from_bytes(reader.sized()?).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

fn text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    std::str::from_utf8(reader.sized()?).ok()
}

const HEADER_LEN: usize = 24;
/// Length of the checksum and the end mark, after the records.
const TAIL_LEN: usize = 5;

/// The format of the frames of a journal.
#[derive(Debug)]
pub(super) struct JournalFrames;

impl Format for JournalFrames {
    const MAGIC: [u8; 4] = *b"rJn1";
    const HEADER_LEN: usize = HEADER_LEN;
    const IS_ALLOCATED: bool = false;
    /// The range of each record in the file.
    type Content = Vec<Range<usize>>;

    fn checksum(bytes: &[u8], seed: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    fn ordinal(fields: &[u8]) -> Option<u64> {
        Reader(fields).u64()
    }

    fn content(frame: &[u8], at: usize, seed: u64) -> Option<Vec<Range<usize>>> {
        let (content, tail) = frame.get(HEADER_LEN..)?.split_last_chunk::<TAIL_LEN>()?;
        let mut tail = Reader(tail);
        if tail.u32()? != Self::checksum(content, seed) || tail.u8()? != END {
            return None;
        }
        let content_end = at + HEADER_LEN + content.len();
        let mut reader = Reader(content);
        let mut records = Vec::new();
        while !reader.0.is_empty() {
            let len = reader.sized()?.len();
            let end = content_end - reader.0.len();
            records.push(end - len..end);
        }
        Some(records)
    }
}

/// Assembles records into a frame; returns it with the range of each record, relative to the frame.
pub(super) fn assemble<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    place: FramePosition,
) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut out = vec![0; HEADER_LEN];
    let mut ranges = Vec::new();
    for record in records {
        varint::put(&mut out, record.len() as u64);
        ranges.push(out.len()..out.len() + record.len());
        out.extend_from_slice(record);
    }
    let sum = JournalFrames::checksum(&out[HEADER_LEN..], place.seed);
    out.extend(sum.to_le_bytes());
    frame::finish::<JournalFrames>(&mut out, &place.ordinal.to_le_bytes(), place);
    (out, ranges)
}
