//! What was found, in words that name the hole and the fix.

use std::fmt;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The cases that held.
    pub passed: Vec<&'static str>,
    /// What could not be tried, and why.
    pub left_out: Vec<String>,
    /// The cases that did not hold.
    pub holes: Vec<Hole>,
}

/// A case that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// Which case.
    pub case: &'static str,
    /// What was done, and what was seen.
    pub seen: String,
    /// What is wrong.
    pub hole: &'static str,
    /// What to do about it.
    pub fix: &'static str,
}

/// A case: what it is called, what a failure means, and the fix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) hole: &'static str,
    pub(crate) fix: &'static str,
}

/// What a case came to; the error says what was seen.
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

    /// The cases that did not hold, by name.
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
        writeln!(f, "{passed} cases hold, {failed} do not")?;
        for hole in &self.holes {
            write!(f, "{hole}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
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
