//! Frames: one group commit each, with a header, a table of entries, the images, and an end mark.
//!
//! Header, table and each image have their own checksums. So damage to one image leaves the others readable,
//! and the identity of the damaged record known.
//! With full durability, a frame is written only after the previous frame is durable.
//! So an unreadable frame with a readable frame after it is damage.
//! The last frame may also be torn: it then contains sectors that are still zero from the allocation of the segment.
//! The header counts the sectors whose content is zero, so that a body full of zeros does not look torn.

use std::ops::Range;

use crate::{
    clock::Timestamp,
    key::RecordId,
    varint::{self, Reader},
};

use super::image::Kind;

const MAGIC: [u8; 4] = *b"rFr1";
const HEADER_LEN: usize = 32;
/// Never zero. If it is missing, the frame was not written completely.
const END: u8 = 0xa5;
/// The unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;
/// The minimum length of a table row: identity, kind, length.
const ROW_LEN_MIN: usize = 18;

/// Collects entries and assembles them into a frame.
#[derive(Debug, Default)]
pub(super) struct Builder {
    rows: Vec<Row>,
    images: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    id: RecordId,
    kind: Kind,
    len: usize,
}

impl Builder {
    /// Adds one entry; `encode` appends its image to the buffer.
    pub(super) fn push(&mut self, id: RecordId, kind: Kind, encode: impl FnOnce(&mut Vec<u8>)) {
        let before = self.images.len();
        encode(&mut self.images);
        let len = self.images.len() - before;
        self.rows.push(Row { id, kind, len });
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.images.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number of entries so far.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The length of all images so far, in bytes.
    pub(super) fn image_bytes(&self) -> usize {
        self.images.len()
    }

    /// An upper bound of the length of the frame, in bytes.
    pub(super) fn len_max(&self) -> usize {
        HEADER_LEN + self.rows.len() * (ROW_LEN_MIN + 4) + 4 + self.images.len() + 1
    }

    /// Writes the frame to `out`, and returns the entries with their offsets from the start of the frame.
    pub(super) fn assemble(&self, out: &mut Vec<u8>, place: SegmentFramePosition) -> Vec<Entry> {
        out.clear();
        out.resize(HEADER_LEN, 0);
        for row in &self.rows {
            out.extend(row.id.0);
            out.push(row.kind as u8);
            varint::put(out, row.len as u64);
        }
        let sum = crc32fast::hash(&out[HEADER_LEN..]);
        out.extend(sum.to_le_bytes());
        let mut offset = out.len();
        out.extend_from_slice(&self.images);
        out.push(END);
        let mut header = Header {
            len: out.len() as u32,
            count: self.rows.len() as u32,
            blank: 0,
            place,
        };
        out[..HEADER_LEN].copy_from_slice(&header.encode());
        header.blank = blank_sectors(out, place.start);
        out[..HEADER_LEN].copy_from_slice(&header.encode());
        let entry = |row: &Row| {
            let start = offset;
            offset += row.len;
            Entry {
                id: row.id,
                kind: row.kind,
                offset: start,
                len: row.len,
            }
        };
        self.rows.iter().map(entry).collect()
    }
}

/// The position and time of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentFramePosition {
    /// Secret seed of this store and segment: frames from another segment, and forged ones inside a body, are rejected.
    pub(super) seed: u64,
    /// The offset of the frame in the segment.
    pub(super) start: usize,
    /// The number of the frame in the segment.
    pub(super) ordinal: u32,
    pub(super) time: Timestamp,
}

/// One entry of a frame, and the position of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: RecordId,
    pub(super) kind: Kind,
    pub(super) offset: usize,
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Header {
    len: u32,
    count: u32,
    /// The number of sectors whose content is zero.
    blank: u32,
    place: SegmentFramePosition,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..12].copy_from_slice(&self.count.to_le_bytes());
        out[12..16].copy_from_slice(&self.place.ordinal.to_le_bytes());
        out[16..24].copy_from_slice(&self.place.time.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.blank.to_le_bytes());
        let sum = Self::checksum(&out[..28], self.place.seed);
        out[28..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(segment: &[u8], seed: u64, start: usize) -> Option<Self> {
        let bytes = segment.get(start..)?;
        let mut reader = Reader(bytes);
        let fields = bytes.get(..28)?;
        if reader.array()? != MAGIC {
            return None;
        }
        let (len, count) = (reader.u32()?, reader.u32()?);
        let ordinal = reader.u32()?;
        let time = Timestamp(reader.u64()?);
        let blank = reader.u32()?;
        let place = SegmentFramePosition {
            seed,
            start,
            ordinal,
            time,
        };
        let fits = reader.u32()? == Self::checksum(fields, seed) && len as usize > HEADER_LEN;
        fits.then_some(Self {
            len,
            count,
            blank,
            place,
        })
    }

    fn checksum(fields: &[u8], seed: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(fields);
        hasher.update(&seed.to_le_bytes());
        hasher.finalize()
    }
}

/// What was found at some offset of a segment.
#[derive(Debug)]
pub(super) enum Found {
    /// A frame with an intact header and table. Its images are not checked yet.
    Frame {
        place: SegmentFramePosition,
        entries: Vec<Entry>,
        end: usize,
        /// Parts of the frame may never have been written. If an image is damaged as well, the frame is torn.
        is_unfinished: bool,
    },
    /// Only zeros from here on: the end of the log.
    End,
    /// The last frame, partially written. Nothing in it was acknowledged.
    Torn,
    /// Damage, up to the next readable frame or to the last non-zero byte.
    Damage { end: usize },
}

/// Finds out what is at offset `at`. Offsets in the result count from the start of the segment.
///
/// `may_be_torn` states that nothing was ever written after this offset; otherwise no frame can be torn.
pub(super) fn find(segment: &[u8], seed: u64, at: usize, ordinal: u32, may_be_torn: bool) -> Found {
    if let Some(found) = whole_frame(segment, seed, at, ordinal) {
        return found;
    }
    let Some(used) = segment[at..].iter().rposition(|byte| *byte != 0) else {
        return Found::End;
    };
    let used_end = at + used + 1;
    if let Some(next) = next_frame(segment, seed, at, ordinal) {
        return Found::Damage { end: next };
    }
    match may_be_torn && is_torn(segment, seed, at, used_end) {
        true => Found::Torn,
        false => Found::Damage { end: used_end },
    }
}

/// Returns the frame at `at`, if its header and table are intact.
fn whole_frame(segment: &[u8], seed: u64, at: usize, ordinal: u32) -> Option<Found> {
    let header = Header::decode(segment, seed, at)?;
    let frame = segment.get(at..at + header.len as usize)?;
    if header.place.ordinal != ordinal {
        return None;
    }
    let entries = table(frame, header.count as usize)?;
    let shifted = |entry: Entry| Entry {
        offset: at + entry.offset,
        ..entry
    };
    Some(Found::Frame {
        place: header.place,
        entries: entries.into_iter().map(shifted).collect(),
        end: at + frame.len(),
        is_unfinished: header.is_unfinished(segment),
    })
}

/// Parses the table of a frame; `None` if it is damaged.
fn table(frame: &[u8], count: usize) -> Option<Vec<Entry>> {
    let mut reader = Reader(&frame[HEADER_LEN..]);
    let mut rows = Vec::with_capacity(count.min(frame.len() / ROW_LEN_MIN));
    for _ in 0..count {
        let id = RecordId(reader.array()?);
        let kind = Kind::from_code(reader.u8()?);
        rows.push((id, kind, usize::try_from(reader.varint()?).ok()?));
    }
    let table_end = frame.len() - reader.0.len();
    if reader.u32()? != crc32fast::hash(&frame[HEADER_LEN..table_end]) {
        return None;
    }
    let mut offset = table_end + 4;
    let mut entries = Vec::with_capacity(rows.len());
    for (id, kind, len) in rows {
        let kind = kind?;
        entries.push(Entry {
            id,
            kind,
            offset,
            len,
        });
        offset = offset.checked_add(len)?;
    }
    (offset + 1 == frame.len()).then_some(entries)
}

/// Finds the start of the next readable frame after `at`.
fn next_frame(segment: &[u8], seed: u64, at: usize, ordinal: u32) -> Option<usize> {
    let mut from = at + 1;
    while let Some(found) = find_magic(segment.get(from..)?) {
        let start = from + found;
        let header = Header::decode(segment, seed, start);
        if header.is_some_and(|header| header.place.ordinal > ordinal) {
            return Some(start);
        }
        from = start + 1;
    }
    None
}

fn find_magic(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)
}

/// The number of the frame at `at`, to continue after damage.
pub(super) fn ordinal_at(segment: &[u8], seed: u64, at: usize) -> Option<u32> {
    let header = Header::decode(segment, seed, at)?;
    Some(header.place.ordinal)
}

/// Returns whether the unreadable last frame was not written completely.
fn is_torn(segment: &[u8], seed: u64, at: usize, used_end: usize) -> bool {
    match Header::decode(segment, seed, at) {
        Some(header) => header.is_unfinished(segment),
        None => used_end - at < HEADER_LEN || misses_header_sector(segment, at, used_end),
    }
}

impl Header {
    /// Returns whether the end mark is missing, or more sectors are zero than were written as zeros.
    fn is_unfinished(&self, segment: &[u8]) -> bool {
        let start = self.place.start;
        let end = start + self.len as usize;
        match segment.get(start..end) {
            None => true,
            Some(frame) => frame.last() == Some(&0) || blank_sectors(frame, start) > self.blank,
        }
    }
}

/// Returns whether a sector with a part of the header is zero.
///
/// If none of them is zero, the header was written and damaged later.
fn misses_header_sector(segment: &[u8], at: usize, used_end: usize) -> bool {
    let header_end = at + HEADER_LEN;
    sectors(at, used_end)
        .take_while(|sector| sector.start < header_end)
        .any(|sector| is_zero(&segment[sector]))
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
