//! Opening: from the files to the table.
//!
//! Archives first, then the log in its order; of each record the last image counts.
//! Sealed segments are taken from their snapshots; the last one, and any whose snapshot cannot be trusted, is read.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    Damage, Slot,
    disk::Disk,
    frame::{self, Found},
    image::{self, Kind},
    manifest::Manifest,
    segment::{HEADER_LEN, Segment},
    snapshot::{Noted, Row, Snapshot},
};
use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    key::{RecordId, Secret},
    record::{Claimant, Record, State},
    store::table::Table,
};

/// A segment that is no longer written, and when its time is up.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) segment: Arc<Segment>,
    pub(super) len: u64,
    pub(super) compact_at: Timestamp,
    pub(super) drop_at: Timestamp,
    /// Parts of it cannot be read; it stays until the operator has accepted that.
    pub(super) is_damaged: bool,
}

/// What the files say.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) table: Table<Slot>,
    pub(super) sealed: Vec<Sealed>,
    pub(super) manifest: Manifest,
    /// The latest moment written anywhere.
    pub(super) latest: Timestamp,
    pub(super) damage: Vec<Damage>,
}

/// Reads everything. With `in_full`, every segment is read and no snapshot trusted.
pub(super) fn recover(
    disk: &dyn Disk,
    folder: &Path,
    secret: &Secret,
    in_full: bool,
) -> Result<Recovered> {
    let manifest = match Manifest::load(disk, folder)? {
        Some(manifest) => manifest,
        None => manifest_from(folder)?,
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
    let segments = recovered.open_segments(disk, folder, secret)?;
    let last = last_written(&segments)?;
    let (archives, logs): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|segment| segment.is_archive);
    // The ends of segments, as the one behind each tells.
    let mut ends = HashMap::new();
    for segment in archives.into_iter().chain(logs) {
        let is_last = Some(segment.number) == last;
        recovered.take(disk, segment, is_last, in_full, &mut ends)?;
    }
    recovered.check_ends(disk, &ends);
    Ok(recovered)
}

impl Recovered {
    fn open_segments(
        &mut self,
        disk: &dyn Disk,
        folder: &Path,
        secret: &Secret,
    ) -> Result<Vec<Segment>> {
        let mut segments = Vec::new();
        for number in self.manifest.segments.clone() {
            match Segment::open(disk, folder, secret, number) {
                Ok(segment) => segments.push(segment),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.note_hole(number, 0, u64::MAX, &error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(segments)
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
        // What stood before the hole may have been changed in it.
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(_));
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
        let trusted = match in_full {
            true => None,
            false => Snapshot::load(disk, &segment),
        };
        let snapshot = match trusted {
            Some(snapshot) => snapshot,
            None => {
                let scanned = Scan::of(&segment, is_last)?;
                ends.extend(scanned.ends);
                seal(disk, &segment, &scanned.snapshot)?;
                scanned.snapshot
            }
        };
        self.apply(&segment, &snapshot)?;
        self.latest = self.latest.max(snapshot.latest);
        self.sealed.push(Sealed {
            len: snapshot.len,
            compact_at: snapshot.compact_at,
            drop_at: snapshot.drop_at,
            is_damaged: self.has_open_damage(segment.number, &snapshot),
            segment: Arc::new(segment),
        });
        Ok(())
    }

    fn has_open_damage(&self, segment: u32, snapshot: &Snapshot) -> bool {
        let holes = snapshot.holes.iter().map(|(from, _)| *from);
        let images = snapshot.damaged.iter().map(|(_, offset)| *offset);
        let is_open = |offset| !self.manifest.accepted.contains(&(segment, offset));
        holes.chain(images).any(is_open)
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
            if !self.manifest.accepted.contains(&(number, *offset)) {
                self.note_damaged(segment, *id, *offset);
            }
        }
        Ok(())
    }

    fn note_damaged(&mut self, segment: &Segment, id: RecordId, offset: u64) {
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
            match row.kind {
                Kind::Completed | Kind::Tombstone => {
                    self.table.with(row.id, |entry| entry.put(Slot::Stored(at)));
                }
                Kind::Absent => {
                    self.table.with(row.id, |entry| entry.take());
                }
                Kind::InFlight | Kind::Indeterminate => self.apply_live(segment, row)?,
                Kind::Sealed => {}
            }
        }
        Ok(())
    }

    fn apply_live(&mut self, segment: &Segment, row: &Row) -> Result<()> {
        let mut bytes = vec![0; row.len as usize];
        let filled = segment
            .file
            .read_full_at(&mut bytes, row.offset.into())
            .map_err(|error| unreadable(segment, row.offset.into(), error))?;
        bytes.truncate(filled);
        match image::decode(row.kind, row.id, &bytes.into()).flatten() {
            Some(record) => {
                let slot = Slot::live(record, segment.number);
                self.table.with(row.id, |entry| entry.put(slot));
            }
            None => self.note_damaged(segment, row.id, row.offset.into()),
        }
        Ok(())
    }

    /// A segment that ends before the place that the next one tells has lost its end.
    fn check_ends(&mut self, disk: &dyn Disk, ends: &HashMap<u32, u64>) {
        for sealed in self.sealed.clone() {
            let (number, len) = (sealed.segment.number, sealed.len);
            let Some(end) = ends.get(&number).copied().filter(|end| len < *end) else {
                continue;
            };
            // Kept with the snapshot: the next opening must know it, too.
            if let Some(mut snapshot) = Snapshot::load(disk, &sealed.segment) {
                snapshot.holes.push((len, end));
                if let Err(error) = snapshot.write(disk, &sealed.segment) {
                    tracing::warn!(segment = number, %error, "no snapshot could be written");
                }
            }
            self.note_hole(number, len, end, "the end of the segment is missing");
        }
    }

    /// Every holder is gone: leases lapse now, and an attempt may still act for its full time.
    pub(super) fn lapse_all(&mut self, now: Timestamp) {
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(_));
        let mut after = None;
        loop {
            let ids = self.table.ids_after(after, is_live);
            let Some(last) = ids.last() else { return };
            after = Some(*last);
            for id in ids {
                self.table.with(id, |entry| {
                    if let Some(Slot::Live(live)) = entry.take() {
                        entry.put(Slot::live(lapsed(live.record, now), live.segment));
                    }
                });
            }
        }
    }
}

fn lapsed(mut record: Record, now: Timestamp) -> Record {
    if let State::InFlight { hold, lease_ends } = &mut record.state {
        *lease_ends = now;
        // Whoever asked is gone, and nobody else may pass for them.
        hold.claimant = Claimant::random();
        hold.settles = hold.settles.max(now + hold.settle_after);
    }
    record
}

fn unreadable(segment: &Segment, offset: u64, error: std::io::Error) -> Error {
    let message = format!("{}: offset {offset} cannot be read", segment.path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Cuts the segment where it ends, and puts the snapshot beside it.
///
/// Where there is no room, or the folder cannot be written, it stays as it is: the next opening reads it again.
fn seal(disk: &dyn Disk, segment: &Segment, snapshot: &Snapshot) -> Result<()> {
    let len = segment
        .file
        .len()
        .map_err(|error| unreadable(segment, 0, error))?;
    if len > snapshot.len {
        let cut = segment
            .file
            .set_len(snapshot.len)
            .and_then(|()| segment.file.sync());
        if let Err(error) = cut {
            tracing::warn!(segment = segment.number, %error, "the segment could not be cut at its end");
            return Ok(());
        }
    }
    if let Err(error) = snapshot.write(disk, segment) {
        tracing::warn!(segment = segment.number, %error, "no snapshot could be written");
    }
    Ok(())
}

/// The snapshot beside a sealed segment, or, where that cannot be trusted, what reading the segment gives.
pub(super) fn snapshot_of(disk: &dyn Disk, segment: &Segment) -> Result<Snapshot> {
    match Snapshot::load(disk, segment) {
        Some(snapshot) => Ok(snapshot),
        None => Scan::of(segment, false).map(|scan| scan.snapshot),
    }
}

/// What reading a segment from front to back gave.
#[derive(Debug)]
struct Scan {
    snapshot: Snapshot,
    ends: Vec<(u32, u64)>,
}

impl Scan {
    fn of(segment: &Segment, is_last: bool) -> Result<Self> {
        let bytes = segment
            .file
            .read_whole()
            .map(Bytes::from)
            .map_err(|error| unreadable(segment, 0, error))?;
        let mut noted = Vec::new();
        let mut damaged = Vec::new();
        let mut holes = Vec::new();
        let mut ends = Vec::new();
        let mut latest = Timestamp::default();
        let (mut at, mut ordinal) = (HEADER_LEN.min(bytes.len()), 0);
        loop {
            match frame::find(&bytes, segment.seed, at, ordinal, is_last) {
                Found::End => break,
                Found::Torn => {
                    report_torn(segment, at);
                    break;
                }
                Found::Damage { end } => {
                    holes.push((at as u64, end as u64));
                    ordinal = frame::ordinal_at(&bytes, segment.seed, end).unwrap_or(ordinal);
                    at = end;
                }
                Found::Frame {
                    place,
                    entries,
                    end,
                } => {
                    let mut bad = Vec::new();
                    let mut good = Vec::new();
                    for entry in entries {
                        let image = bytes.slice(entry.offset..entry.offset + entry.len);
                        match note(&entry, &image) {
                            Some(Note::Image(note)) => good.push(note),
                            Some(Note::End(end)) => ends.push(end),
                            None => bad.push(entry),
                        }
                    }
                    if is_last && is_torn(&bytes, segment, end, ordinal, &bad) {
                        report_torn(segment, at);
                        break;
                    }
                    damaged.extend(bad.iter().map(|entry| (entry.id, entry.offset as u64)));
                    // A later image of the same record says all there is to know.
                    damaged.retain(|(id, _)| !good.iter().any(|note| note.row.id == *id));
                    noted.extend(good);
                    latest = latest.max(place.time);
                    (at, ordinal) = (end, ordinal + 1);
                }
            }
        }
        let mut snapshot = Snapshot::new(at as u64, latest, &noted);
        snapshot
            .rows
            .retain(|row| !damaged.iter().any(|(id, _)| *id == row.id));
        snapshot.damaged = damaged;
        snapshot.holes = holes;
        Ok(Self { snapshot, ends })
    }
}

/// A frame whose frame is whole and whose images are not was torn if it is the last one and misses whole sectors there.
fn is_torn(
    bytes: &[u8],
    segment: &Segment,
    end: usize,
    ordinal: u32,
    bad: &[frame::Entry],
) -> bool {
    let misses = |entry: &frame::Entry| {
        frame::has_zero_sector(bytes, entry.offset, entry.offset + entry.len)
    };
    bad.iter().any(misses)
        && matches!(
            frame::find(bytes, segment.seed, end, ordinal + 1, true),
            Found::End
        )
}

fn report_torn(segment: &Segment, at: usize) {
    tracing::info!(
        segment = segment.number,
        offset = at,
        "cut an unfinished write; nothing in it was acknowledged"
    );
}

enum Note {
    Image(Noted),
    End((u32, u64)),
}

fn note(entry: &frame::Entry, image: &Bytes) -> Option<Note> {
    if entry.kind == Kind::Sealed {
        return image::decode_sealed(image).map(Note::End);
    }
    let record = image::decode(entry.kind, entry.id, image)?;
    Some(Note::Image(noted(entry, record.as_ref(), 0)))
}

/// What to note of an image that was written in a frame at `frame_start`.
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

/// The last segment of the log in which anything stands.
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

/// A manifest made from the files, for a new store or one whose manifest was removed.
fn manifest_from(folder: &Path) -> Result<Manifest> {
    let mut manifest = Manifest {
        next: 1,
        ..Manifest::default()
    };
    for name in names(folder)? {
        if let Some(number) = name
            .strip_suffix(".log")
            .and_then(|digits| digits.parse().ok())
        {
            manifest.segments.insert(number);
            manifest.next = manifest.next.max(number + 1);
        }
    }
    Ok(manifest)
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let list = || -> std::io::Result<Vec<String>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    list().map_err(|error| {
        let message = format!("the store's folder {} cannot be read", folder.display());
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// Files that a crash left behind between two manifests.
fn remove_strays(disk: &dyn Disk, folder: &Path, manifest: &Manifest) -> Result<()> {
    for name in names(folder)? {
        let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
        let number = stem.parse::<u32>().ok();
        let is_known = number.is_some_and(|number| manifest.segments.contains(&number));
        let is_stray = match ending {
            "log" | "idx" => number.is_some() && !is_known,
            "new" => number.is_some() || stem == "manifest",
            _ => false,
        };
        if is_stray && let Err(error) = disk.remove(&folder.join(&name)) {
            tracing::warn!(file = %name, %error, "a stray file could not be removed");
        }
    }
    Ok(())
}
