//! Segments: files of the log, allocated in advance, written once from start to end, then sealed.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;

use super::{
    folder::unavailable,
    frame::{self, ImageKind},
};
use crate::{
    Error, ErrorKind, Result,
    key::{RecordId, Secret},
    log::disk::{Disk, DiskFile},
    record::Record,
    varint::Reader,
};

const MAGIC: [u8; 8] = *b"refr.seg";
/// The format version that is written. Version 1 has no traces, and is still read.
const VERSION: u32 = 2;
/// The length of the segment header, in bytes. The first frame follows it.
pub(super) const HEADER_LEN: usize = 32;
/// Bytes zeroed between two syncs. Small steps keep the log's own syncs from waiting for a whole segment.
const FILL_BYTES: u64 = 1 << 20;

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    /// Written by compaction; not a part of the log.
    pub(super) is_archive: bool,
    /// Secret seed of this store and segment.
    pub(super) seed: u64,
    /// Every frame before this offset is durable; the writer updates it after each sync.
    durable: AtomicU64,
}

/// The position of the image of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) segment: u32,
    pub(super) offset: u32,
    /// The length in the lower bits, and a tombstone flag in the highest bit.
    packed: u32,
}

const TOMBSTONE: u32 = 1 << 31;

impl Location {
    pub(super) fn new(segment: u32, offset: usize, len: usize, kind: ImageKind) -> Self {
        let flag = match kind {
            ImageKind::Tombstone => TOMBSTONE,
            _ => 0,
        };
        Self {
            segment,
            offset: offset as u32,
            packed: len as u32 | flag,
        }
    }

    pub(super) fn len(self) -> usize {
        (self.packed & !TOMBSTONE) as usize
    }

    pub(super) fn kind(self) -> ImageKind {
        match self.packed & TOMBSTONE {
            0 => ImageKind::Completed,
            _ => ImageKind::Tombstone,
        }
    }
}

pub(super) fn path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{number:08}.log"))
}

fn seed(secret: &Secret, number: u32) -> u64 {
    u64::from_le_bytes(secret.digest("segment", &[&number.to_le_bytes()]))
}

impl Segment {
    /// Creates a segment of `len` bytes: zeroed, with its header, and durable.
    pub(super) fn create(
        disk: &dyn Disk,
        folder: &Path,
        secret: &Secret,
        number: u32,
        is_archive: bool,
        len: u64,
    ) -> io::Result<Self> {
        let path = path(folder, number);
        // A crash may have left a snapshot of the same number that never became part of the store.
        disk.remove(&path.with_extension("idx"))?;
        let file = disk.create(&path)?;
        let made = Self {
            number,
            path,
            file,
            is_archive,
            seed: seed(secret, number),
            durable: AtomicU64::new(0),
        };
        // Allocate the blocks now, so that each later sync writes only data.
        match made.fill(len) {
            Ok(()) => Ok(made),
            Err(error) => {
                let _ = disk.remove(&made.path);
                Err(error)
            }
        }
    }

    fn fill(&self, len: u64) -> io::Result<()> {
        self.file.zero(0..len, FILL_BYTES)?;
        self.file.write_all_at(&self.header(), 0)?;
        self.file.sync()
    }

    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&self.seed.to_le_bytes());
        header[24] = self.is_archive.into();
        let sum = crc32fast::hash(&header[..28]);
        header[28..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// Opens an existing segment.
    pub(super) fn open(
        disk: &dyn Disk,
        folder: &Path,
        secret: &Secret,
        number: u32,
    ) -> Result<Self> {
        let path = path(folder, number);
        let trouble = |what: &str, kind| Error::new(kind, format!("{}: {what}", path.display()));
        let file = disk.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => trouble("is missing", ErrorKind::Corrupt),
            _ => unavailable(format!("{} cannot be opened", path.display()), error),
        })?;
        let mut bytes = [0; HEADER_LEN];
        file.read_full_at(&mut bytes, 0)
            .map_err(|error| unavailable(format!("{} cannot be read", path.display()), error))?;
        let damaged = || {
            trouble(
                "offset 0: the segment's header is damaged",
                ErrorKind::Corrupt,
            )
        };
        let (version, is_archive) = decode_header(&bytes, number, secret).ok_or_else(damaged)?;
        if !(1..=VERSION).contains(&version) {
            let what = format!(
                "segment format version {version}; this build reads versions 1 to {VERSION}"
            );
            return Err(trouble(&what, ErrorKind::Unsupported));
        }
        Ok(Self {
            number,
            path,
            file,
            is_archive,
            seed: seed(secret, number),
            durable: AtomicU64::new(0),
        })
    }

    /// Every frame before this offset is durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Records that every frame before this offset is durable.
    pub(super) fn note_durable(&self, end: u64) {
        self.durable.store(end, Ordering::Release);
    }

    /// Reads the record whose image is at this position.
    pub(super) fn read(&self, id: RecordId, at: Location) -> Result<Record> {
        let mut bytes = vec![0; at.len()];
        let read = self.file.read_full_at(&mut bytes, at.offset.into());
        self.decode(id, at, bytes, read)
    }

    /// Like [`read`](Self::read), but `Pending` if the disk would have to be waited for.
    pub(super) fn read_cached(&self, id: RecordId, at: Location) -> Result<Poll<Record>> {
        let mut bytes = vec![0; at.len()];
        match self.file.read_cached_full_at(&mut bytes, at.offset.into()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Poll::Pending),
            read => self.decode(id, at, bytes, read).map(Poll::Ready),
        }
    }

    fn decode(
        &self,
        id: RecordId,
        at: Location,
        mut bytes: Vec<u8>,
        read: io::Result<usize>,
    ) -> Result<Record> {
        let offset = at.offset.into();
        bytes.truncate(read.map_err(|error| {
            let message = format!("{}: offset {offset} cannot be read", self.path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?);
        let record = frame::decode(at.kind(), id, &Bytes::from(bytes));
        record.flatten().ok_or_else(|| self.damaged(id, offset))
    }

    /// The error for an unreadable offset.
    pub(super) fn unreadable(&self, offset: u64) -> Error {
        let message = format!(
            "{}: offset {offset} cannot be read; restore the segment from a backup",
            self.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    fn damaged(&self, id: RecordId, offset: u64) -> Error {
        let message = format!(
            "{}: offset {offset}: the image of record {id} is damaged; restore the segment from a backup",
            self.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

fn decode_header(header: &[u8; HEADER_LEN], number: u32, secret: &Secret) -> Option<(u32, bool)> {
    let (fields, sum) = header.split_last_chunk::<4>()?;
    let mut reader = Reader(fields);
    let fits = reader.array()? == MAGIC && crc32fast::hash(fields) == u32::from_le_bytes(*sum);
    let version = reader.u32()?;
    let is_this = reader.u32()? == number;
    let is_ours = reader.u64()? == seed(secret, number);
    let is_archive = reader.u8()? != 0;
    (fits && is_this && (is_ours || version > VERSION)).then_some((version, is_archive))
}
