//! Snapshots: the index of a sealed segment in its own file, so that a restart need not scan the segment.
//!
//! A snapshot holds the position of the last image of each record in the segment.
//! If it is damaged, or does not match its segment, the segment is scanned and the snapshot is written again.

use std::{collections::HashSet, io, path::PathBuf};

use super::{
    frame::ImageKind,
    segment::{Location, Segment},
};
use crate::{
    clock::Timestamp,
    key::RecordId,
    log::{disk::Disk, folder::replace},
    varint::{self, Reader},
};

const MAGIC: [u8; 8] = *b"refr.idx";
const VERSION: u32 = 1;
/// Approximate length of a row in the file, in bytes.
const ROW_LEN: u64 = 22;
/// Approximate size of an entry without its image, in bytes.
const ENTRY_LEN: u64 = 20;

/// The content of a segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The used length of the segment, in bytes. A sealed segment is truncated there.
    pub(super) len: u64,
    /// The latest timestamp in the segment.
    pub(super) latest: Timestamp,
    /// When at most half of its bytes are still needed.
    pub(super) compact_at: Timestamp,
    /// When none of its bytes are needed any more.
    pub(super) drop_at: Timestamp,
    /// The last image of each record in the segment, by offset.
    pub(super) rows: Vec<Row>,
    /// Damaged images whose record is known, with their offsets.
    pub(super) damaged: Vec<(RecordId, u64)>,
    /// Unreadable ranges whose records are unknown.
    pub(super) holes: Vec<(u64, u64)>,
    /// The ends of earlier segments, as recorded in this one.
    pub(super) ends: Vec<(u32, u64)>,
}

/// The position of the last image of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: RecordId,
    pub(super) kind: ImageKind,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// An image and its expiry times, as noted by the writer or the scan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Noted {
    pub(super) row: Row,
    pub(super) retention_ends: Timestamp,
    pub(super) remember_ends: Timestamp,
}

impl Snapshot {
    /// Builds the snapshot from all images written to a segment, in order.
    pub(super) fn new(len: u64, latest: Timestamp, noted: &[Noted]) -> Self {
        let mut seen = HashSet::with_capacity(noted.len());
        let mut last: Vec<_> = noted
            .iter()
            .rev()
            .filter(|note| seen.insert(note.row.id))
            .collect();
        last.reverse();
        Self {
            len,
            latest,
            compact_at: compact_at(noted, &last),
            drop_at: last
                .iter()
                .map(|note| note.remember_ends)
                .max()
                .unwrap_or_default(),
            rows: last.iter().map(|note| note.row).collect(),
            ..Self::default()
        }
    }

    pub(super) fn write(&self, disk: &dyn Disk, segment: &Segment) -> io::Result<()> {
        replace(disk, &path(segment), &self.encode(segment))
    }

    /// The approximate number of rows in the snapshot of a segment, without reading it; 0 if it is missing.
    pub(super) fn rows_about(disk: &dyn Disk, segment: &Segment) -> usize {
        let file = disk.open(&path(segment));
        let len = file.and_then(|file| file.len()).unwrap_or(0);
        usize::try_from(len / ROW_LEN).unwrap_or(0)
    }

    /// Loads the snapshot of a segment; `None` if it is missing or damaged.
    pub(super) fn load(disk: &dyn Disk, segment: &Segment) -> Option<Self> {
        let file = disk.open(&path(segment)).ok()?;
        Self::decode(&file.read_whole().ok()?, segment)
    }

    /// Returns whether the snapshot can replace a scan. With damage it cannot: the segment may have been restored.
    pub(super) fn is_trusted(&self, segment: &Segment) -> bool {
        self.is_sound() && segment.file.len().is_ok_and(|len| len == self.len)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.holes.is_empty()
    }

    /// The offset of damage that the operator has not accepted.
    pub(super) fn open_damage(&self, segment: u32, accepted: &[(u32, u64)]) -> Option<u64> {
        let holes = self.holes.iter().map(|(from, _)| *from);
        let images = self.damaged.iter().map(|(_, offset)| *offset);
        holes
            .chain(images)
            .find(|offset| !accepted.contains(&(segment, *offset)))
    }

    /// The end of the segment before it lost data.
    pub(super) fn whole_len(&self) -> u64 {
        let ends = self.holes.iter().map(|(_, to)| *to);
        ends.fold(self.len, u64::max)
    }

    fn encode(&self, segment: &Segment) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.rows.len() * 22);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(segment.seed.to_le_bytes());
        for number in [self.len, self.latest.0, self.compact_at.0, self.drop_at.0] {
            varint::put(&mut out, number);
        }
        varint::put(&mut out, self.rows.len() as u64);
        let mut end = 0;
        for row in &self.rows {
            out.extend(row.id.0);
            out.push(row.kind as u8);
            // Images are in order, so the distance from the previous one is a short number.
            varint::put(&mut out, u64::from(row.offset - end));
            varint::put(&mut out, row.len.into());
            end = row.offset + row.len;
        }
        varint::put(&mut out, self.damaged.len() as u64);
        for (id, offset) in &self.damaged {
            out.extend(id.0);
            varint::put(&mut out, *offset);
        }
        varint::put(&mut out, self.holes.len() as u64);
        for (from, to) in &self.holes {
            varint::put(&mut out, *from);
            varint::put(&mut out, *to);
        }
        varint::put(&mut out, self.ends.len() as u64);
        for (number, end) in &self.ends {
            varint::put(&mut out, (*number).into());
            varint::put(&mut out, *end);
        }
        let sum = crc32fast::hash(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], segment: &Segment) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut reader = Reader(content);
        let is_ours =
            reader.array()? == MAGIC && reader.u32()? == VERSION && reader.u64()? == segment.seed;
        if !is_ours {
            return None;
        }
        let mut snapshot = Self {
            len: reader.varint()?,
            latest: Timestamp(reader.varint()?),
            compact_at: Timestamp(reader.varint()?),
            drop_at: Timestamp(reader.varint()?),
            ..Self::default()
        };
        let mut end = 0_u32;
        for _ in 0..reader.varint()? {
            let id = RecordId(reader.array()?);
            let kind = ImageKind::from_code(reader.u8()?)?;
            let offset = end.checked_add(reader.varint()?.try_into().ok()?)?;
            let len = reader.varint()?.try_into().ok()?;
            end = offset.checked_add(len)?;
            snapshot.rows.push(Row {
                id,
                kind,
                offset,
                len,
            });
        }
        for _ in 0..reader.varint()? {
            let id = RecordId(reader.array()?);
            snapshot.damaged.push((id, reader.varint()?));
        }
        for _ in 0..reader.varint()? {
            snapshot.holes.push((reader.varint()?, reader.varint()?));
        }
        for _ in 0..reader.varint()? {
            let number = reader.varint()?.try_into().ok()?;
            snapshot.ends.push((number, reader.varint()?));
        }
        Some(snapshot)
    }
}

fn path(segment: &Segment) -> PathBuf {
    segment.path.with_extension("idx")
}

/// Deletes the snapshot of a segment.
pub(super) fn remove(disk: &dyn Disk, segment: &Segment) {
    let path = path(segment);
    if let Err(error) = disk.remove(&path) {
        tracing::warn!(file = %path.display(), %error, "cannot remove a file");
    }
}

impl Row {
    pub(super) fn location(&self, segment: u32) -> Location {
        Location::new(segment, self.offset as usize, self.len as usize, self.kind)
    }
}

/// The first time at which at most half of the written bytes are still needed:
/// outcomes within their retention, and tombstones that are still remembered.
fn compact_at(noted: &[Noted], last: &[&Noted]) -> Timestamp {
    let bytes = |note: &Noted| ENTRY_LEN + u64::from(note.row.len);
    let total: u64 = noted.iter().map(bytes).sum();
    let mut ends: Vec<_> = last
        .iter()
        .filter_map(|note| match note.row.kind {
            ImageKind::Completed => Some((note.retention_ends, bytes(note))),
            ImageKind::Tombstone => Some((note.remember_ends, bytes(note))),
            _ => None,
        })
        .collect();
    ends.sort_unstable();
    let mut of_use: u64 = ends.iter().map(|(_, bytes)| bytes).sum();
    let mut at = Timestamp::default();
    for (end, bytes) in ends {
        if of_use * 2 <= total {
            break;
        }
        of_use -= bytes;
        at = end;
    }
    at
}
