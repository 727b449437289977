//! What has not come to its end by the last line: attempts that were granted, doubts, and deeds of people.

use std::collections::HashMap;

use super::entry::Written;

/// The most loose ends of a kind that are followed at once.
const FOLLOWED_MAX: usize = 100_000;

/// One attempt, or one deed, that the log leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The entry that opened it.
    pub seq: u64,
    /// When.
    pub at: String,
    /// Which record.
    pub record: String,
    /// Under which fence, where there is one.
    pub fence: Option<String>,
    /// Of which operation or consumer, where that is known.
    pub operation: Option<String>,
}

/// What the log leaves open. Attempts that run are among it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loose {
    /// Granted, and no end: they run, or their process was killed.
    pub open: Vec<Attempt>,
    /// Ended in doubt, and nobody has said yet what became of them.
    pub doubts: Vec<Attempt>,
    /// A person was about to do something, and whether it was done does not stand here.
    pub deeds: Vec<Attempt>,
    /// How many there were beyond those that could be followed.
    pub unlisted: u64,
}

/// Follows what was opened and closed.
#[derive(Debug, Default)]
pub(super) struct Trace {
    open: HashMap<String, Attempt>,
    doubts: HashMap<String, Attempt>,
    deeds: HashMap<String, Attempt>,
    unlisted: u64,
}

impl Trace {
    pub(super) fn follow(&mut self, written: &Written) {
        let Some(record) = &written.record else {
            return;
        };
        match written.event.as_str() {
            // One that is granted anew takes over from the one before.
            "granted" => {
                self.doubts.remove(record);
                follow(&mut self.open, written, record, &mut self.unlisted);
            }
            "completed" | "released" => self.end(written, record),
            "doubted" => {
                self.end(written, record);
                follow(&mut self.doubts, written, record, &mut self.unlisted);
            }
            "resolving" | "erasing" => {
                follow(&mut self.deeds, written, record, &mut self.unlisted);
            }
            "resolved" | "erased" => {
                self.open.remove(record);
                self.doubts.remove(record);
                self.deeds.remove(record);
            }
            "refused" => {
                self.deeds.remove(record);
            }
            _ => {}
        }
    }

    /// Ends the attempt that the entry names, and no other one of its record.
    fn end(&mut self, written: &Written, record: &str) {
        for followed in [&mut self.open, &mut self.doubts] {
            if followed
                .get(record)
                .is_some_and(|attempt| attempt.fence == written.fence)
            {
                followed.remove(record);
            }
        }
    }

    pub(super) fn loose(self) -> Loose {
        let sorted = |followed: HashMap<String, Attempt>| {
            let mut attempts: Vec<_> = followed.into_values().collect();
            attempts.sort_by_key(|attempt| attempt.seq);
            attempts
        };
        Loose {
            open: sorted(self.open),
            doubts: sorted(self.doubts),
            deeds: sorted(self.deeds),
            unlisted: self.unlisted,
        }
    }
}

fn follow(
    followed: &mut HashMap<String, Attempt>,
    written: &Written,
    record: &str,
    unlisted: &mut u64,
) {
    if followed.len() >= FOLLOWED_MAX && !followed.contains_key(record) {
        *unlisted += 1;
        return;
    }
    let attempt = Attempt {
        seq: written.seq,
        at: written.at.clone(),
        record: record.to_owned(),
        fence: written.fence.clone(),
        operation: written.operation.clone(),
    };
    followed.insert(record.to_owned(), attempt);
}
