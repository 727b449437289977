//! A frame is what one group commit writes: a header, the table of what is in it, the images, and an end mark.
//!
//! Header, table and each image have checksums of their own, so that damage to one image leaves the others readable
//! and the identity of the damaged one known.
//! A frame is written only after the frame before it is durable.
//! So a frame that cannot be read and has a readable one behind it is corruption;
//! the last one may also be torn, which shows in sectors that are still zero as the segment was allocated.
//! A header says how many of its frame's sectors are zero by rights, so that a body full of zeros is not taken for a torn one.

use std::ops::Range;

use crate::{
    clock::Timestamp,
    key::RecordId,
    varint::{self, Reader},
};

use super::image::Kind;

const MAGIC: [u8; 4] = *b"rFr1";
const HEADER_LEN: usize = 32;
/// Never zero: where it is missing, a frame was not written to its end.
const END: u8 = 0xa5;
/// What a disk writes whole or not at all.
const SECTOR: usize = 512;
/// The least that one row of the table takes: identity, kind, length.
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
    /// Adds one entry, written by `encode` at the end of the buffer.
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

    /// How many entries there are by now.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// How much the images take by now.
    pub(super) fn image_bytes(&self) -> usize {
        self.images.len()
    }

    /// No frame of these entries is longer.
    pub(super) fn len_max(&self) -> usize {
        HEADER_LEN + self.rows.len() * (ROW_LEN_MIN + 4) + 4 + self.images.len() + 1
    }

    /// Writes the frame to `out` and answers where each entry lies, in order, from the frame's start.
    pub(super) fn assemble(&self, out: &mut Vec<u8>, place: Place) -> Vec<Entry> {
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

/// Where and when a frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Known to this store and segment alone: a frame from elsewhere, or one forged inside a body, is none.
    pub(super) seed: u64,
    /// Where in the segment it starts.
    pub(super) start: usize,
    /// Counts the frames of a segment.
    pub(super) ordinal: u32,
    pub(super) time: Timestamp,
}

/// One entry of a frame, and where its image lies.
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
    /// How many sectors are zero and were written so.
    blank: u32,
    place: Place,
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
        let place = Place {
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

/// What stands at some place of a segment.
#[derive(Debug)]
pub(super) enum Found {
    /// A frame whose header and table are whole; its images still have to prove themselves.
    Frame {
        place: Place,
        entries: Vec<Entry>,
        end: usize,
        /// Parts of it may never have been written, if its images say so too.
        is_unfinished: bool,
    },
    /// Nothing but zeros from here on: the end.
    End,
    /// The last frame, of which not everything was written. Nothing in it was ever acknowledged.
    Torn,
    /// Damage, up to the next frame that can be read or to the end of what is not zero.
    Damage { end: usize },
}

/// Looks at what stands at `at`. Offsets in the answer are from the segment's start.
///
/// `may_be_torn` tells that nothing was ever written behind this place; elsewhere nothing can be torn.
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

/// A frame whose header and table are whole.
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

/// The entries of a frame; `None` if its table is damaged.
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

/// Where the next readable frame behind `at` starts.
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

/// The ordinal of the frame at `at`, to go on behind damage.
pub(super) fn ordinal_at(segment: &[u8], seed: u64, at: usize) -> Option<u32> {
    let header = Header::decode(segment, seed, at)?;
    Some(header.place.ordinal)
}

/// Whether the unreadable last frame is one that was not written to its end.
fn is_torn(segment: &[u8], seed: u64, at: usize, used_end: usize) -> bool {
    match Header::decode(segment, seed, at) {
        Some(header) => header.is_unfinished(segment),
        None => used_end - at < HEADER_LEN || misses_header_sector(segment, at, used_end),
    }
}

impl Header {
    /// Whether the end is missing, or some sector that was not written as zeros is zero.
    fn is_unfinished(&self, segment: &[u8]) -> bool {
        let start = self.place.start;
        let end = start + self.len as usize;
        match segment.get(start..end) {
            None => true,
            Some(frame) => frame.last() == Some(&0) || blank_sectors(frame, start) > self.blank,
        }
    }
}

/// Whether a sector that holds a part of the header is zero. A header with anything in each of them was written, and damaged since.
fn misses_header_sector(segment: &[u8], at: usize, used_end: usize) -> bool {
    let header_end = at + HEADER_LEN;
    sectors(at, used_end)
        .take_while(|sector| sector.start < header_end)
        .any(|sector| is_zero(&segment[sector]))
}

/// How many sectors of these bytes, which start at `start` of a file, are zero as far as they lie within.
fn blank_sectors(bytes: &[u8], start: usize) -> u32 {
    let blank = sectors(start, start + bytes.len())
        .filter(|sector| is_zero(&bytes[sector.start - start..sector.end - start]));
    blank.count() as u32
}

/// The sectors that `from..to` touches, as far as they lie within.
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
