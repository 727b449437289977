//! Scan of a segment from start to end: its records, torn writes and damage.

use std::{collections::HashMap, ops::Range};

use bytes::Bytes;

use super::{
    folder::unavailable,
    frame::{self, Found},
    image::{self, Kind},
    segment::{HEADER_LEN, Segment},
    snapshot::{Noted, Row, Snapshot},
};
use crate::{
    Error, Result,
    clock::Timestamp,
    key::RecordId,
    record::{Record, State},
};

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) snapshot: Snapshot,
    /// The offset and the bytes of the last frame.
    pub(super) last: Option<(u64, Bytes)>,
    /// The range of a torn write after the end.
    pub(super) torn: Option<Range<u64>>,
    noted: Vec<Noted>,
    /// Records whose last image is damaged, and its offset.
    damaged: HashMap<RecordId, u64>,
}

impl Scan {
    /// Scans the segment. A torn write is possible from offset `torn_from` on; `None` if there can be none.
    pub(super) fn of(segment: &Segment, torn_from: Option<u64>) -> Result<Self> {
        let bytes = segment
            .file
            .read_whole()
            .map(Bytes::from)
            .map_err(|error| unreadable(segment, 0, error))?;
        let mut scan = Self::default();
        let end = scan.read(&bytes, segment.seed, torn_from);
        if scan.torn.is_some() {
            tracing::info!(
                segment = segment.number,
                offset = end,
                "found an unfinished write; nothing in it was acknowledged"
            );
        }
        Ok(scan.finish(end))
    }

    /// Reads all frames, and returns the end of the last one.
    fn read(&mut self, bytes: &Bytes, seed: u64, torn_from: Option<u64>) -> usize {
        let (mut at, mut ordinal) = (HEADER_LEN.min(bytes.len()), 0);
        loop {
            let may_be_torn = torn_from.is_some_and(|from| at as u64 >= from);
            match frame::find(bytes, seed, at, ordinal, may_be_torn) {
                Found::End => return at,
                Found::Torn => {
                    self.torn = Some(unfinished(bytes, at));
                    return at;
                }
                Found::Damage { end } => {
                    self.snapshot.holes.push((at as u64, end as u64));
                    ordinal = frame::ordinal_at(bytes, seed, end).unwrap_or(ordinal);
                    at = end;
                }
                Found::Frame {
                    place,
                    entries,
                    end,
                    is_unfinished,
                } => {
                    let notes = notes(bytes, &entries);
                    let may_be_torn = may_be_torn && is_unfinished && notes.contains(&None);
                    ordinal += 1;
                    if may_be_torn && is_end(bytes, seed, end, ordinal) {
                        self.torn = Some(unfinished(bytes, at));
                        return at;
                    }
                    self.take(&entries, notes);
                    self.snapshot.latest = self.snapshot.latest.max(place.time);
                    self.last = Some((at as u64, bytes.slice(at..end)));
                    at = end;
                }
            }
        }
    }

    /// Takes the entries of a frame in order: the last entry of each record counts, damaged or not.
    fn take(&mut self, entries: &[frame::Entry], notes: Vec<Option<Note>>) {
        for (entry, note) in entries.iter().zip(notes) {
            match note {
                Some(Note::End(end)) => self.snapshot.ends.push(end),
                Some(Note::Image(note)) => {
                    self.damaged.remove(&entry.id);
                    self.noted.push(note);
                }
                None => {
                    self.damaged.insert(entry.id, entry.offset as u64);
                }
            }
        }
    }

    fn finish(mut self, end: usize) -> Self {
        let read = self.snapshot;
        let mut snapshot = Snapshot::new(end as u64, read.latest, &self.noted);
        let is_damaged = |row: &Row| self.damaged.contains_key(&row.id);
        snapshot.rows.retain(|row| !is_damaged(row));
        snapshot.damaged = self.damaged.drain().collect();
        snapshot.damaged.sort_unstable_by_key(|(_, offset)| *offset);
        self.snapshot = Snapshot {
            holes: read.holes,
            ends: read.ends,
            ..snapshot
        };
        self
    }
}

/// The range from `at` to the last non-zero byte.
fn unfinished(bytes: &[u8], at: usize) -> Range<u64> {
    let used = bytes[at..].iter().rposition(|byte| *byte != 0);
    at as u64..(at + used.map_or(0, |last| last + 1)) as u64
}

fn is_end(bytes: &[u8], seed: u64, at: usize, ordinal: u32) -> bool {
    matches!(frame::find(bytes, seed, at, ordinal, true), Found::End)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Note {
    Image(Noted),
    End((u32, u64)),
}

/// Decodes each entry; `None` if it is damaged.
fn notes(bytes: &Bytes, entries: &[frame::Entry]) -> Vec<Option<Note>> {
    let note = |entry: &frame::Entry| {
        let image = bytes.slice(entry.offset..entry.offset + entry.len);
        if entry.kind == Kind::Sealed {
            return image::decode_sealed(&image).map(Note::End);
        }
        let record = image::decode(entry.kind, entry.id, &image)?;
        Some(Note::Image(noted(entry, record.as_ref(), 0)))
    };
    entries.iter().map(note).collect()
}

/// The snapshot entry of an image in a frame that starts at `frame_start`.
pub(super) fn noted(entry: &frame::Entry, record: Option<&Record>, frame_start: usize) -> Noted {
    let (retention_ends, remember_ends) = match record.map(|record| &record.state) {
        Some(State::Completed {
            retention_ends,
            remember_ends,
            ..
        }) => (*retention_ends, *remember_ends),
        Some(State::Tombstone { remember_ends }) => (Timestamp::default(), *remember_ends),
        _ => Default::default(),
    };
    Noted {
        row: Row {
            id: entry.id,
            kind: entry.kind,
            offset: (frame_start + entry.offset) as u32,
            len: entry.len as u32,
        },
        retention_ends,
        remember_ends,
    }
}

pub(super) fn unreadable(segment: &Segment, offset: u64, error: std::io::Error) -> Error {
    let message = format!("{}: offset {offset} cannot be read", segment.path.display());
    unavailable(message, error)
}
