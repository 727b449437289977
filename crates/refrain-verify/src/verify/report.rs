//! The report of a run, and its output formats.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{cases::Case, exchange::Exchange};

mod html;
mod junit;
mod sarif;

pub use html::html;
pub use junit::junit;
pub use sarif::{sarif, sarif_log};

/// Result of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseVerdict {
    /// The service is safe.
    Pass,
    /// Not run, with a reason.
    Skipped,
    /// Safe, but not what clients may expect.
    Warn,
    /// A bug was found.
    Fail,
}

impl fmt::Display for CaseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Skipped => "skipped",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// Report of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the report format: 1.
    pub version: u32,
    /// Address of the service.
    pub target: String,
    /// Random seed of keys and unique words.
    pub seed: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// Reports of the operations.
    pub operations: Vec<OperationReport>,
}

/// Report of one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport {
    /// Name, such as `POST /v1/payments`.
    pub operation: String,
    /// How effects were counted.
    pub counting: String,
    /// Whether effects were counted only by responses.
    pub is_weak: bool,
    /// Whether effects could not be counted at all, so that most cases were skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_blind: bool,
    /// Reports of the cases.
    pub cases: Vec<CaseReport>,
    /// Why the operation was not tested, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl OperationReport {
    /// Returns the report of an operation that was not tested.
    #[must_use]
    pub fn left_out(operation: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            counting: "not at all: the operation was not tested".into(),
            is_weak: false,
            is_blind: false,
            cases: Vec::new(),
            left_out: Some(why.into()),
        }
    }
}

/// Report of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Id of the case.
    pub id: String,
    /// Title of the case.
    pub title: String,
    /// Result of the case.
    pub verdict: CaseVerdict,
    /// Observations, or the reason why the case was skipped.
    pub findings: Vec<String>,
    /// What the case does, and what it expects.
    pub explanation: String,
    /// The bug that a failure reveals.
    pub hole: String,
    /// How to fix it.
    pub fix: String,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// Requests and responses.
    pub exchanges: Vec<Exchange>,
}

impl CaseReport {
    pub(super) fn new(
        case: &Case,
        verdict: CaseVerdict,
        findings: Vec<String>,
        took: Duration,
        exchanges: Vec<Exchange>,
    ) -> Self {
        Self {
            id: case.id.into(),
            title: case.title.into(),
            verdict,
            findings,
            explanation: case.explanation.into(),
            hole: case.hole.into(),
            fix: case.fix.into(),
            took_ms: millis(took),
            exchanges,
        }
    }
}

impl Report {
    /// Whether any case failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.count(CaseVerdict::Fail) > 0
    }

    /// Whether no operation gave a result: each was not tested, or its effects could not be counted.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        let mut all = self.operations.iter();
        all.all(|it| it.is_blind || it.left_out.is_some())
    }

    /// Returns the number of cases with this verdict.
    #[must_use]
    pub fn count(&self, verdict: CaseVerdict) -> usize {
        let cases = self
            .operations
            .iter()
            .flat_map(|operation| &operation.cases);
        cases.filter(|case| case.verdict == verdict).count()
    }
}

/// Lists regressions as `operation: case`: cases that fail now and did not fail before.
///
/// A case that was skipped or missing before and fails now is a regression.
#[must_use]
pub fn worse(before: &Report, now: &Report) -> Vec<String> {
    let failed = |report: &Report| -> Vec<String> {
        let each = report.operations.iter().flat_map(|operation| {
            let failed = operation.cases.iter();
            let failed = failed.filter(|case| case.verdict == CaseVerdict::Fail);
            failed.map(|case| format!("{}: {}", operation.operation, case.id))
        });
        each.collect()
    };
    let known = failed(before);
    let mut worse = failed(now);
    worse.retain(|it| !known.contains(it));
    worse
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Escapes text for XML or HTML, also within quotes. Characters that XML does not allow become U+FFFD.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(symbol),
            '\r' => {}
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            symbol if symbol.is_control() => safe.push('\u{fffd}'),
            symbol => safe.push(symbol),
        }
    }
    safe
}
