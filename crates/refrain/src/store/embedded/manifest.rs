//! The manifest: the list of files of a store. It is replaced atomically, so that segments come and go in one step.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    path::Path,
};

use super::folder::unavailable;
use crate::{
    Error, ErrorKind, Result,
    clock::{ClockMark, Timestamp},
    log::{disk::Disk, folder::replace},
};

const NAME: &str = "manifest";

/// The list of files of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The number of times the store was opened.
    pub(super) epoch: u32,
    /// The mark to resume the store's clock from; `None` in a new store.
    pub(super) clock: Option<ClockMark>,
    /// The store's time when the manifest was written.
    pub(super) time: Timestamp,
    /// The segments, by number; `None` if an earlier release recorded no lengths.
    pub(super) segments: BTreeMap<u32, Option<Extent>>,
    /// The number of the next segment.
    pub(super) next: u32,
    /// In log segments below this number, only images that expire by time count:
    /// every in-flight or indeterminate record in them was rewritten to a later segment.
    pub(super) watermark: u32,
    /// Damage that the operator has accepted, as segment and offset.
    pub(super) accepted: Vec<(u32, u64)>,
    /// Images of erased records, as segment and offset. They count as absent until their segment is deleted.
    pub(super) erased: BTreeSet<(u32, u64)>,
}

/// The recorded lengths of a segment file. A file that has lost its end is then not mistaken for a torn write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The minimum length of the file: recorded after the allocation, and lowered before the file is truncated.
    pub(super) len: u64,
    /// Every frame before this offset was durable when this was recorded.
    pub(super) written: u64,
}

impl Extent {
    /// An allocated segment without frames.
    pub(super) fn allocated(len: u64) -> Self {
        Self { len, written: 0 }
    }

    /// A completely written segment.
    pub(super) fn sealed(len: u64) -> Self {
        Self { len, written: len }
    }
}

impl Manifest {
    /// The recorded lengths of a segment file.
    pub(super) fn extent(&self, segment: u32) -> Option<Extent> {
        self.segments.get(&segment).copied().flatten()
    }

    pub(super) fn write(&self, disk: &dyn Disk, folder: &Path) -> io::Result<()> {
        replace(disk, &folder.join(NAME), self.encode().as_bytes())
    }

    /// Reads the manifest; `None` if there is none yet.
    pub(super) fn load(disk: &dyn Disk, folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let trouble = |what: &str| {
            let message = format!(
                "{}: {what}; it lists the files of the store: restore it from a backup",
                path.display()
            );
            Error::new(ErrorKind::Corrupt, message)
        };
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(&path, error)),
        };
        let bytes = file
            .read_whole()
            .map_err(|error| unreadable(&path, error))?;
        let text = String::from_utf8_lossy(&bytes);
        Self::decode(&text)
            .filter(|manifest| manifest.encode() == text)
            .map(Some)
            .ok_or_else(|| trouble("is damaged"))
    }

    fn encode(&self) -> String {
        // Earlier releases write version 1, which has no lengths.
        let has_extents = self.segments.values().any(Option::is_some);
        let version = if has_extents { 2 } else { 1 };
        let mut text = format!("refrain manifest {version}\n");
        let mut line = |line: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(line);
            text.push('\n');
        };
        line(format_args!("watermark {}", self.watermark));
        line(format_args!("epoch {}", self.epoch));
        line(format_args!("time {}", self.time.0));
        line(format_args!("next {}", self.next));
        if let Some(ClockMark { boot, offset }) = self.clock {
            let boot = u128::from_be_bytes(boot.unwrap_or_default());
            line(format_args!("clock {boot:032x} {offset}"));
        }
        for (number, extent) in &self.segments {
            match extent {
                Some(Extent { len, written }) => {
                    line(format_args!("segment {number} {len} {written}"));
                }
                None => line(format_args!("segment {number}")),
            }
        }
        for (segment, offset) in &self.accepted {
            line(format_args!("accepted {segment} {offset}"));
        }
        for (segment, offset) in &self.erased {
            line(format_args!("erased {segment} {offset}"));
        }
        let sum = crc32fast::hash(text.as_bytes());
        let _ = writeln!(text, "checksum {sum:08x}");
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let (content, sum) = text.trim_end().rsplit_once("checksum ")?;
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(content.as_bytes()) {
            return None;
        }
        let mut manifest = Self::default();
        let mut lines = content.lines();
        if !matches!(lines.next()?, "refrain manifest 1" | "refrain manifest 2") {
            return None;
        }
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["watermark", number] => manifest.watermark = number.parse().ok()?,
                ["epoch", number] => manifest.epoch = number.parse().ok()?,
                ["time", millis] => manifest.time = Timestamp(millis.parse().ok()?),
                ["next", number] => manifest.next = number.parse().ok()?,
                ["segment", number] => {
                    manifest.segments.insert(number.parse().ok()?, None);
                }
                ["segment", number, len, written] => {
                    let extent = Extent {
                        len: len.parse().ok()?,
                        written: written.parse().ok()?,
                    };
                    manifest.segments.insert(number.parse().ok()?, Some(extent));
                }
                ["clock", boot, offset] => {
                    let boot = u128::from_str_radix(boot, 16).ok()?;
                    manifest.clock = Some(ClockMark {
                        boot: (boot != 0).then_some(boot.to_be_bytes()),
                        offset: offset.parse().ok()?,
                    });
                }
                ["accepted", segment, offset] => {
                    manifest
                        .accepted
                        .push((segment.parse().ok()?, offset.parse().ok()?));
                }
                ["erased", segment, offset] => {
                    let place = (segment.parse().ok()?, offset.parse().ok()?);
                    manifest.erased.insert(place);
                }
                _ => return None,
            }
        }
        Some(manifest)
    }
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    unavailable(format!("{} cannot be read", path.display()), error)
}
