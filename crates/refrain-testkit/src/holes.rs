//! Report of a check: passed and skipped cases, and each failure with its fix.

use std::fmt;

/// Result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Cases that were skipped, each with the reason.
    pub left_out: Vec<String>,
    /// The cases that failed.
    pub holes: Vec<Hole>,
}

/// A failed case: an idempotency bug, with its fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// Name of the case.
    pub case: &'static str,
    /// What the check did, and what it observed.
    pub seen: String,
    /// The bug, in general terms.
    pub hole: &'static str,
    /// How to fix it.
    pub fix: &'static str,
}

/// Definition of a case: its name, the bug that a failure reveals, and the fix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) hole: &'static str,
    pub(crate) fix: &'static str,
}

/// Result of a case; the error describes what the check observed.
pub(crate) type Seen = Result<(), String>;

impl Report {
    pub(crate) fn add(&mut self, case: &Case, seen: Seen) {
        let Case { id, hole, fix } = *case;
        match seen {
            Ok(()) => self.passed.push(id),
            Err(seen) => self.holes.push(Hole {
                case: id,
                seen,
                hole,
                fix,
            }),
        }
    }

    /// Returns the names of the failed cases.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        self.holes.iter().map(|hole| hole.case).collect()
    }

    #[track_caller]
    pub(crate) fn must_hold(&self) {
        assert!(self.holes.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.holes.len());
        writeln!(f, "{passed} cases passed, {failed} failed")?;
        for hole in &self.holes {
            write!(f, "{hole}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "skipped: {left_out}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.case)?;
        writeln!(f, "  seen: {}", self.seen)?;
        writeln!(f, "  hole: {}", self.hole)?;
        writeln!(f, "  fix:  {}", self.fix)
    }
}
