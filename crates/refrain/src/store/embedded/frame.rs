//! A frame is what one group commit writes: a header, the table of what is in it, the images, and an end mark.
//!
//! Header, table and each image have checksums of their own, so that damage to one image leaves the others readable
//! and the identity of the damaged one known.
//! A frame is written only after the frame before it is durable.
//! So a frame that cannot be read and has a readable one behind it is corruption;
//! the last one may also be torn, which shows in the parts that are still zero as the segment was allocated.

use crate::{
    clock::Timestamp,
    key::RecordId,
    varint::{self, Reader},
};

use super::image::Kind;

const MAGIC: [u8; 4] = *b"rFr1";
const HEADER_LEN: usize = 28;
/// Never zero: shows that a frame was written to its end.
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
        let header = Header {
            len: out.len() as u32,
            count: self.rows.len() as u32,
            place,
        };
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
        let sum = Self::checksum(&out[..24], self.place.seed);
        out[24..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let mut reader = Reader(bytes);
        let fields = bytes.get(..24)?;
        if reader.array()? != MAGIC {
            return None;
        }
        let (len, count) = (reader.u32()?, reader.u32()?);
        let ordinal = reader.u32()?;
        let time = Timestamp(reader.u64()?);
        let place = Place {
            seed,
            ordinal,
            time,
        };
        let fits = reader.u32()? == Self::checksum(fields, seed) && len as usize > HEADER_LEN;
        fits.then_some(Self { len, count, place })
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
/// `is_last` tells that nothing was ever written behind this segment; elsewhere nothing can be torn.
pub(super) fn find(segment: &[u8], seed: u64, at: usize, ordinal: u32, is_last: bool) -> Found {
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
    match is_last && is_torn(segment, seed, at, used_end) {
        true => Found::Torn,
        false => Found::Damage { end: used_end },
    }
}

/// A frame whose header, table and end mark are whole.
fn whole_frame(segment: &[u8], seed: u64, at: usize, ordinal: u32) -> Option<Found> {
    let header = Header::decode(segment.get(at..)?, seed)?;
    let frame = segment.get(at..at + header.len as usize)?;
    if header.place.ordinal != ordinal || frame.last() != Some(&END) {
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
        let header = Header::decode(&segment[start..], seed);
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
    let header = Header::decode(segment.get(at..)?, seed)?;
    Some(header.place.ordinal)
}

/// Whether the unreadable last frame is one that was not written to its end.
fn is_torn(segment: &[u8], seed: u64, at: usize, used_end: usize) -> bool {
    let Some(header) = Header::decode(&segment[at..], seed) else {
        return used_end - at < HEADER_LEN || has_zero_sector(segment, at, used_end);
    };
    let end = at + header.len as usize;
    match segment.get(end - 1) {
        None | Some(0) => true,
        Some(_) => has_zero_sector(segment, at, end),
    }
}

/// Whether some sector that `from..to` touches is zero as far as it lies within.
pub(super) fn has_zero_sector(segment: &[u8], from: usize, to: usize) -> bool {
    let to = to.min(segment.len());
    let mut start = from;
    while start < to {
        let end = to.min((start / SECTOR + 1) * SECTOR);
        if segment[start..end].iter().all(|byte| *byte == 0) {
            return true;
        }
        start = end;
    }
    false
}
