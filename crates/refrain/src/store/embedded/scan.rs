//! Scan of a segment from start to end: its records, torn writes and damage.

use std::{collections::HashMap, ops::Range};

use bytes::Bytes;

use super::{
    folder::unavailable,
    frame::{self, FrameEntry, ImageKind, SegmentFrames},
    segment::{HEADER_LEN, Segment},
    snapshot::{Noted, Row, Snapshot},
};
use crate::{
    Error, Result,
    key::RecordId,
    log::frame::{Found, Scanner},
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
        let start = HEADER_LEN.min(bytes.len());
        let torn_from = torn_from.and_then(|from| usize::try_from(from).ok());
        let torn_from = torn_from.unwrap_or(usize::MAX);
        let mut frames = Scanner::<SegmentFrames>::new(bytes, seed, start, torn_from);
        loop {
            let at = frames.place().start;
            match frames.find() {
                Found::End => return at,
                Found::Torn { end } => {
                    self.torn = Some(at as u64..end as u64);
                    return at;
                }
                Found::Damage { end } => self.snapshot.holes.push((at as u64, end as u64)),
                Found::Frame { content, end } => {
                    for entry in &content.entries {
                        self.take(entry, note(bytes, entry));
                    }
                    self.snapshot.latest = self.snapshot.latest.max(content.time);
                    self.last = Some((at as u64, bytes.slice(at..end)));
                }
            }
        }
    }

    /// Takes an entry of a frame: the last entry of each record counts, damaged or not.
    fn take(&mut self, entry: &FrameEntry, note: Option<Note>) {
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

/// A decoded entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Note {
    Image(Noted),
    End((u32, u64)),
}

/// Decodes an entry of a segment; `None` if it is damaged.
pub(super) fn note(segment: &Bytes, entry: &FrameEntry) -> Option<Note> {
    let image = segment.slice(entry.offset..entry.offset + entry.len);
    if entry.kind == ImageKind::Sealed {
        return frame::decode_sealed(&image).map(Note::End);
    }
    let record = frame::decode(entry.kind, entry.id, &image)?;
    Some(Note::Image(entry.noted(record.as_ref(), 0)))
}

pub(super) fn unreadable(segment: &Segment, offset: u64, error: std::io::Error) -> Error {
    let message = format!("{}: offset {offset} cannot be read", segment.path.display());
    unavailable(message, error)
}
