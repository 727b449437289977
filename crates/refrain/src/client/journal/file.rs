//! File of a journal: created atomically, appended to, and rewritten when most of its records are dead.

use std::{
    ffi::OsString,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::codec::{self, JournalFrames};
use crate::{
    Error, ErrorKind, Result,
    key::Secret,
    log::{
        commit::Appender,
        disk::{Disk, DiskFile},
        failure::{Failure, denial_fix},
        folder::replace_with,
        frame::{Format as _, Found, FramePosition, Scanner},
    },
    varint::Reader,
};

const MAGIC: [u8; 8] = *b"refr.jnl";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 48;
/// Approximate size of a frame in a rewritten file, in bytes.
const FRAME_BYTES: usize = 4 << 20;

/// Position of a record in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl RecordPosition {
    fn new(start: u64, range: &Range<usize>) -> Self {
        Self {
            offset: start + range.start as u64,
            len: range.len() as u32,
        }
    }
}

/// File of a journal.
#[derive(Debug)]
pub(super) struct LogFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    secret: Secret,
    /// Seed of the frames of this journal.
    seed: u64,
    file: Arc<dyn DiskFile>,
    /// End of the file.
    tail: Appender,
    /// Number of the next frame.
    ordinal: u64,
}

impl LogFile {
    /// A file without frames.
    fn new(disk: Arc<dyn Disk>, path: &Path, secret: Secret, file: Arc<dyn DiskFile>) -> Self {
        Self {
            disk,
            path: path.into(),
            seed: u64::from_le_bytes(secret.digest("journal", &[])),
            secret,
            tail: Appender::new(file.clone(), HEADER_LEN as u64, JournalFrames::IS_ALLOCATED),
            file,
            ordinal: 0,
        }
    }

    /// Opens the file, or creates it if it does not exist. Returns its records in order.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
    ) -> Result<(Self, Vec<(RecordPosition, Bytes)>)> {
        let file = match disk.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Self::make(&disk, path, &Secret::random(), std::iter::empty());
                let trouble = |failure: Failure| trouble(path, "cannot be created", failure.into());
                let (made, _) = made.map_err(trouble)?;
                return Ok((made, Vec::new()));
            }
            Err(error) => return Err(trouble(path, "cannot be opened", error)),
        };
        let bytes = file
            .read_whole()
            .map_err(|error| trouble(path, "cannot be read", error))?;
        let secret = read_header(path, &bytes)?;
        let mut opened = Self::new(disk, path, secret, file);
        let records = opened.recover(&bytes.into())?;
        Ok((opened, records))
    }

    /// Reads all records, and removes a torn frame at the end.
    fn recover(&mut self, bytes: &Bytes) -> Result<Vec<(RecordPosition, Bytes)>> {
        let mut frames = Scanner::<JournalFrames>::new(bytes, self.seed, HEADER_LEN, 0);
        let mut records = Vec::new();
        let torn_end = loop {
            let start = frames.place().start;
            match frames.find() {
                Found::Frame { content, .. } => records.extend(content.into_iter().map(|range| {
                    let place = RecordPosition::new(0, &range);
                    (place, bytes.slice(range))
                })),
                Found::End => break start,
                Found::Torn { end } => break end,
                Found::Damage { .. } => return Err(self.damaged(start as u64)),
            }
        };
        let FramePosition { start, ordinal, .. } = frames.place();
        self.ordinal = ordinal;
        self.tail = Appender::new(self.file.clone(), start as u64, JournalFrames::IS_ALLOCATED);
        if torn_end > start {
            tracing::warn!(
                journal = %self.path.display(),
                offset = start,
                "removing an incomplete write from the end of the journal; nothing in it was acknowledged"
            );
            let removed = self.tail.remove_torn((torn_end - start) as u64);
            removed
                .map_err(|failure| trouble(&self.path, "cannot be truncated", failure.into()))?;
        }
        Ok(records)
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.tail.end()
    }

    /// Appends a frame of these records, durable when this returns; returns their positions.
    pub(super) fn append(&mut self, records: &[Bytes]) -> Result<Vec<RecordPosition>, Failure> {
        self.append_frame(records, true)
    }

    fn append_frame(
        &mut self,
        records: &[Bytes],
        is_synced: bool,
    ) -> Result<Vec<RecordPosition>, Failure> {
        let start = self.tail.end();
        let place = FramePosition {
            seed: self.seed,
            start: usize::try_from(start).unwrap_or(usize::MAX),
            ordinal: self.ordinal,
        };
        let (frame, ranges) = codec::assemble(records.iter().map(|it| &it[..]), place);
        self.tail.append(&frame, is_synced)?;
        self.ordinal += 1;
        let places = ranges.iter().map(|range| RecordPosition::new(start, range));
        Ok(places.collect())
    }

    /// Reads the record at this position.
    pub(super) fn read(&self, place: RecordPosition) -> Result<Bytes> {
        let mut bytes = vec![0; place.len as usize];
        let filled = self
            .file
            .read_full_at(&mut bytes, place.offset)
            .map_err(|error| trouble(&self.path, "cannot be read", error))?;
        match filled == bytes.len() {
            true => Ok(bytes.into()),
            false => Err(self.damaged(place.offset)),
        }
    }

    /// Replaces the file by one with only these records; returns their new positions.
    pub(super) fn rewrite(
        &self,
        places: &[RecordPosition],
    ) -> Result<(Self, Vec<RecordPosition>), Failure> {
        let read = |place: &RecordPosition| {
            let record = self.read(*place).map_err(io::Error::other)?;
            match codec::verify_checksum(&record) {
                Some(_) => Ok(record),
                None => Err(io::Error::other(self.damaged(place.offset))),
            }
        };
        let records = places.iter().map(read);
        Self::make(&self.disk, &self.path, &self.secret, records)
    }

    /// Creates a file with these records, and renames it into place atomically.
    fn make(
        disk: &Arc<dyn Disk>,
        path: &Path,
        secret: &Secret,
        records: impl Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(Self, Vec<RecordPosition>), Failure> {
        replace_with(&**disk, path, &with_suffix(path, ".new"), |file| {
            file.write_all_at(&header(secret), 0)?;
            let mut made = Self::new(disk.clone(), path, secret.clone(), file.clone());
            let places = made.fill(records)?;
            Ok((made, places))
        })
    }

    /// Writes records without a sync: the file is not in place yet, so one sync at its end is enough.
    fn fill(
        &mut self,
        records: impl Iterator<Item = io::Result<Bytes>>,
    ) -> io::Result<Vec<RecordPosition>> {
        let (mut places, mut batch, mut batch_len) = (Vec::new(), Vec::new(), 0);
        for record in records {
            let record = record?;
            batch_len += record.len();
            batch.push(record);
            if batch_len >= FRAME_BYTES {
                places.extend(self.append_frame(&batch, false)?);
                batch.clear();
                batch_len = 0;
            }
        }
        if !batch.is_empty() {
            places.extend(self.append_frame(&batch, false)?);
        }
        Ok(places)
    }

    pub(super) fn damaged(&self, offset: u64) -> Error {
        let message = format!(
            "the journal {}: offset {offset} is damaged, so the open calls are unknown; \
             restore the file from a backup, or move it away and look up its calls on the servers",
            self.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

/// Path of the journal with a suffix.
pub(super) fn with_suffix(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

fn header(secret: &Secret) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..44].copy_from_slice(secret.as_bytes());
    let sum = crc32fast::hash(&out[..44]);
    out[44..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<Secret> {
    let place = path.display();
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
    if bytes.is_empty() {
        return unsupported(format!(
            "{place} is empty, so it is not a journal; remove it, or name a file that does not exist yet"
        ));
    }
    if !bytes.starts_with(&MAGIC) {
        return unsupported(format!(
            "{place} is not a journal of Refrain's client; name a file that does not exist yet"
        ));
    }
    let mut reader = Reader(&bytes[MAGIC.len()..]);
    let (version, secret, sum) = (reader.u32(), reader.array::<32>(), reader.u32());
    match (version, secret, sum) {
        (Some(version), ..) if version != VERSION && sum_fits(bytes, sum) => unsupported(format!(
            "the journal {place} has format version {version}; this build reads version {VERSION}: use the release that wrote it, or a newer one"
        )),
        (Some(_), Some(secret), Some(_)) if sum_fits(bytes, sum) => Ok(secret.into()),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "the journal {place}: offset 0: its header is damaged; restore the file from a backup"
            ),
        )),
    }
}

fn sum_fits(bytes: &[u8], sum: Option<u32>) -> bool {
    let fields = bytes.get(..HEADER_LEN - 4);
    fields.is_some_and(|fields| sum == Some(crc32fast::hash(fields)))
}

fn trouble(path: &Path, what: &str, error: io::Error) -> Error {
    let fix = denial_fix(&error, "or name another file");
    let message = format!("the journal {} {what}{fix}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
