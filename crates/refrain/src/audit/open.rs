//! Opens an existing log: truncates an incomplete write after a crash, and rejects any other damage.

use std::path::Path;

use super::{
    chain::ChainHash,
    entry::{LINE_BYTES_MAX, Unreadable, Written},
    segment::{self, LineStatus, Lines, Segment, unreadable},
};
use crate::{
    Error, ErrorKind, Result,
    log::{commit::Appender, disk::Disk},
};

/// Maximum size of one write, in bytes, and so the maximum damage of a power loss.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;

/// End of a log.
#[derive(Debug)]
pub(super) struct Tail {
    /// The last file, if there is one, and the length of its valid part.
    pub(super) last: Option<(Segment, u64)>,
    /// Number of the next entry.
    pub(super) seq: u64,
    /// Hash of the last entry.
    pub(super) head: ChainHash,
    /// Number of bytes after the last entry that an interrupted write left.
    pub(super) torn: u64,
}

/// Finds the end of a log. Reads the whole last file and the end of the one before it.
pub(super) fn find(folder: &Path) -> Result<Tail> {
    let mut segments = segment::list(folder)?;
    let Some(last) = segments.pop() else {
        return Ok(Tail {
            last: None,
            seq: 1,
            head: ChainHash::START,
            torn: 0,
        });
    };
    let before = match segments.last() {
        Some(before) => Some(last_of(before)?),
        None => None,
    };
    walk(last, before)
}

fn walk(segment: Segment, before: Option<(u64, ChainHash)>) -> Result<Tail> {
    // Earlier files may have been moved away. Then only the first line contains the hash of its predecessor.
    let mut follows = before;
    let mut lines = Lines::open(&segment.path)?;
    let mut stands = 0;
    loop {
        let next = lines
            .next()
            .map_err(|error| unreadable(&segment.path, error))?;
        let what = match next {
            LineStatus::End => break,
            LineStatus::Unfinished => break,
            LineStatus::TooLong => "is longer than the maximum".to_owned(),
            LineStatus::Line => match Written::read(&lines.line) {
                Ok((written, [prev, hash])) => match follows {
                    Some((seq, head)) if (written.seq, prev) != (seq + 1, head) => {
                        format!("does not follow entry {seq}")
                    }
                    None if written.seq != segment.first => {
                        "does not have the entry number of the file name".to_owned()
                    }
                    _ => {
                        follows = Some((written.seq, hash));
                        stands = lines.end;
                        continue;
                    }
                },
                Err(Unreadable::Changed) => "does not match the hash at its end".to_owned(),
                Err(Unreadable::NoEntry) => "is not an entry".to_owned(),
            },
        };
        // Sectors lost in a power failure read as zeros, which no line contains.
        let is_torn =
            lines.line.contains(&0) && segment.len - lines.start <= WRITE_BYTES_MAX as u64;
        if is_torn {
            break;
        }
        return Err(corrupt(&segment.path, lines.number, &what));
    }
    let (seq, head) = follows.unwrap_or((0, ChainHash::START));
    if stands == 0 && seq + 1 != segment.first {
        let what = "is missing, and so is the file before it";
        return Err(corrupt(&segment.path, 1, what));
    }
    Ok(Tail {
        torn: segment.len.saturating_sub(stands),
        seq: seq + 1,
        head,
        last: Some((segment, stands)),
    })
}

/// Returns number and hash of the last entry of a file that is not the last one.
fn last_of(segment: &Segment) -> Result<(u64, ChainHash)> {
    let read = || -> std::io::Result<Option<(u64, ChainHash)>> {
        use std::os::unix::fs::FileExt as _;
        let from = segment.len.saturating_sub(2 * LINE_BYTES_MAX as u64);
        let mut bytes = vec![0; usize::try_from(segment.len - from).unwrap_or(0)];
        std::fs::File::open(&segment.path)?.read_exact_at(&mut bytes, from)?;
        let Some(text) = bytes.strip_suffix(b"\n") else {
            return Ok(None);
        };
        let line = text.rsplit(|byte| *byte == b'\n').next().unwrap_or(text);
        let written = Written::read(line).ok();
        Ok(written.map(|(written, [_, hash])| (written.seq, hash)))
    };
    let found = read().map_err(|error| unreadable(&segment.path, error))?;
    found.ok_or_else(|| {
        let message = format!(
            "the audit log {}: the last line is damaged; {FIX}",
            segment.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

const FIX: &str = "run `refrain audit verify` for details; \
                   keep the folder as evidence, and set audit_log = \"DIR\" to another one";

fn corrupt(path: &Path, line: u64, what: &str) -> Error {
    let message = format!(
        "the audit log {}:{line}: the line {what}; {FIX}",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}

impl Tail {
    /// Opens the last file for appending, and truncates an incomplete write.
    pub(super) fn file(&self, disk: &dyn Disk) -> std::io::Result<Option<Appender>> {
        let Some((segment, stands)) = &self.last else {
            return Ok(None);
        };
        let mut file = Appender::new(disk.open(&segment.path)?, *stands, false);
        file.remove_torn(self.torn)?;
        Ok(Some(file))
    }
}
