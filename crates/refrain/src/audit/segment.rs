//! Files of a log. Each is named after the number of its first entry.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use super::entry::LINE_BYTES_MAX;
use crate::{Error, ErrorKind, Result, log::failure::denial_fix};

/// One file of a log.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// Number of its first entry, from its name.
    pub(super) first: u64,
    pub(super) len: u64,
}

/// Returns the name of the file that begins with this entry.
pub(super) fn name(first: u64) -> String {
    format!("audit-{first:020}.jsonl")
}

/// Lists all files of a log, in order.
pub(super) fn list(folder: &Path) -> Result<Vec<Segment>> {
    let found = || -> io::Result<Vec<Segment>> {
        let mut segments = Vec::new();
        for found in fs::read_dir(folder)? {
            let found = found?;
            let text = found.file_name().to_string_lossy().into_owned();
            let first = text
                .strip_prefix("audit-")
                .and_then(|text| text.strip_suffix(".jsonl"))
                .and_then(|text| text.parse().ok())
                .filter(|first| name(*first) == text && *first < u64::MAX);
            if let Some(first) = first {
                segments.push(Segment {
                    path: found.path(),
                    first,
                    len: found.metadata()?.len(),
                });
            }
        }
        segments.sort_by_key(|segment| segment.first);
        Ok(segments)
    };
    found().map_err(|error| unreadable(folder, error))
}

pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    let fix = denial_fix(&error, "or have the owner grant read access");
    let message = format!("the audit log {} cannot be read{fix}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Result of reading the next line of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineStatus {
    /// A line, without its newline.
    Line,
    /// A line that is longer than the maximum; all of it is skipped.
    TooLong,
    /// The last line, without a newline.
    Unfinished,
    End,
}

/// Reader of the lines of one file.
#[derive(Debug)]
pub(super) struct Lines {
    reader: BufReader<File>,
    /// The line that was read last.
    pub(super) line: Vec<u8>,
    /// Its number in the file, starting at 1.
    pub(super) number: u64,
    /// Offset of its start.
    pub(super) start: u64,
    /// Offset of its end.
    pub(super) end: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| unreadable(path, error))?;
        Ok(Self {
            reader: BufReader::with_capacity(256 << 10, file),
            line: Vec::new(),
            number: 0,
            start: 0,
            end: 0,
        })
    }

    pub(super) fn next(&mut self) -> io::Result<LineStatus> {
        self.line.clear();
        self.start = self.end;
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = self.reader.by_ref().take(most);
        let len = { read }.read_until(b'\n', &mut self.line)?;
        self.end += len as u64;
        if len == 0 {
            return Ok(LineStatus::End);
        }
        self.number += 1;
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            return Ok(LineStatus::Line);
        }
        if len <= LINE_BYTES_MAX {
            return Ok(LineStatus::Unfinished);
        }
        self.end += self.reader.skip_until(b'\n')? as u64;
        Ok(LineStatus::TooLong)
    }
}
