//! Sweeping: deletes segments in which every record has expired,
//! and compacts segments that are half empty into an archive.
//!
//! So a few records with a long retention do not keep many expired records on disk.
//! After its retention, an outcome is reduced to a tombstone.

use std::{
    io,
    sync::{Arc, PoisonError},
};

use super::{
    EmbeddedState, Error, ErrorKind, Result, Slot,
    frame::Builder,
    lock,
    manifest::Extent,
    recover::{self, Sealed},
    segment::{HEADER_LEN, Location, Segment},
    snapshot::{self, Noted, Row, Snapshot},
    writer::Request,
};
use crate::{
    clock::Timestamp,
    key::RecordId,
    log::{failure::is_temporary_error, frame::FramePosition},
    record::{Command, Record, step},
};

/// A frame of an archive is closed once its images take this many bytes.
const FRAME_BYTES: usize = 1 << 20;
/// More small segments than this are merged.
const SMALL_MAX: usize = 16;

impl EmbeddedState {
    /// Deletes and compacts expired segments, until `at_most` records are removed or nothing is left to do.
    pub(super) fn sweep(&self, at_most: u32) -> Result<u32> {
        let _only_one = lock(&self.maintenance.sweeping);
        let mut swept = 0;
        while swept < at_most {
            self.check_open()?;
            let now = self.clock.now();
            let due = self.due(now);
            if due.is_empty() {
                break;
            }
            let are_dropped = due.iter().all(|sealed| sealed.drop_at <= now);
            self.raise_watermark(&due, are_dropped)?;
            let done = match are_dropped {
                true => self.drop_segments(&due),
                false => self.compact(&due),
            };
            swept += match done {
                Ok(count) => count,
                Err(SweepError::Damaged(number, error)) => {
                    tracing::error!(%error, "cannot sweep a segment");
                    self.maintenance.mark_damaged(number);
                    0
                }
                Err(SweepError::Failed(error)) => return Err(error),
            };
        }
        Ok(swept)
    }

    /// The next segments to delete together, or to compact into one.
    fn due(&self, now: Timestamp) -> Vec<Sealed> {
        let (mut sealed, active) = self.maintenance.sealed();
        // A spare segment that was too short is sealed while the segment before it is still the active one.
        // A live record could not be rewritten to a segment after it, so it is not due yet.
        let is_behind = |sealed: &Sealed| {
            !sealed.segment.is_archive
                && active.is_some_and(|active| sealed.segment.number > active)
        };
        sealed.retain(|sealed| !sealed.is_damaged && !is_behind(sealed));
        let (past, rest): (Vec<_>, Vec<_>) =
            sealed.into_iter().partition(|sealed| sealed.drop_at <= now);
        if !past.is_empty() {
            return past;
        }
        let bytes_max = self.options.segment_bytes_max;
        let is_small = |sealed: &Sealed| sealed.len < bytes_max / 8;
        let merges = rest.iter().filter(|sealed| is_small(sealed)).count() > SMALL_MAX;
        let mut due = Vec::new();
        let mut bytes = 0;
        for sealed in rest {
            // Erased images must leave the disk soon, not only when the rest of the segment expires.
            let is_due = sealed.compact_at <= now
                || merges && is_small(&sealed)
                || self.has_erased(sealed.segment.number);
            if is_due && bytes < bytes_max {
                bytes += sealed.len;
                due.push(sealed);
            }
        }
        due
    }

    /// Rewrites every live record whose image is in one of these segments or before them.
    ///
    /// On a full disk, it does so only for segments to delete, because that frees room.
    /// The remaining room is reserved for settling records in flight.
    fn raise_watermark(&self, due: &[Sealed], are_dropped: bool) -> Result<()> {
        let logs = due.iter().filter(|sealed| !sealed.segment.is_archive);
        let Some(highest) = logs.map(|sealed| sealed.segment.number).max() else {
            return Ok(());
        };
        let watermark = highest + 1;
        if lock(&self.manifest).watermark >= watermark {
            return Ok(());
        }
        let is_below = |slot: &Slot| matches!(slot, Slot::Live(live) if live.segment < watermark);
        let mut after = None;
        loop {
            let ids = self.table.ids_after(after, is_below);
            let Some(last) = ids.last() else { break };
            after = Some(*last);
            if !are_dropped {
                self.check_room()?;
            }
            let mut answers = Vec::new();
            for id in ids {
                answers.push(self.enqueue(id, Request::Carry(watermark))?);
            }
            for answer in answers {
                answer
                    .blocking_recv()
                    .unwrap_or_else(|_| Err(self.closed()))?;
            }
        }
        self.edit_manifest(|manifest| manifest.watermark = watermark)
            .map_err(|error| self.sweep_failed(&error))
    }

    fn drop_segments(&self, due: &[Sealed]) -> Swept<u32> {
        let mut swept = 0;
        for sealed in due {
            for row in self.rows(&sealed.segment)? {
                swept += u32::from(self.forget(&sealed.segment, &row));
            }
        }
        self.admit(due, None)
            .map_err(|error| self.sweep_failed(&error))?;
        self.retire(due, None);
        Ok(swept)
    }

    fn rows(&self, segment: &Segment) -> Swept<Vec<Row>> {
        let snapshot = recover::snapshot_of(&*self.options.disk, segment)?;
        let accepted = &lock(&self.manifest).accepted;
        match snapshot.open_damage(segment.number, accepted) {
            None => Ok(snapshot.rows),
            // Damaged after the store was opened: keep the segment, so that the damaged record does not become absent.
            Some(offset) => Err(SweepError::Damaged(
                segment.number,
                segment.unreadable(offset),
            )),
        }
    }

    /// Removes a record from the table, if the table still refers to this row.
    fn forget(&self, segment: &Segment, row: &Row) -> bool {
        let old = row.location(segment.number);
        self.table.with(row.id, |entry| {
            let is_it = matches!(entry.get(), Some(Slot::Stored(at)) if *at == old);
            is_it && entry.take().is_some()
        })
    }

    fn compact(&self, due: &[Sealed]) -> Swept<u32> {
        let mut archive = Archive::new(self);
        for sealed in due {
            if let Err(error) = archive.take(&sealed.segment) {
                archive.discard();
                return Err(error);
            }
        }
        let Archived { made, moves, gone } = archive.finish()?;
        if let Err(error) = self.admit(due, made.as_ref()) {
            // After any other error, the manifest on disk may already list the archive: keep its file.
            if let Some(made) = made.filter(|_| is_temporary_error(&error)) {
                self.remove(&made.segment);
            }
            return Err(self.sweep_failed(&error).into());
        }
        if let Some(made) = &made {
            self.add_segment(&made.segment);
        }
        for (id, old, new) in moves {
            self.table.with(id, |entry| {
                if matches!(entry.get(), Some(Slot::Stored(at)) if *at == old) {
                    entry.put(Slot::Stored(new));
                }
            });
        }
        let forgotten = gone
            .iter()
            .filter(|(segment, row)| self.forget(segment, row));
        let swept = u32::try_from(forgotten.count()).unwrap_or(u32::MAX);
        self.retire(due, made);
        Ok(swept)
    }

    /// Replaces the segments `due` with `made` in the manifest.
    fn admit(&self, due: &[Sealed], made: Option<&Sealed>) -> io::Result<()> {
        self.edit_manifest(|manifest| {
            for sealed in due {
                let number = sealed.segment.number;
                manifest.segments.remove(&number);
                manifest.accepted.retain(|(segment, _)| *segment != number);
                manifest.erased.retain(|(segment, _)| *segment != number);
            }
            let made = made.map(|made| (made.segment.number, Some(Extent::sealed(made.len))));
            manifest.segments.extend(made);
        })
    }

    /// Deletes segments that the table no longer refers to. Concurrent readers keep their open files.
    fn retire(&self, due: &[Sealed], made: Option<Sealed>) {
        let numbers: Vec<_> = due.iter().map(|sealed| sealed.segment.number).collect();
        self.maintenance.replace_sealed(&numbers, made);
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        segments.retain(|number, _| !numbers.contains(number));
        drop(segments);
        for sealed in due {
            self.remove(&sealed.segment);
        }
    }

    fn remove(&self, segment: &Segment) {
        let (disk, path) = (&*self.options.disk, &segment.path);
        if let Err(error) = disk.remove(path) {
            tracing::warn!(file = %path.display(), %error, "cannot remove a file");
        }
        snapshot::remove(disk, segment);
    }

    fn sweep_failed(&self, error: &io::Error) -> Error {
        if !is_temporary_error(error) {
            self.shut(error);
        }
        let message = format!(
            "sweeping the store {} failed: {error}",
            self.folder.path.display()
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Why a segment could not be swept.
enum SweepError {
    /// Part of this segment is unreadable: the segment stays as it is.
    Damaged(u32, Error),
    Failed(Error),
}

type Swept<T> = Result<T, SweepError>;

impl From<Error> for SweepError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Copies the records that are still needed from some segments into a new one.
struct Archive<'a> {
    shared: &'a EmbeddedState,
    now: Timestamp,
    segment: Option<Segment>,
    end: usize,
    ordinal: u64,
    builder: Builder,
    frame: Vec<u8>,
    /// Records in the unfinished frame, with their old positions.
    open: Vec<(Location, Record)>,
    noted: Vec<Noted>,
    moves: Vec<(RecordId, Location, Location)>,
    gone: Vec<(Arc<Segment>, Row)>,
}

/// The result of a compaction.
struct Archived {
    made: Option<Sealed>,
    moves: Vec<(RecordId, Location, Location)>,
    gone: Vec<(Arc<Segment>, Row)>,
}

impl<'a> Archive<'a> {
    fn new(shared: &'a EmbeddedState) -> Self {
        Self {
            shared,
            now: shared.clock.now(),
            segment: None,
            end: HEADER_LEN,
            ordinal: 0,
            builder: Builder::default(),
            frame: Vec::new(),
            open: Vec::new(),
            noted: Vec::new(),
            moves: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Copies the records of this segment that are still needed.
    fn take(&mut self, segment: &Arc<Segment>) -> Swept<()> {
        for row in self.shared.rows(segment)? {
            let old = row.location(segment.number);
            let slot = self.shared.table.get(row.id);
            if !row.kind.ends_by_time() || !matches!(slot, Some(Slot::Stored(at)) if at == old) {
                continue;
            }
            let record = segment
                .read(row.id, old)
                .map_err(|error| match error.kind() {
                    ErrorKind::Corrupt => SweepError::Damaged(segment.number, error),
                    _ => SweepError::Failed(error),
                })?;
            match step(Some(record), Command::Age, self.now).record {
                Some(record) => self.push(row.id, old, record)?,
                None => self.gone.push((segment.clone(), row)),
            }
        }
        Ok(())
    }

    fn push(&mut self, id: RecordId, old: Location, record: Record) -> Result<()> {
        self.builder.push(id, Some(&record));
        self.open.push((old, record));
        match self.builder.image_bytes() >= FRAME_BYTES {
            true => self
                .flush()
                .map_err(|error| self.shared.sweep_failed(&error)),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let segment = match self.segment.take() {
            Some(segment) => segment,
            None => self.create()?,
        };
        let place = FramePosition {
            seed: segment.seed,
            start: self.end,
            ordinal: self.ordinal,
        };
        let entries = self.builder.assemble(&mut self.frame, place, self.now);
        let written = segment.file.write_all_at(&self.frame, self.end as u64);
        for (entry, (old, record)) in entries.iter().zip(self.open.drain(..)) {
            let note = entry.noted(Some(&record), self.end);
            self.moves
                .push((entry.id, old, note.row.location(segment.number)));
            self.noted.push(note);
        }
        self.segment = Some(segment);
        self.end += self.frame.len();
        self.ordinal += 1;
        self.builder.clear();
        written
    }

    fn create(&self) -> io::Result<Segment> {
        let shared = self.shared;
        let (disk, folder) = (&*shared.options.disk, &shared.folder);
        let number = shared.take_number();
        Segment::create(
            disk,
            &folder.path,
            &folder.secret,
            number,
            true,
            HEADER_LEN as u64,
        )
    }

    /// Makes the new segment and its snapshot durable.
    fn finish(mut self) -> Result<Archived> {
        match self.flush().and_then(|()| self.seal()) {
            Ok(snapshot) => Ok(self.archived(snapshot)),
            Err(error) => {
                let failed = self.shared.sweep_failed(&error);
                self.discard();
                Err(failed)
            }
        }
    }

    fn seal(&self) -> io::Result<Snapshot> {
        let snapshot = Snapshot::new(self.end as u64, self.now, &self.noted);
        if let Some(segment) = &self.segment {
            segment.file.sync()?;
            snapshot.write(&*self.shared.options.disk, segment)?;
        }
        Ok(snapshot)
    }

    fn archived(self, snapshot: Snapshot) -> Archived {
        let sealed = |segment| Sealed {
            segment: Arc::new(segment),
            len: snapshot.len,
            compact_at: snapshot.compact_at,
            drop_at: snapshot.drop_at,
            is_damaged: false,
        };
        Archived {
            made: self.segment.map(sealed),
            moves: self.moves,
            gone: self.gone,
        }
    }

    /// Deletes the unfinished archive, which no manifest lists yet.
    fn discard(self) {
        if let Some(segment) = &self.segment {
            self.shared.remove(segment);
        }
    }
}
