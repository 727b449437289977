//! Open items at the end of a log: attempts without an end, unknown outcomes, and operator actions without a result.

use std::collections::HashMap;

use super::entry::Written;

/// Maximum number of open items of each kind.
const FOLLOWED_MAX: usize = 100_000;

/// An attempt or operator action that is open at the end of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Number of the entry that opened it.
    pub seq: u64,
    /// Time of that entry.
    pub at: String,
    /// Record.
    pub record: String,
    /// Fence (fencing token), if there is one.
    pub fence: Option<String>,
    /// Operation or consumer, if known.
    pub operation: Option<String>,
}

/// Open items at the end of the log, including attempts that are still running.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loose {
    /// Granted without an end: still running, or interrupted by a crash.
    pub open: Vec<Attempt>,
    /// Unknown outcomes that are not resolved yet.
    pub doubts: Vec<Attempt>,
    /// Operator actions without a recorded result.
    pub actions: Vec<Attempt>,
    /// Number of open items beyond the maximum.
    pub unlisted: u64,
}

/// Tracks what was opened and closed.
#[derive(Debug, Default)]
pub(super) struct Trace {
    open: HashMap<String, Attempt>,
    doubts: HashMap<String, Attempt>,
    actions: HashMap<String, Attempt>,
    unlisted: u64,
}

impl Trace {
    pub(super) fn follow(&mut self, written: &Written) {
        let Some(record) = &written.record else {
            return;
        };
        match written.event.as_str() {
            // A new grant replaces the previous one.
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
                follow(&mut self.actions, written, record, &mut self.unlisted);
            }
            "resolved" | "erased" => {
                self.open.remove(record);
                self.doubts.remove(record);
                self.actions.remove(record);
            }
            "refused" => {
                self.actions.remove(record);
            }
            _ => {}
        }
    }

    /// Ends the attempt with this fence, and no other attempt of its record.
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
            actions: sorted(self.actions),
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
