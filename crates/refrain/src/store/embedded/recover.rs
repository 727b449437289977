//! Recovery: rebuilds the table from the files when a store is opened.
//!
//! Archives come first, then the log in order; the last image of each record counts.
//! Sealed segments are loaded from their snapshots. The last segment, and any without a valid snapshot, is scanned.

use std::{collections::HashMap, fs, io, path::Path, sync::Arc};

use super::{
    Damage, Slot,
    folder::unavailable,
    frame::{self, ImageKind, SegmentFrames},
    manifest::{Extent, Manifest},
    scan::{Scan, unreadable},
    segment::{HEADER_LEN, Location, Segment},
    snapshot::{self, Row, Snapshot},
    wire::HeldLease,
};
use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    key::{RecordId, Secret},
    log::{commit::Appender, disk::Disk, failure::is_temporary_error, frame::Format as _},
    record::{Claimant, Record, State},
    store::table::Table,
};

/// A completely written segment, and when it expires.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) segment: Arc<Segment>,
    pub(super) len: u64,
    pub(super) compact_at: Timestamp,
    pub(super) drop_at: Timestamp,
    /// Parts of the segment are unreadable. It stays until the operator has accepted the damage.
    pub(super) is_damaged: bool,
}

/// Segments that are missing or have an invalid header, with the error.
type Missing = Vec<(u32, Error)>;

/// The result of recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) table: Table<Slot>,
    pub(super) sealed: Vec<Sealed>,
    pub(super) manifest: Manifest,
    /// The latest timestamp found in any file.
    pub(super) latest: Timestamp,
    pub(super) damage: Vec<Damage>,
}

/// Recovers a store. With `in_full`, every segment is scanned and no snapshot is used.
pub(super) fn recover(
    disk: &dyn Disk,
    folder: &Path,
    secret: &Secret,
    in_full: bool,
) -> Result<Recovered> {
    let manifest = match Manifest::load(disk, folder)? {
        Some(manifest) => manifest,
        None => new_manifest(folder)?,
    };
    remove_strays(disk, folder, &manifest)?;
    let latest = manifest.time;
    let mut recovered = Recovered {
        table: Table::new(),
        sealed: Vec::new(),
        manifest,
        latest,
        damage: Vec::new(),
    };
    let (segments, missing) = recovered.open_segments(disk, folder, secret)?;
    let last = last_written(&segments)?;
    let (archives, logs): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|segment| segment.is_archive);
    let all = archives.iter().chain(&logs);
    // At once: growing step by step would leave the former tables behind as free memory.
    let rows: usize = all.map(|segment| Snapshot::rows_about(disk, segment)).sum();
    recovered.table.reserve(rows);
    // The ends of segments, as recorded by their successors.
    let mut ends = HashMap::new();
    for segment in archives.into_iter().chain(logs) {
        let is_last = Some(segment.number) == last;
        recovered.take(disk, segment, is_last, in_full, &mut ends)?;
    }
    recovered.check_ends(disk, &ends);
    for (number, error) in missing {
        recovered.note_hole(number, 0, u64::MAX, &error.to_string());
    }
    Ok(recovered)
}

impl Recovered {
    /// Opens the segments; returns missing and invalid ones separately.
    fn open_segments(
        &self,
        disk: &dyn Disk,
        folder: &Path,
        secret: &Secret,
    ) -> Result<(Vec<Segment>, Missing)> {
        let mut segments = Vec::new();
        let mut missing = Vec::new();
        for number in self.manifest.segments.keys().copied() {
            match Segment::open(disk, folder, secret, number) {
                Ok(segment) => segments.push(segment),
                Err(error) if error.kind() == ErrorKind::Corrupt => missing.push((number, error)),
                Err(error) => return Err(error),
            }
        }
        Ok((segments, missing))
    }

    fn note_hole(&mut self, segment: u32, from: u64, to: u64, what: &str) {
        if self.manifest.accepted.contains(&(segment, from)) {
            return;
        }
        self.damage.push(Damage {
            segment,
            offset: from,
            end: to,
            record: None,
            what: what.into(),
        });
        // A live record before the hole may have changed in it.
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(live) if live.segment <= segment);
        let mut after = None;
        loop {
            let ids = self.table.ids_after(after, is_live);
            let Some(last) = ids.last() else { return };
            after = Some(*last);
            for id in ids {
                self.table.with(id, |entry| entry.put(Slot::Damaged));
            }
        }
    }

    fn take(
        &mut self,
        disk: &dyn Disk,
        segment: Segment,
        is_last: bool,
        in_full: bool,
        ends: &mut HashMap<u32, u64>,
    ) -> Result<()> {
        let torn_from = self.note_extent(&segment, is_last, ends)?;
        let loaded = Snapshot::load(disk, &segment);
        if let Some(loaded) = &loaded {
            note_end(ends, segment.number, loaded.whole_len());
        }
        let trusted = loaded.filter(|loaded| !in_full && loaded.is_trusted(&segment));
        let snapshot = match trusted {
            Some(snapshot) => snapshot,
            None => {
                let scan = Scan::of(&segment, torn_from)?;
                seal(disk, &segment, &scan, is_last)?;
                scan.snapshot
            }
        };
        for (number, end) in &snapshot.ends {
            note_end(ends, *number, *end);
        }
        let known = self.damage.len();
        self.apply(&segment, &snapshot)?;
        if self.damage.len() > known && snapshot.is_sound() {
            // The snapshot does not contain the damage: the next recovery must scan the segment.
            snapshot::remove(disk, &segment);
        }
        self.latest = self.latest.max(snapshot.latest);
        self.sealed.push(Sealed {
            len: snapshot.len,
            compact_at: snapshot.compact_at,
            drop_at: snapshot.drop_at,
            is_damaged: self.damage.len() > known,
            segment: Arc::new(segment),
        });
        Ok(())
    }

    /// Notes the minimum end of the segment from the manifest; returns the offset from which a torn write is possible.
    ///
    /// Segments are fully allocated before use. So a shorter file has lost its end, and nothing in it is a torn write.
    fn note_extent(
        &self,
        segment: &Segment,
        is_last: bool,
        ends: &mut HashMap<u32, u64>,
    ) -> Result<Option<u64>> {
        let Some(extent) = self.manifest.extent(segment.number) else {
            return Ok(is_last.then_some(0));
        };
        let file = segment.file.len();
        let is_short = file.map_err(|error| unreadable(segment, 0, error))? < extent.len;
        let reaches = if is_short { extent.len } else { extent.written };
        note_end(ends, segment.number, reaches);
        Ok((is_last && !is_short).then_some(extent.written))
    }

    fn apply(&mut self, segment: &Segment, snapshot: &Snapshot) -> Result<()> {
        let number = segment.number;
        let mut rows = &snapshot.rows[..];
        for (from, to) in &snapshot.holes {
            let before = rows.partition_point(|row| u64::from(row.offset) < *from);
            let (front, behind) = rows.split_at(before);
            self.apply_rows(segment, front)?;
            self.note_hole(number, *from, *to, "cannot be read");
            rows = behind;
        }
        self.apply_rows(segment, rows)?;
        for (id, offset) in &snapshot.damaged {
            self.note_damaged(segment, *id, *offset);
        }
        Ok(())
    }

    fn note_damaged(&mut self, segment: &Segment, id: RecordId, offset: u64) {
        let place = (segment.number, offset);
        if self.manifest.accepted.contains(&place) || self.manifest.erased.contains(&place) {
            self.table.with(id, |entry| entry.take());
            return;
        }
        self.table.with(id, |entry| entry.put(Slot::Damaged));
        self.damage.push(Damage {
            segment: segment.number,
            offset,
            end: offset,
            record: Some(id),
            what: "the image is damaged".into(),
        });
    }

    fn apply_rows(&mut self, segment: &Segment, rows: &[Row]) -> Result<()> {
        let is_below = !segment.is_archive && segment.number < self.manifest.watermark;
        for row in rows {
            if is_below && !row.kind.ends_by_time() {
                continue;
            }
            let at = row.location(segment.number);
            let place = (segment.number, u64::from(row.offset));
            match row.kind {
                _ if self.manifest.erased.contains(&place) => self.apply_erased(row.id),
                ImageKind::Completed | ImageKind::Tombstone if is_below => {
                    let slot = self.later(segment, row.id, at)?;
                    self.table.with(row.id, |entry| entry.put(slot));
                }
                ImageKind::Completed | ImageKind::Tombstone => {
                    self.table.with(row.id, |entry| entry.put(Slot::Stored(at)));
                }
                ImageKind::Absent => {
                    self.table.with(row.id, |entry| entry.take());
                }
                ImageKind::InFlight | ImageKind::Indeterminate => self.apply_live(segment, row)?,
                ImageKind::Sealed => {}
            }
        }
        Ok(())
    }

    /// An erased image voids all earlier images. But an archive may hold a later claim of the same key, which stays.
    fn apply_erased(&self, id: RecordId) {
        let is_later = |slot: Option<Slot>| match slot {
            Some(Slot::Stored(at)) => self.archive(at.segment).is_some(),
            _ => false,
        };
        if !is_later(self.table.get(id)) {
            self.table.with(id, |entry| entry.take());
        }
    }

    /// Decides which image of a record below the watermark counts. An archive holds images from there,
    /// so it may hold a later use of the key than a log segment that was not compacted with it.
    fn later(&self, segment: &Segment, id: RecordId, at: Location) -> Result<Slot> {
        let of_record = |damage: &&Damage| damage.record == Some(id);
        let mut damage = self.damage.iter().filter(of_record);
        if damage.any(|damage| self.archive(damage.segment).is_some()) {
            return Ok(Slot::Damaged);
        }
        let Some(Slot::Stored(stored)) = self.table.get(id) else {
            return Ok(Slot::Stored(at));
        };
        let Some(archive) = self.archive(stored.segment) else {
            return Ok(Slot::Stored(at));
        };
        // A key is used again only when its previous record is no longer remembered, so the later end wins.
        let ends = (
            remember_ends(archive, id, stored)?,
            remember_ends(segment, id, at)?,
        );
        Ok(match ends {
            (Some(archived), Some(logged)) if archived < logged => Slot::Stored(at),
            (Some(_), Some(_)) => Slot::Stored(stored),
            _ => Slot::Damaged,
        })
    }

    fn archive(&self, number: u32) -> Option<&Segment> {
        let mut archives = self.sealed.iter().map(|sealed| &*sealed.segment);
        archives.find(|segment| segment.is_archive && segment.number == number)
    }

    fn apply_live(&mut self, segment: &Segment, row: &Row) -> Result<()> {
        let mut bytes = vec![0; row.len as usize];
        let filled = segment
            .file
            .read_full_at(&mut bytes, row.offset.into())
            .map_err(|error| unreadable(segment, row.offset.into(), error))?;
        bytes.truncate(filled);
        match frame::decode(row.kind, row.id, &bytes.into()).flatten() {
            Some(record) => {
                let slot = Slot::live(record, segment.number);
                self.table.with(row.id, |entry| entry.put(slot));
            }
            None => self.note_damaged(segment, row.id, row.offset.into()),
        }
        Ok(())
    }

    /// Reports segments that have lost their end: they end before the offset in their successor or in the manifest.
    fn check_ends(&mut self, disk: &dyn Disk, ends: &HashMap<u32, u64>) {
        for at in 0..self.sealed.len() {
            let Sealed { segment, len, .. } = self.sealed[at].clone();
            let Some(end) = ends.get(&segment.number).copied().filter(|end| len < *end) else {
                continue;
            };
            // If the manifest does not record this end, store it in the snapshot for the next recovery.
            let extent = self.manifest.extent(segment.number);
            if extent.is_none_or(|extent| extent.len < end)
                && let Some(mut snapshot) = Snapshot::load(disk, &segment)
            {
                snapshot.holes.push((len, end));
                if let Err(error) = snapshot.write(disk, &segment) {
                    tracing::warn!(segment = segment.number, %error, "cannot write the snapshot");
                }
            }
            let is_accepted = self.manifest.accepted.contains(&(segment.number, len));
            self.sealed[at].is_damaged |= !is_accepted;
            self.note_hole(
                segment.number,
                len,
                end,
                "the end of the segment is missing",
            );
        }
    }

    /// Writes the manifest of this opening, without empty segments, and truncates the other segments at their ends.
    pub(super) fn begin(&mut self, disk: &dyn Disk, folder: &Path) -> Result<()> {
        let is_empty = |sealed: &Sealed| sealed.len == HEADER_LEN as u64 && !sealed.is_damaged;
        let (empty, sealed): (Vec<_>, _) = self.sealed.drain(..).partition(is_empty);
        self.sealed = sealed;
        let is_new = self.manifest.segments.is_empty();
        for sealed in &empty {
            self.manifest.segments.remove(&sealed.segment.number);
        }
        for sealed in self.sealed.iter().filter(|sealed| !sealed.is_damaged) {
            let extent = Extent::sealed(sealed.len);
            self.manifest
                .segments
                .insert(sealed.segment.number, Some(extent));
        }
        match self.manifest.write(disk, folder) {
            Ok(()) => {
                self.cut_segments();
                remove_strays(disk, folder, &self.manifest)
            }
            // Stored outcomes can still be served. The allocation of the first segment writes the manifest again.
            Err(error) if is_temporary_error(&error) && !is_new => Ok(()),
            Err(error) => {
                let message = format!("the manifest of {} cannot be written", folder.display());
                Err(match is_temporary_error(&error) {
                    true => Error::new(ErrorKind::Full, message).with_source(error),
                    false => unavailable(message, error),
                })
            }
        }
    }

    /// Truncates segments at the ends recorded in the manifest. A longer file is only slower to open.
    fn cut_segments(&self) {
        for Sealed { segment, len, .. } in self.sealed.iter().filter(|sealed| !sealed.is_damaged) {
            if let Err(error) = cut(segment, *len) {
                tracing::warn!(segment = segment.number, %error, "cannot truncate the segment");
            }
        }
    }

    /// The last segment of the log, and its end.
    pub(super) fn last_log(&self) -> Option<(u32, u64)> {
        let logs = self
            .sealed
            .iter()
            .filter(|sealed| !sealed.segment.is_archive);
        let ends = logs.map(|sealed| (sealed.segment.number, sealed.len));
        ends.max()
    }

    /// Lapses all leases but those in `held`, because every other holder is gone.
    /// An attempt may still act for its full `settle_after`.
    pub(super) fn lapse_all(&mut self, now: Timestamp, held: &[HeldLease]) {
        let held: HashMap<_, _> = held.iter().map(|it| ((it.id, it.fence), it)).collect();
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(_));
        let mut after = None;
        loop {
            let ids = self.table.ids_after(after, is_live);
            let Some(last) = ids.last() else { return };
            after = Some(*last);
            for id in ids {
                self.table.with(id, |entry| {
                    if let Some(Slot::Live(live)) = entry.take() {
                        let held = live.record.fence().and_then(|fence| held.get(&(id, fence)));
                        let record = with_lease(live.record, held.copied(), now);
                        entry.put(Slot::live(record, live.segment));
                    }
                });
            }
        }
    }
}

/// A record in flight with the lease that its holder still has, or with one that has lapsed.
fn with_lease(mut record: Record, held: Option<&HeldLease>, now: Timestamp) -> Record {
    if let State::InFlight { hold, lease_ends } = &mut record.state {
        *lease_ends = held.map_or(now, |held| now + held.left);
        // A claimant that is gone: no other caller may present its nonce.
        hold.claimant = held.map_or_else(Claimant::random, |held| held.claimant);
        hold.settles = hold.settles.max(now + hold.settle_after);
    }
    record
}

fn note_end(ends: &mut HashMap<u32, u64>, number: u32, end: u64) {
    let known = ends.entry(number).or_default();
    *known = end.max(*known);
}

/// When the record of this image is no longer remembered; `None` if the image is damaged.
fn remember_ends(segment: &Segment, id: RecordId, at: Location) -> Result<Option<Timestamp>> {
    match segment.read(id, at).map(|record| record.state) {
        Ok(State::Completed { remember_ends, .. } | State::Tombstone { remember_ends }) => {
            Ok(Some(remember_ends))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the scanned data durable, removes a torn write, and writes the snapshot of the segment.
///
/// Without a snapshot, the next recovery scans the segment again.
/// A torn write must be removed, because it would count as damage once another segment follows.
/// It is overwritten with zeros, not truncated, because the manifest still records the length of the file.
fn seal(disk: &dyn Disk, segment: &Segment, scan: &Scan, is_last: bool) -> Result<()> {
    let trouble =
        |what: &str, error| unavailable(format!("{} {what}", segment.path.display()), error);
    if is_last {
        secure(segment, scan).map_err(|error| trouble("cannot be made durable", error))?;
    }
    if let Some(torn) = &scan.torn {
        let mut file = Appender::new(
            segment.file.clone(),
            torn.start,
            SegmentFrames::IS_ALLOCATED,
        );
        file.remove_torn(torn.end - torn.start).map_err(|failure| {
            let what = "has an unfinished write that cannot be removed";
            trouble(what, failure.into())
        })?;
    }
    if let Err(error) = scan.snapshot.write(disk, segment) {
        tracing::warn!(segment = segment.number, %error, "cannot write the snapshot");
    }
    Ok(())
}

/// Rewrites and syncs the last frame, the only one that may have been read without being on disk.
/// A sync alone is not enough: after a failed sync, the kernel may consider its pages clean.
fn secure(segment: &Segment, scan: &Scan) -> io::Result<()> {
    let Some((start, frame)) = &scan.last else {
        return Ok(());
    };
    match segment.file.write_all_at(frame, *start) {
        Err(error) if !is_temporary_error(&error) => return Err(error),
        _ => {}
    }
    segment.file.sync()
}

fn cut(segment: &Segment, len: u64) -> io::Result<()> {
    match segment.file.len()? > len {
        true => segment.file.set_len(len).and_then(|()| segment.file.sync()),
        false => Ok(()),
    }
}

/// Returns the content of a segment from its snapshot, or from a scan if the snapshot is not valid.
pub(super) fn snapshot_of(disk: &dyn Disk, segment: &Segment) -> Result<Snapshot> {
    match Snapshot::load(disk, segment).filter(|loaded| loaded.is_trusted(segment)) {
        Some(snapshot) => Ok(snapshot),
        None => Scan::of(segment, None).map(|scan| scan.snapshot),
    }
}

/// The last segment of the log with any data.
fn last_written(segments: &[Segment]) -> Result<Option<u32>> {
    for segment in segments.iter().rev().filter(|segment| !segment.is_archive) {
        let bytes = segment
            .file
            .read_whole()
            .map_err(|error| unreadable(segment, 0, error))?;
        if bytes
            .get(HEADER_LEN..)
            .is_some_and(|rest| rest.iter().any(|byte| *byte != 0))
        {
            return Ok(Some(segment.number));
        }
    }
    Ok(None)
}

/// Creates the manifest of a new store. A folder with segments but no manifest has lost its manifest.
fn new_manifest(folder: &Path) -> Result<Manifest> {
    if let Some(name) = names(folder)?.iter().find(|name| name.ends_with(".log")) {
        let message = format!(
            "{}: the manifest is missing, but there are segments ({name}); \
             it lists the files of the store: restore it from a backup",
            folder.display()
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(Manifest {
        next: 1,
        ..Manifest::default()
    })
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let list = || -> io::Result<Vec<String>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    list().map_err(|error| {
        let message = format!("the store's folder {} cannot be read", folder.display());
        unavailable(message, error)
    })
}

/// Removes files that a crash left behind, and that the manifest does not list.
fn remove_strays(disk: &dyn Disk, folder: &Path, manifest: &Manifest) -> Result<()> {
    for name in names(folder)? {
        let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
        let number = stem.parse::<u32>().ok();
        let is_known = number.is_some_and(|number| manifest.segments.contains_key(&number));
        let is_stray = match ending {
            "log" | "idx" => number.is_some() && !is_known,
            "new" => number.is_some() || stem == "manifest",
            _ => false,
        };
        if is_stray && let Err(error) = disk.remove(&folder.join(&name)) {
            tracing::warn!(file = %name, %error, "cannot remove a file that the manifest does not list");
        }
    }
    Ok(())
}
