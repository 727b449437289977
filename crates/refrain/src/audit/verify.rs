//! Verifies a log from its first line to its last, and reports damage.
//!
//! It writes nothing and takes no lock: a log can be verified while it is being written.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{
    chain::ChainHash,
    entry::{Unreadable, Written},
    segment::{self, LineStatus, Lines, Segment, unreadable},
    trace::{Loose, Trace},
};
use crate::{Error, ErrorKind, Result};

/// Maximum number of damaged places that are listed; all are counted.
const DAMAGE_MAX: usize = 1_000;
/// Interval of progress reports, in bytes.
const TOLD_EVERY: u64 = 4 << 20;

/// Expectations for a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Check {
    /// A hash recorded earlier, which must still be in the chain.
    pub head: Option<ChainHash>,
    /// Hash that the first line must follow, if earlier files were moved away.
    pub from: Option<ChainHash>,
}

/// Event during verification.
#[derive(Debug)]
pub enum Visit<'a> {
    /// An entry whose own hash matches, and its line.
    Entry(&'a Written, &'a [u8]),
    /// Progress.
    Progress {
        /// Bytes read so far.
        bytes: u64,
        /// Total bytes.
        of: u64,
    },
}

/// Result of a verification.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Number of files.
    pub files: usize,
    /// Number of valid entries.
    pub entries: u64,
    /// Number and time of the first entry.
    pub first: Option<(u64, String)>,
    /// Number and time of the last entry.
    pub last: Option<(u64, String)>,
    /// Hash that the first line follows; [`ChainHash::START`] at the beginning of a log.
    pub begins: ChainHash,
    /// Hash of the last line, which identifies the whole log up to there.
    pub head: ChainHash,
    /// Damage in the order of the log, at most 1000 places.
    pub damage: Vec<Damage>,
    /// Number of damaged places.
    pub damage_count: u64,
    /// Open items at the end of the log.
    pub loose: Loose,
    /// Bytes of an incomplete last line: it is being written, or was interrupted by a crash.
    pub unfinished: u64,
}

/// A damaged place of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Line number in the file, from 1.
    pub line: u64,
    /// Number of the entry, if known.
    pub seq: Option<u64>,
    /// Kind of the damage.
    pub kind: DamageKind,
    /// Description.
    pub what: String,
}

/// Kind of damage to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DamageKind {
    /// A line was changed.
    Changed,
    /// Lines were removed.
    Removed,
    /// A line was moved.
    Reordered,
    /// A line was inserted.
    Inserted,
    /// The end was cut off.
    Cut,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// Verifies the log in `folder`; calls `visit` for every entry and for progress.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there is no log, [`ErrorKind::Unavailable`] if it cannot be read.
/// Damage is not an error, but part of the result.
pub fn verify(folder: &Path, check: &Check, visit: &mut dyn FnMut(Visit<'_>)) -> Result<Verified> {
    let segments = match folder.is_dir() {
        true => segment::list(folder)?,
        false => Vec::new(),
    };
    if segments.is_empty() {
        let message = format!("{} holds no audit log", folder.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mut walk = ChainVerifier {
        found: Verified::default(),
        trace: Trace::default(),
        missing: Vec::new(),
        is_head_found: check.head.is_none(),
        check,
        bytes: 0,
        told: 0,
        of: segments.iter().map(|segment| segment.len).sum(),
    };
    walk.found.files = segments.len();
    let last = segments.len() - 1;
    for (at, segment) in segments.iter().enumerate() {
        walk.file(segment, at == last, visit)?;
    }
    Ok(walk.finish(&segments[last]))
}

/// State of a verification.
struct ChainVerifier<'a> {
    found: Verified,
    trace: Trace,
    /// Ranges of missing entries, with their index in `found.damage`.
    missing: Vec<(std::ops::Range<u64>, usize)>,
    is_head_found: bool,
    check: &'a Check,
    bytes: u64,
    told: u64,
    of: u64,
}

impl ChainVerifier<'_> {
    fn file(
        &mut self,
        segment: &Segment,
        is_last: bool,
        visit: &mut dyn FnMut(Visit<'_>),
    ) -> Result<()> {
        let mut lines = Lines::open(&segment.path)?;
        loop {
            let next = lines
                .next()
                .map_err(|error| unreadable(&segment.path, error))?;
            let place = (&*segment.path, lines.number);
            match next {
                LineStatus::End => return Ok(()),
                LineStatus::Unfinished if is_last => {
                    self.found.unfinished = lines.end - lines.start;
                }
                LineStatus::Unfinished => {
                    let what = "the file ends in the middle of a line, but is not the last file";
                    self.damaged(place, None, DamageKind::Changed, what.into());
                }
                LineStatus::TooLong => {
                    let what = "the line is longer than the maximum";
                    self.damaged(place, None, DamageKind::Changed, what.into());
                }
                LineStatus::Line => match Written::read(&lines.line) {
                    Ok((written, hashes)) => {
                        self.entry(place, segment.first, &written, hashes);
                        visit(Visit::Entry(&written, &lines.line));
                    }
                    Err(why) => self.report_unreadable(place, segment.first, &why),
                },
            }
            self.report_progress(lines.end - lines.start, visit);
        }
    }

    fn report_progress(&mut self, read: u64, visit: &mut dyn FnMut(Visit<'_>)) {
        self.bytes += read;
        if self.bytes - self.told >= TOLD_EVERY {
            self.told = self.bytes;
            // The log may have grown meanwhile.
            let of = self.of.max(self.bytes);
            visit(Visit::Progress {
                bytes: self.bytes,
                of,
            });
        }
    }

    /// Handles a line that does not match its hash, as the entry expected at this position.
    fn report_unreadable(&mut self, place: (&Path, u64), named: u64, why: &Unreadable) {
        let seq = self.expected().unwrap_or(named);
        let what = match why {
            Unreadable::Changed => {
                format!("entry {seq} was changed: its line does not match the hash at its end")
            }
            Unreadable::NoEntry => format!("expected entry {seq}, but this is not an entry"),
        };
        self.damaged(place, Some(seq), DamageKind::Changed, what);
        // Its hash is unknown, so any next entry with the right number is accepted.
        let at = self.found.last.take().map(|(_, at)| at);
        self.found.last = Some((seq, at.unwrap_or_default()));
        self.found.head = ChainHash::START;
    }

    fn expected(&self) -> Option<u64> {
        self.found.last.as_ref().map(|(seq, _)| seq + 1)
    }

    fn entry(
        &mut self,
        place: (&Path, u64),
        named: u64,
        written: &Written,
        [prev, hash]: [ChainHash; 2],
    ) {
        let seq = written.seq;
        match self.expected() {
            None => self.begin(place, named, written, prev),
            Some(expected) if seq == expected => {
                // After a line with an unknown hash there is nothing to compare.
                let is_known = self.found.head != ChainHash::START;
                if is_known && prev != self.found.head {
                    let before = expected - 1;
                    let what =
                        format!("entry {before} was replaced: entry {seq} refers to another hash");
                    self.damaged(place, Some(before), DamageKind::Changed, what);
                }
            }
            Some(expected) if seq > expected => self.report_gap(place, expected, seq),
            Some(expected) => {
                self.out_of_order(place, seq, expected);
                // The chain continues after this entry.
                return;
            }
        }
        self.trace.follow(written);
        let first = || (seq, written.at.clone());
        self.found.first.get_or_insert_with(first);
        self.is_head_found |= self.check.head == Some(hash);
        self.found.entries += 1;
        self.found.head = hash;
        self.found.last = Some((seq, written.at.clone()));
    }

    /// Handles the first entry of the first file, whose name contains its number.
    fn begin(&mut self, place: (&Path, u64), named: u64, written: &Written, prev: ChainHash) {
        let seq = written.seq;
        self.found.begins = prev;
        self.is_head_found |= self.check.head == Some(prev);
        if seq > named {
            return self.report_gap(place, named, seq);
        }
        let what = match self.check.from {
            _ if seq < named => format!("entry {seq} is in a file whose first entry is {named}"),
            Some(from) if from != prev => {
                format!("entry {seq} follows the hash {prev}, not the given one")
            }
            _ if (seq == 1) != (prev == ChainHash::START) => {
                format!("entry {seq} refers to an invalid predecessor")
            }
            _ => return,
        };
        self.damaged(place, Some(seq), DamageKind::Removed, what);
    }

    fn report_gap(&mut self, place: (&Path, u64), expected: u64, seq: u64) {
        let what = match seq - expected {
            1 => format!("entry {expected} is missing before entry {seq}"),
            _ => format!("entries {expected} to {} are missing", seq - 1),
        };
        if self.missing.len() < DAMAGE_MAX {
            let at = usize::try_from(self.found.damage_count).unwrap_or(usize::MAX);
            self.missing.push((expected..seq, at));
        }
        self.damaged(place, Some(seq), DamageKind::Removed, what);
    }

    /// Handles an entry with a number that was already passed: it was moved here or inserted.
    fn out_of_order(&mut self, place: (&Path, u64), seq: u64, expected: u64) {
        let missing = self.missing.iter().find(|(range, _)| range.contains(&seq));
        if let Some((_, at)) = missing {
            // The entry that seemed to be missing is here.
            if let Some(damage) = self.found.damage.get_mut(*at) {
                damage.kind = DamageKind::Reordered;
                damage.what = format!("entry {seq} belongs before this entry");
            }
            let what = format!("entry {seq} is out of order, after entry {}", expected - 1);
            return self.damaged(place, Some(seq), DamageKind::Reordered, what);
        }
        let what = format!(
            "a second entry {seq} comes after entry {}: one of the two was inserted",
            expected - 1
        );
        self.damaged(place, Some(seq), DamageKind::Inserted, what);
    }

    fn damaged(
        &mut self,
        (file, line): (&Path, u64),
        seq: Option<u64>,
        kind: DamageKind,
        what: String,
    ) {
        self.found.damage_count += 1;
        if self.found.damage.len() < DAMAGE_MAX {
            self.found.damage.push(Damage {
                file: file.into(),
                line,
                seq,
                kind,
                what,
            });
        }
    }

    fn finish(mut self, last: &Segment) -> Verified {
        if let (false, Some(head)) = (self.is_head_found, self.check.head) {
            let seq = self.found.last.as_ref().map(|(seq, _)| *seq);
            let what =
                format!("no entry has the hash {head}: the log was truncated, or is another log");
            self.damaged((&last.path, 0), seq, DamageKind::Cut, what);
        }
        self.found.loose = self.trace.loose();
        self.found
    }
}
