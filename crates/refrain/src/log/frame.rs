//! Frames: one group commit each, and the decision whether unreadable bytes are a torn write or damage.
//!
//! A frame has a header, content in the format of its log, and an end mark.
//! A frame is written only after the previous frame is durable.
//! So an unreadable frame with a readable frame after it is damage.
//! The last frame may be torn: the file ends too early, or sectors are zero that were not written as zeros.
//! The header counts the sectors whose content is zero, so that a body full of zeros does not look torn.
//! Nothing in a torn frame was acknowledged.

use std::{marker::PhantomData, ops::Range};

use bytes::Bytes;

use crate::varint::Reader;

/// Never zero. If it is missing, the frame was not written completely.
pub(crate) const END: u8 = 0xa5;
/// The unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;

/// The byte format of the frames of one kind of log.
///
/// A header is the magic number, the length of the frame (32 bits), fields of the log, the number of zero sectors
/// (32 bits), and a checksum (32 bits).
pub(crate) trait Format {
    const MAGIC: [u8; 4];
    const HEADER_LEN: usize;
    /// Whether files are allocated with zeros in advance, so that a write that was cut off is followed by zeros.
    /// Otherwise it is followed by the end of the file.
    const IS_ALLOCATED: bool;
    /// The decoded content of a frame.
    type Content;

    /// The checksum of a header. `seed` is secret, so that bytes inside a body are not mistaken for a frame.
    fn checksum(header: &[u8], seed: u64) -> u32;

    /// The number of the frame in its file, from the log's own fields of the header.
    fn ordinal(fields: &[u8]) -> Option<u64>;

    /// Decodes the content of a frame that starts at offset `at` of the file; `None` if it is unreadable.
    fn content(frame: &[u8], at: usize, seed: u64) -> Option<Self::Content>;

    /// Returns whether each part of a readable frame is intact.
    fn is_intact(_file: &Bytes, _content: &Self::Content) -> bool {
        true
    }
}

/// The position of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePosition {
    /// Secret seed of the file: frames of another file, and forged ones inside a body, are rejected.
    pub(crate) seed: u64,
    /// The offset of the frame in the file.
    pub(crate) start: usize,
    /// The number of the frame in the file, from 0.
    pub(crate) ordinal: u64,
}

/// Completes a frame: `out` has room for the header and the content; `fields` are the log's own fields of the header.
pub(crate) fn finish<F: Format>(out: &mut Vec<u8>, fields: &[u8], place: FramePosition) {
    out.push(END);
    put_header::<F>(out, fields, 0, place.seed);
    let blank = blank_sectors(out, place.start);
    put_header::<F>(out, fields, blank, place.seed);
}

fn put_header<F: Format>(frame: &mut [u8], fields: &[u8], blank: u32, seed: u64) {
    let len = frame.len() as u32;
    let (header, sum) = frame[..F::HEADER_LEN].split_at_mut(F::HEADER_LEN - 4);
    let (head, count) = header.split_at_mut(F::HEADER_LEN - 8);
    head[..4].copy_from_slice(&F::MAGIC);
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..].copy_from_slice(fields);
    count.copy_from_slice(&blank.to_le_bytes());
    sum.copy_from_slice(&F::checksum(header, seed).to_le_bytes());
}

/// The part of a header that all logs have.
#[derive(Debug, Clone, Copy)]
struct Header {
    len: usize,
    ordinal: u64,
    /// The number of sectors whose content is zero.
    blank: u32,
}

impl Header {
    /// Decodes the header at `at`; `None` unless its checksum matches.
    fn decode<F: Format>(file: &[u8], at: usize, seed: u64) -> Option<Self> {
        let header = file.get(at..)?.get(..F::HEADER_LEN)?;
        let (fields, sum) = header.split_last_chunk::<4>()?;
        let mut reader = Reader(fields);
        if reader.array()? != F::MAGIC || F::checksum(fields, seed) != u32::from_le_bytes(*sum) {
            return None;
        }
        let header = Self {
            len: reader.u32()? as usize,
            ordinal: F::ordinal(reader.bytes(F::HEADER_LEN - 16)?)?,
            blank: reader.u32()?,
        };
        (header.len > F::HEADER_LEN).then_some(header)
    }

    /// Returns whether parts of the frame at `at` were never written.
    fn is_unfinished<F: Format>(&self, file: &[u8], at: usize) -> bool {
        match file.get(at..at + self.len) {
            None => true,
            Some(frame) => {
                let is_cut = F::IS_ALLOCATED && frame.last() == Some(&0);
                is_cut || blank_sectors(frame, at) > self.blank
            }
        }
    }
}

/// Content at a position of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<C> {
    /// A readable frame, up to this offset.
    Frame { content: C, end: usize },
    /// The end of the log.
    End,
    /// The last frame, partially written up to this offset. Nothing in it was acknowledged.
    Torn { end: usize },
    /// Damage, up to the next readable frame or to the last byte.
    Damage { end: usize },
}

/// Reads a file frame by frame.
#[derive(Debug)]
pub(crate) struct Scanner<'a, F> {
    file: &'a Bytes,
    /// The position of the next frame.
    place: FramePosition,
    /// No frame before this offset can be torn.
    torn_from: usize,
    format: PhantomData<F>,
}

impl<'a, F: Format> Scanner<'a, F> {
    /// Starts at offset `start`. A torn write is possible from offset `torn_from` on.
    pub(crate) fn new(file: &'a Bytes, seed: u64, start: usize, torn_from: usize) -> Self {
        let place = FramePosition {
            seed,
            start,
            ordinal: 0,
        };
        Self {
            file,
            place,
            torn_from,
            format: PhantomData,
        }
    }

    /// The position of the next frame.
    pub(crate) fn place(&self) -> FramePosition {
        self.place
    }

    /// Classifies the bytes at the current position, and moves past them; stays at the end and before a torn write.
    pub(crate) fn find(&mut self) -> Found<F::Content> {
        let FramePosition { seed, start, .. } = self.place;
        let header = Header::decode::<F>(self.file, start, seed);
        if let Some(found) = header.and_then(|header| self.frame(header)) {
            return found;
        }
        let used_end = self.used_end(start);
        if used_end == start {
            return Found::End;
        }
        if let Some((next, ordinal)) = self.next_frame() {
            (self.place.start, self.place.ordinal) = (next, ordinal);
            return Found::Damage { end: next };
        }
        if start >= self.torn_from && self.is_torn(header, used_end) {
            return Found::Torn { end: used_end };
        }
        self.place.start = used_end;
        Found::Damage { end: used_end }
    }

    /// Reads the frame with this header; `None` if it is unreadable.
    ///
    /// A readable frame is torn, too, if it is the last one and one of its damaged parts may never have been written.
    fn frame(&mut self, header: Header) -> Option<Found<F::Content>> {
        let FramePosition { seed, start, .. } = self.place;
        if header.ordinal != self.place.ordinal {
            return None;
        }
        let end = start + header.len;
        let content = F::content(self.file.get(start..end)?, start, seed)?;
        let is_torn = start >= self.torn_from
            && header.is_unfinished::<F>(self.file, start)
            && !F::is_intact(self.file, &content)
            && self.used_end(end) == end;
        if is_torn {
            let end = self.used_end(start);
            return Some(Found::Torn { end });
        }
        self.place.start = end;
        self.place.ordinal += 1;
        Some(Found::Frame { content, end })
    }

    /// The end of the bytes that were written from `at` on.
    fn used_end(&self, at: usize) -> usize {
        let last = match F::IS_ALLOCATED {
            true => self.file[at..].iter().rposition(|byte| *byte != 0),
            false => (self.file.len() - at).checked_sub(1),
        };
        last.map_or(at, |last| at + last + 1)
    }

    /// Finds the start and the number of the next frame with a readable header.
    fn next_frame(&self) -> Option<(usize, u64)> {
        let mut from = self.place.start + 1;
        while let Some(found) = find_magic::<F>(self.file.get(from..)?) {
            let start = from + found;
            let header = Header::decode::<F>(self.file, start, self.place.seed);
            match header.filter(|header| header.ordinal > self.place.ordinal) {
                Some(header) => return Some((start, header.ordinal)),
                None => from = start + 1,
            }
        }
        None
    }

    /// Returns whether the unreadable last frame was not written completely.
    fn is_torn(&self, header: Option<Header>, used_end: usize) -> bool {
        let FramePosition { start, ordinal, .. } = self.place;
        match header {
            Some(header) if header.ordinal != ordinal => false,
            Some(header) => header.is_unfinished::<F>(self.file, start),
            None => used_end - start < F::HEADER_LEN || self.misses_header_sector(used_end),
        }
    }

    /// Returns whether a sector with a part of the header is zero.
    ///
    /// If none of them is zero, the header was written and damaged later.
    fn misses_header_sector(&self, used_end: usize) -> bool {
        let at = self.place.start;
        sectors(at, used_end)
            .take_while(|sector| sector.start < at + F::HEADER_LEN)
            .any(|sector| is_zero(&self.file[sector]))
    }
}

fn find_magic<F: Format>(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == F::MAGIC)
}

/// Counts the zero sectors among these bytes, which start at offset `start` of the file.
fn blank_sectors(bytes: &[u8], start: usize) -> u32 {
    let blank = sectors(start, start + bytes.len())
        .filter(|sector| is_zero(&bytes[sector.start - start..sector.end - start]));
    blank.count() as u32
}

/// The sectors that `from..to` overlaps, clipped to that range.
fn sectors(from: usize, to: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = from;
    std::iter::from_fn(move || {
        let end = to.min((start / SECTOR + 1) * SECTOR);
        let sector = start..end;
        start = end;
        (!sector.is_empty()).then_some(sector)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
