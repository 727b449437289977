//! What is found, and what was done to find it.

use serde::Serialize;

use crate::rule::Severity;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The rule's id.
    pub rule: String,
    /// How bad it is, and how certain.
    pub severity: Severity,
    /// What the rule is called.
    pub title: String,
    /// What is seen here.
    pub note: String,
    /// What goes wrong.
    pub why: String,
    /// What to do instead.
    pub fix: String,
    /// Where there is more about it.
    pub link: String,
    /// The line of the source.
    pub source: String,
}

/// All that came of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// In the order of files and lines.
    pub findings: Vec<Finding>,
    /// Findings that a comment allows.
    pub allowed: usize,
    /// Files that were looked at.
    pub files: usize,
    /// Their lines.
    pub lines: usize,
    /// Files in other languages.
    pub other_files: usize,
    /// Files that test other code, and were not looked at.
    pub test_files: usize,
    /// Files that could not be looked at, with why, and comments that allow nothing.
    pub notes: Vec<String>,
}

impl Report {
    /// How many findings are at least this bad.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        let as_bad = self
            .findings
            .iter()
            .filter(|finding| finding.severity >= severity);
        as_bad.count()
    }
}
