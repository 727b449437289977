//! What was found, and the forms in which it is written down.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{cases::Case, exchange::Exchange};

mod html;
mod junit;
mod sarif;

pub use html::html;
pub use junit::junit;
pub use sarif::{sarif, sarif_log};

/// What a case came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Safe.
    Pass,
    /// Not tried, for a reason that is given.
    Skipped,
    /// Safe, and not what clients may hope for.
    Warn,
    /// A hole.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Skipped => "skipped",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Of this form; 1.
    pub version: u32,
    /// Where the service is.
    pub target: String,
    /// What keys and bodies went by.
    pub seed: u64,
    /// How long it took.
    pub took_ms: u64,
    /// What was found of each operation.
    pub operations: Vec<OperationReport>,
}

/// What was found of one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport {
    /// `POST /v1/payments`.
    pub operation: String,
    /// How effects were counted.
    pub counting: String,
    /// Whether effects were seen in answers alone.
    pub is_weak: bool,
    /// Whether effects could not be seen at all, so that most cases were skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_blind: bool,
    /// Each case.
    pub cases: Vec<CaseReport>,
    /// Why it was not tested at all, where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl OperationReport {
    /// Of an operation that was not tested.
    #[must_use]
    pub fn left_out(operation: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            counting: "not at all: it was not tested".into(),
            is_weak: false,
            is_blind: false,
            cases: Vec::new(),
            left_out: Some(why.into()),
        }
    }
}

/// What a case came to, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Which.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// What it came to.
    pub verdict: Verdict,
    /// What was seen; the reason where it was skipped.
    pub findings: Vec<String>,
    /// What is done, and what is expected.
    pub explanation: String,
    /// What is wrong with a service that fails it.
    pub hole: String,
    /// What to do about it.
    pub fix: String,
    /// How long it took.
    pub took_ms: u64,
    /// What was said.
    pub exchanges: Vec<Exchange>,
}

impl CaseReport {
    pub(super) fn new(
        case: &Case,
        verdict: Verdict,
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
        self.count(Verdict::Fail) > 0
    }

    /// Whether nothing could be told of any operation: not tested, or its effects could not be seen.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        let mut all = self.operations.iter();
        all.all(|it| it.is_blind || it.left_out.is_some())
    }

    /// How many cases came to this.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let cases = self
            .operations
            .iter()
            .flat_map(|operation| &operation.cases);
        cases.filter(|case| case.verdict == verdict).count()
    }
}

/// What fails now and did not before, as `operation: case`.
///
/// A case that was skipped or not there before counts as worse when it fails.
#[must_use]
pub fn worse(before: &Report, now: &Report) -> Vec<String> {
    let failed = |report: &Report| -> Vec<String> {
        let each = report.operations.iter().flat_map(|operation| {
            let failed = operation.cases.iter();
            let failed = failed.filter(|case| case.verdict == Verdict::Fail);
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

/// Text in XML or HTML, also within quotes. What XML cannot hold becomes U+FFFD.
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
