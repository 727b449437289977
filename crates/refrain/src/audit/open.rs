//! Takes a log up again where it ended: what a crash left unfinished is cut, any other damage is refused.

use std::path::Path;

use super::{
    chain::ChainHash,
    entry::{LINE_BYTES_MAX, Unreadable, Written},
    segment::{self, Lines, Next, Segment, unreadable},
};
use crate::{
    Error, ErrorKind, Result,
    store::embedded::disk::{Disk, DiskFile},
};

/// The most that one write takes to the disk, and so the most that a loss of power can leave of it in pieces.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;

/// Where a log ends.
#[derive(Debug)]
pub(super) struct Tail {
    /// The last file, if there is one; and how much of it stands.
    pub(super) last: Option<(Segment, u64)>,
    /// The number of the next entry.
    pub(super) seq: u64,
    /// The hash of the last entry.
    pub(super) head: ChainHash,
    /// How many bytes behind it are no entry: what was being written when the process or the machine died.
    pub(super) torn: u64,
}

/// Finds the end of a log. The last file is read as a whole, and so is the end of the one before it.
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
    // Files before this one may have been moved away: then its first line alone knows what it follows.
    let mut follows = before;
    let mut lines = Lines::open(&segment.path)?;
    let mut stands = 0;
    loop {
        let next = lines
            .next()
            .map_err(|error| unreadable(&segment.path, error))?;
        let what = match next {
            Next::End => break,
            Next::Unfinished => break,
            Next::TooLong => "is longer than any line of a log".to_owned(),
            Next::Line => match Written::read(&lines.line) {
                Ok((written, [prev, hash])) => match follows {
                    Some((seq, head)) if (written.seq, prev) != (seq + 1, head) => {
                        format!("does not follow entry {seq}")
                    }
                    None if written.seq != segment.first => {
                        "is not the entry that the name of its file says".to_owned()
                    }
                    _ => {
                        follows = Some((written.seq, hash));
                        stands = lines.end;
                        continue;
                    }
                },
                Err(Unreadable::Changed) => "does not give the hash at its end".to_owned(),
                Err(Unreadable::NoEntry) => "is no entry".to_owned(),
            },
        };
        // Sectors that a loss of power swallowed read as zeros, which no line holds.
        let is_torn =
            lines.line.contains(&0) && segment.len - lines.start <= WRITE_BYTES_MAX as u64;
        if is_torn {
            break;
        }
        return Err(corrupt(&segment.path, lines.number, &what));
    }
    let (seq, head) = follows.unwrap_or((0, ChainHash::START));
    if stands == 0 && seq + 1 != segment.first {
        let what = "is not there, and neither is the file before it";
        return Err(corrupt(&segment.path, 1, what));
    }
    Ok(Tail {
        torn: segment.len.saturating_sub(stands),
        seq: seq + 1,
        head,
        last: Some((segment, stands)),
    })
}

/// Number and hash of the last entry of a file that is not the last one.
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
            "the audit log {}: its last line is damaged; {FIX}",
            segment.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

const FIX: &str =
    "`refrain audit verify` says more; keep the folder as evidence, and name another one";

fn corrupt(path: &Path, line: u64, what: &str) -> Error {
    let message = format!(
        "the audit log {}:{line}: the line {what}; {FIX}",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}

impl Tail {
    /// The last file, open to be written behind what stands; what was unfinished is cut off.
    pub(super) fn file(
        &self,
        disk: &dyn Disk,
    ) -> std::io::Result<Option<(std::sync::Arc<dyn DiskFile>, u64)>> {
        let Some((segment, stands)) = &self.last else {
            return Ok(None);
        };
        let file = disk.open(&segment.path)?;
        if self.torn > 0 {
            file.set_len(*stands)?;
            file.sync()?;
        }
        Ok(Some((file, *stands)))
    }
}
