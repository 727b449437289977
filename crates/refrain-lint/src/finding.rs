//! Findings of a lint run, and its statistics.

use serde::Serialize;

use crate::rule::Severity;

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Path of the file.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Id of the rule.
    pub rule: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// Title of the rule.
    pub title: String,
    /// Details about this place.
    pub note: String,
    /// What goes wrong.
    pub why: String,
    /// How to fix it.
    pub fix: String,
    /// Link to the documentation of the rule.
    pub link: String,
    /// Source line, up to 300 characters.
    pub source: String,
}

/// Result of a lint run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Findings, sorted by file and line.
    pub findings: Vec<Finding>,
    /// Number of findings that a comment allows.
    pub allowed: usize,
    /// Number of files that were analysed.
    pub files: usize,
    /// Number of lines in these files.
    pub lines: usize,
    /// Number of files in unsupported languages.
    pub other_files: usize,
    /// Number of test files that were skipped.
    pub test_files: usize,
    /// Files that could not be analysed, with the reason, and `allow` comments without effect.
    pub notes: Vec<String>,
}

impl Report {
    /// Number of findings with at least this severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        let as_bad = self
            .findings
            .iter()
            .filter(|finding| finding.severity >= severity);
        as_bad.count()
    }
}
