//! Outcomes: the stored result of an operation, and its encoding.
//!
//! An outcome is one byte buffer, encoded once. The store, the caller and all waiting duplicates share it.
//! The bytes contain a format version, a checksum, and the identity of their record.
//! So damaged bytes, and bytes stored under another record, are detected and never replayed.
//!
//! ```
//! use refrain::{Outcome, RecordId};
//! let id = RecordId([7; 16]);
//! let outcome = Outcome::new(201, b"done").sealed(id);
//! let read = Outcome::decode(outcome.encoded().clone(), id)?;
//! assert_eq!((read.status(), &read.body()[..]), (201, &b"done"[..]));
//! assert!(Outcome::decode(outcome.encoded().clone(), RecordId([8; 16])).is_err());
//! # Ok::<(), refrain::Error>(())
//! ```
//!
//! Layout: version, flags, identity (16), status (2), length and block of headers, body, block and length (2)
//! of trailers, CRC-32 (4). Sizes are in bytes. Trailers over 64 KiB are dropped.
//! An [encrypted](crate::encryption) outcome has another version, and the layout of `outcome/encrypted.rs`.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    Error, ErrorKind, Fence, RecordId, Result,
    varint::{self, Reader},
};

mod encrypted;
pub(crate) use encrypted::Encrypted;

/// The format version that is written. Readers reject unknown versions.
const VERSION: u8 = 1;
/// The format version of an encrypted outcome.
const ENCRYPTED: u8 = 2;
/// Flag: the outcome contains the body. Without it, the body exceeded the size limit and was dropped.
const BODY_KEPT: u8 = 1;
const ID: Range<usize> = 2..18;
const STATUS: Range<usize> = 18..20;
/// Bytes reserved for headers; enough for most outcomes.
const HEADERS_ROOM: usize = 128;
/// Outcomes up to this length with spare capacity are copied into an exact allocation.
/// Shrinking in place would leave small free gaps between the outcomes that stay in memory.
const COPIED_MAX: usize = 4_096;
/// Minimum length of the part after the body: the length of the trailers (2) and the checksum (4).
const TAIL_LEN: usize = 6;

/// The stored result of an operation.
///
/// Cheap to clone. The meaning of the status is up to the code that created the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    encoded: Bytes,
    body: Range<usize>,
}

impl Outcome {
    /// Creates an outcome with a status and a body.
    #[must_use]
    pub fn new(status: u16, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut packer = Packer::with_room(status, [], body.len());
        packer.push(body);
        packer.finish([])
    }

    /// Decodes an outcome, and checks that it is intact and belongs to the record `id`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the check fails, [`ErrorKind::Unsupported`] for an unknown format version.
    pub fn decode(encoded: Bytes, id: RecordId) -> Result<Self> {
        let corrupt = |what: &str| {
            let message = format!("the outcome of record {id} is damaged: {what}");
            Error::new(ErrorKind::Corrupt, message)
        };
        let (content, sum) = encoded
            .split_last_chunk::<4>()
            .ok_or_else(|| corrupt("it is too short"))?;
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err(corrupt("its checksum does not match"));
        }
        let is_encrypted = content.first() == Some(&ENCRYPTED);
        if content.first() != Some(&VERSION) && !is_encrypted {
            let message = format!(
                "the outcome of record {id} has format version {}; this build reads versions {VERSION} and {ENCRYPTED}",
                content.first().copied().unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if content.get(ID) != Some(&id.0[..]) {
            return Err(corrupt("it belongs to another record"));
        }
        let body = match is_encrypted {
            true => encrypted::is_whole(&encoded).then_some(0..0),
            false => body_range(&encoded),
        };
        let body = body.ok_or_else(|| corrupt("the lengths of its parts are inconsistent"))?;
        Ok(Self { encoded, body })
    }

    /// Returns whether the outcome is encrypted: then its status is 0, and it shows no headers and no body.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encoded[0] == ENCRYPTED
    }

    /// Writes the identity of the record and the checksum into the outcome.
    #[must_use]
    pub fn sealed(self, id: RecordId) -> Self {
        // An unsealed outcome has an all-zero identity, which could equal `id`. So check for the checksum, too.
        let is_sealed = !self.encoded.ends_with(&[0; 4]);
        if is_sealed && self.encoded.get(ID) == Some(&id.0[..]) {
            return self;
        }
        let Self { encoded, body } = self;
        let mut bytes = encoded
            .try_into_mut()
            .unwrap_or_else(|shared| shared[..].into());
        seal(&mut bytes, id);
        let encoded = bytes.freeze();
        Self { encoded, body }
    }

    /// The bytes to store. Complete only after [`sealed`](Self::sealed).
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Returns whether the outcome may belong to an attempt with this fence; only an encrypted outcome contains its fence.
    #[must_use]
    pub fn fits(&self, fence: Fence) -> bool {
        !self.is_encrypted() || encrypted::has_fence(&self.encoded, fence)
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        if self.is_encrypted() {
            return 0;
        }
        u16::from_le_bytes([self.encoded[STATUS.start], self.encoded[STATUS.start + 1]])
    }

    /// The body. Empty if it was [not kept](Self::is_body_kept).
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.body.clone())
    }

    /// The body, as [`body`](Self::body), borrowed.
    pub(crate) fn content(&self) -> &[u8] {
        &self.encoded[self.body.clone()]
    }

    /// Returns whether the outcome contains the body; otherwise the body exceeded the size limit.
    #[must_use]
    pub fn is_body_kept(&self) -> bool {
        !self.is_encrypted() && self.encoded[1] & BODY_KEPT != 0
    }

    /// The headers, in order, with their names as given.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let mut reader = Reader(match self.is_encrypted() {
            true => &[],
            false => &self.encoded[STATUS.end..],
        });
        self.pairs(reader.sized().unwrap_or_default())
    }

    /// The trailers, in order.
    pub fn trailers(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.pairs(match self.is_encrypted() {
            true => &[],
            false => &self.encoded[self.body.end..self.encoded.len() - TAIL_LEN],
        })
    }

    fn pairs<'a>(&'a self, block: &'a [u8]) -> impl Iterator<Item = (&'a str, Bytes)> {
        fields(block).map(|(name, value)| (name, self.encoded.slice_ref(value)))
    }
}

fn fields(block: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut reader = Reader(block);
    std::iter::from_fn(move || {
        let name = std::str::from_utf8(reader.sized()?).ok()?;
        Some((name, reader.sized()?))
    })
}

fn seal(bytes: &mut [u8], id: RecordId) {
    bytes[ID].copy_from_slice(&id.0);
    let content_len = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..content_len]);
    bytes[content_len..].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the range of the body; `None` if the encoding is inconsistent.
fn body_range(encoded: &[u8]) -> Option<Range<usize>> {
    let mut reader = Reader(encoded.get(STATUS.end..)?);
    check_pairs(reader.sized()?)?;
    let start = encoded.len() - reader.0.len();
    let tail = encoded.len().checked_sub(TAIL_LEN)?;
    let trailers_len = Reader(&encoded[tail..]).u16()?;
    let end = tail.checked_sub(trailers_len.into())?;
    check_pairs(encoded.get(end..tail)?)?;
    (start <= end).then_some(start..end)
}

fn check_pairs(block: &[u8]) -> Option<()> {
    let mut reader = Reader(block);
    while !reader.0.is_empty() {
        std::str::from_utf8(reader.sized()?).ok()?;
        reader.sized()?;
    }
    Some(())
}

/// Encodes an outcome piece by piece, so that the body is copied only once.
#[derive(Debug)]
pub struct Packer {
    bytes: Vec<u8>,
    body_start: usize,
}

impl Packer {
    /// Starts an outcome with its status and headers.
    pub fn new<'a>(status: u16, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        Self::with_room(status, headers, 0)
    }

    /// Starts an outcome with its status and headers, and reserves room for a body of known length.
    pub fn with_room<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body_len: usize,
    ) -> Self {
        Self::with_rooms(status, headers, HEADERS_ROOM, body_len)
    }

    /// Like [`with_room`](Self::with_room), but reserves exactly `headers_len` bytes for headers.
    pub(crate) fn with_rooms<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        headers_len: usize,
        body_len: usize,
    ) -> Self {
        let head_len = STATUS.end + varint::len(headers_len as u64) + headers_len;
        let mut bytes = Vec::with_capacity(head_len + body_len + TAIL_LEN);
        bytes.extend([VERSION, BODY_KEPT]);
        bytes.extend([0; 16]);
        bytes.extend(status.to_le_bytes());
        put_pairs(&mut bytes, headers.into_iter());
        let block_end = bytes.len();
        varint::put(&mut bytes, (block_end - STATUS.end) as u64);
        let len_len = bytes.len() - block_end;
        bytes[STATUS.end..].rotate_right(len_len);
        let body_start = bytes.len();
        Self { bytes, body_start }
    }

    /// Appends a chunk to the body.
    pub fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
    }

    /// The length of the body so far, in bytes.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.bytes.len() - self.body_start
    }

    /// Drops the body, and records that it was not kept.
    pub fn drop_body(&mut self) {
        self.bytes.truncate(self.body_start);
        self.bytes[1] &= !BODY_KEPT;
    }

    /// Completes the outcome with its trailers. Trailers over 64 KiB are dropped.
    #[must_use]
    pub fn finish<'a>(self, trailers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Outcome {
        self.finish_for(None, trailers)
    }

    /// Like [`finish`](Self::finish), and [seals](Outcome::sealed) the outcome if its record is known.
    /// That is cheaper than sealing it later.
    #[must_use]
    pub(crate) fn finish_for<'a>(
        mut self,
        record: Option<RecordId>,
        trailers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Outcome {
        let body = self.body_start..self.bytes.len();
        put_pairs(&mut self.bytes, trailers.into_iter());
        let len = u16::try_from(self.bytes.len() - body.end).unwrap_or_else(|_| {
            self.bytes.truncate(body.end);
            0
        });
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend([0; 4]);
        if let Some(id) = record {
            seal(&mut self.bytes, id);
        }
        let has_spare = self.bytes.len() < self.bytes.capacity();
        let encoded = match has_spare && self.bytes.len() < COPIED_MAX {
            true => Bytes::copy_from_slice(&self.bytes),
            false => {
                self.bytes.shrink_to_fit();
                self.bytes.into()
            }
        };
        Outcome { encoded, body }
    }
}

/// The encoded length of a header, in bytes.
pub(crate) fn pair_len(name: &str, value: &[u8]) -> usize {
    let sized = |part: &[u8]| varint::len(part.len() as u64) + part.len();
    sized(name.as_bytes()) + sized(value)
}

fn put_pairs<'a>(out: &mut Vec<u8>, pairs: impl Iterator<Item = (&'a str, &'a [u8])>) {
    for (name, value) in pairs {
        for part in [name.as_bytes(), value] {
            varint::put(out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }
}
