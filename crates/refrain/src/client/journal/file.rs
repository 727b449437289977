//! File of a journal: created atomically, appended to, and rewritten when most of its records are dead.

use std::{
    ffi::OsString,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    codec,
    frame::{self, Found},
};
use crate::{
    Error, ErrorKind, Result,
    key::Secret,
    store::embedded::disk::{Disk, DiskFile, passes},
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
    file: Arc<dyn DiskFile>,
    secret: Secret,
    /// Offset of the next frame.
    end: u64,
    ordinal: u64,
}

/// Why an append or a rewrite failed.
#[derive(Debug)]
pub(super) enum NotAppended {
    /// The file is unchanged: the disk is full, or the new file could not be put in place.
    AsBefore(io::Error),
    /// The content of the disk is unknown.
    Lost(io::Error),
}

impl LogFile {
    /// Opens the file, or creates it if it does not exist. Returns its records in order.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
    ) -> Result<(Self, Vec<(RecordPosition, Bytes)>)> {
        let file = match disk.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Self::make(disk, path, Secret::random(), std::iter::empty());
                let (made, _) = made.map_err(|error| trouble(path, "cannot be made", error))?;
                return Ok((made, Vec::new()));
            }
            Err(error) => return Err(trouble(path, "cannot be opened", error)),
        };
        let bytes = file
            .read_whole()
            .map_err(|error| trouble(path, "cannot be read", error))?;
        let secret = read_header(path, &bytes)?;
        let mut opened = Self {
            disk,
            path: path.into(),
            file,
            secret,
            end: HEADER_LEN as u64,
            ordinal: 0,
        };
        let records = opened.recover(&bytes.into())?;
        Ok((opened, records))
    }

    fn recover(&mut self, bytes: &Bytes) -> Result<Vec<(RecordPosition, Bytes)>> {
        let mut records = Vec::new();
        loop {
            match frame::find(bytes, self.next()) {
                Found::Frame(ranges, end) => {
                    let record = |range: Range<usize>| {
                        (
                            RecordPosition::new(0, &range),
                            bytes.slice(range.start..range.end),
                        )
                    };
                    records.extend(ranges.into_iter().map(record));
                    self.end = end as u64;
                    self.ordinal += 1;
                }
                Found::End => return Ok(records),
                Found::Torn => {
                    tracing::warn!(
                        journal = %self.path.display(),
                        offset = self.end,
                        "the journal ends in what was never acknowledged; it is cut off"
                    );
                    self.cut()
                        .map_err(|error| trouble(&self.path, "cannot be cut", error))?;
                    return Ok(records);
                }
                Found::Damage => return Err(self.damaged(self.end)),
            }
        }
    }

    /// Truncates the file after the last complete frame.
    fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.sync()
    }

    fn next(&self) -> frame::JournalFramePosition {
        frame::JournalFramePosition {
            seed: seed(&self.secret),
            start: usize::try_from(self.end).unwrap_or(usize::MAX),
            ordinal: self.ordinal,
        }
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// Appends a frame of these records, durable when this returns; returns their positions.
    pub(super) fn append(&mut self, records: &[Bytes]) -> Result<Vec<RecordPosition>, NotAppended> {
        let (frame, ranges) = frame::assemble(records.iter().map(|it| &it[..]), self.next());
        let start = self.end;
        if let Err(error) = self.file.write_all_at(&frame, start) {
            return Err(match passes(&error) && self.cut().is_ok() {
                true => NotAppended::AsBefore(error),
                false => NotAppended::Lost(error),
            });
        }
        // After a failed sync the operating system may have dropped the data, and a second sync would report success.
        self.file.sync().map_err(NotAppended::Lost)?;
        self.end += frame.len() as u64;
        self.ordinal += 1;
        Ok(ranges
            .iter()
            .map(|range| RecordPosition::new(start, range))
            .collect())
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
    ) -> Result<(Self, Vec<RecordPosition>), NotAppended> {
        let read = |place: &RecordPosition| {
            let record = self.read(*place).map_err(io::Error::other)?;
            match codec::whole(&record) {
                Some(_) => Ok(record),
                None => Err(io::Error::other(self.damaged(place.offset))),
            }
        };
        let records = places.iter().map(read);
        Self::make(self.disk.clone(), &self.path, self.secret.clone(), records)
    }

    /// Creates a file with these records, and renames it into place atomically.
    fn make(
        disk: Arc<dyn Disk>,
        path: &Path,
        secret: Secret,
        records: impl Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(Self, Vec<RecordPosition>), NotAppended> {
        let fresh = beside(path, ".new");
        let written = Self::write(disk.clone(), path, &fresh, secret, records);
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Opened before the rename, so that only the sync can fail after it.
        let made = written.and_then(|made| {
            let folder = disk.open_folder(parent)?;
            disk.rename(&fresh, path).map(|()| (made, folder))
        });
        let (made, folder) = made.map_err(|error| {
            let _ = disk.remove(&fresh);
            NotAppended::AsBefore(error)
        })?;
        // From here on it is unknown which of the two files a power loss leaves.
        folder.sync().map_err(NotAppended::Lost)?;
        Ok(made)
    }

    fn write(
        disk: Arc<dyn Disk>,
        path: &Path,
        fresh: &Path,
        secret: Secret,
        records: impl Iterator<Item = io::Result<Bytes>>,
    ) -> io::Result<(Self, Vec<RecordPosition>)> {
        let file = disk.create(fresh)?;
        file.write_all_at(&header(&secret), 0)?;
        let mut made = Self {
            disk,
            path: path.into(),
            file,
            secret,
            end: HEADER_LEN as u64,
            ordinal: 0,
        };
        let (mut places, mut batch, mut batch_len) = (Vec::new(), Vec::new(), 0);
        for record in records {
            let record = record?;
            batch_len += record.len();
            batch.push(record);
            if batch_len >= FRAME_BYTES {
                places.extend(made.write_frame(&batch)?);
                batch.clear();
                batch_len = 0;
            }
        }
        if !batch.is_empty() {
            places.extend(made.write_frame(&batch)?);
        }
        made.file.sync()?;
        Ok((made, places))
    }

    /// Writes a frame without a sync: the file is not in place yet, so one sync at its end is enough.
    fn write_frame(&mut self, records: &[Bytes]) -> io::Result<Vec<RecordPosition>> {
        let (frame, ranges) = frame::assemble(records.iter().map(|it| &it[..]), self.next());
        let start = self.end;
        self.file.write_all_at(&frame, start)?;
        self.end += frame.len() as u64;
        self.ordinal += 1;
        Ok(ranges
            .iter()
            .map(|range| RecordPosition::new(start, range))
            .collect())
    }

    pub(super) fn damaged(&self, offset: u64) -> Error {
        let message = format!(
            "the journal {}: offset {offset} is damaged, and which calls were open is not known; \
             restore the file from a backup, or move it away and look up its calls at the servers",
            self.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

/// Path of the journal with a suffix.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

fn seed(secret: &Secret) -> u64 {
    u64::from_le_bytes(secret.digest("journal", &[]))
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
            "{place} is empty and no journal, which is never left so; remove it, or name a file that is not there yet"
        ));
    }
    if !bytes.starts_with(&MAGIC) {
        return unsupported(format!(
            "{place} is not a journal of Refrain's client; name a file that is not there yet"
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

fn trouble(
    path: &Path,
    what: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    let message = format!("the journal {} {what}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

impl From<NotAppended> for Box<dyn std::error::Error + Send + Sync> {
    fn from(why: NotAppended) -> Self {
        match why {
            NotAppended::AsBefore(error) | NotAppended::Lost(error) => error.into(),
        }
    }
}
