//! The findings of `refrain lint` in the source, reported at the stage that they concern.

use std::path::Path;

use serde::Serialize;

use super::quoted;
use crate::output::counted;

/// The most findings printed at each stage.
const TOLD_MAX: usize = 3;
/// The most findings in the JSON output.
const FINDINGS_MAX: usize = 100;

/// The result of `refrain lint` on the folder.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Source {
    files: usize,
    errors: usize,
    warnings: usize,
    hints: usize,
    /// Sorted as the report is; `cut` keeps the first.
    findings: Vec<Finding>,
    /// Why the source was not linted.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    path: String,
    line: usize,
    severity: String,
    rule: String,
    title: String,
}

#[cfg(feature = "lint")]
pub(super) fn lint_folder(folder: &Path) -> Source {
    use refrain_lint::{Limits, Rules, Severity, lint};
    let rules = match Rules::built_in() {
        Ok(rules) => rules,
        Err(error) => return Source::unseen(&error),
    };
    let report = match lint(&[folder.to_path_buf()], &rules, &Limits::default()) {
        Ok(report) => report,
        Err(error) => return Source::unseen(&error),
    };
    let exactly = |severity| {
        let findings = report.findings.iter();
        findings.filter(|it| it.severity == severity).count()
    };
    let finding = |it: &refrain_lint::Finding| Finding {
        path: it.path.clone(),
        line: it.line,
        severity: it.severity.to_string(),
        rule: it.rule.clone(),
        title: it.title.clone(),
    };
    Source {
        files: report.files,
        errors: exactly(Severity::Error),
        warnings: exactly(Severity::Warning),
        hints: exactly(Severity::Hint),
        findings: report.findings.iter().map(finding).collect(),
        problem: None,
    }
}

#[cfg(not(feature = "lint"))]
pub(super) fn lint_folder(_folder: &Path) -> Source {
    Source::unseen(&"built without the linter; rebuild with --features lint")
}

/// The stage that a rule concerns.
fn stage(rule: &str) -> usize {
    match rule {
        "ack-before-handle" | "mark-before-handle" | "publish-in-transaction" => 5,
        "resend-on-closed-connection" => 4,
        "check-then-act"
        | "error-outcome-kept"
        | "error-outcome-dropped"
        | "unlock-without-owner-check"
        | "insert-without-conflict"
        | "ttl-shorter-than-retries" => 3,
        // All other rules are about keys.
        _ => 2,
    }
}

impl Source {
    fn unseen(problem: &impl std::fmt::Display) -> Self {
        Self {
            problem: Some(problem.to_string()),
            ..Self::default()
        }
    }

    /// Truncates the findings for the JSON output.
    pub(super) fn cut(mut self) -> Self {
        self.findings.truncate(FINDINGS_MAX);
        self
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problem.is_none() && self.findings.is_empty()
    }

    /// The first findings of a stage with their locations, and the number of the others.
    pub(super) fn describe_stage(&self, number: usize) -> Vec<String> {
        let here: Vec<_> = self
            .findings
            .iter()
            .filter(|it| stage(&it.rule) == number)
            .collect();
        let told = here.iter().take(TOLD_MAX).map(|it| {
            let Finding {
                path,
                line,
                severity,
                rule,
                title,
            } = it;
            format!("in the source: {path}:{line}: {severity}: {title} ({rule})")
        });
        let more = here.len().saturating_sub(TOLD_MAX);
        let more = (more > 0).then(|| format!("in the source: {more} more of this kind"));
        told.chain(more).collect()
    }

    pub(super) fn describe(&self, folder: &Path) -> String {
        let files = counted(self.files, "file");
        match &self.problem {
            Some(problem) => problem.clone(),
            None if self.is_clean() => format!("no findings in {files}."),
            None => format!(
                "{}, {} and {} in {files}; `refrain lint {}` lists them.",
                counted(self.errors, "error"),
                counted(self.warnings, "warning"),
                counted(self.hints, "hint"),
                quoted(folder)
            ),
        }
    }
}

/// A rule without a stage of its own would be reported under keys, whether or not it is about them.
#[cfg(feature = "lint")]
#[test]
fn every_rule_has_a_stage() {
    let keys = [
        "key-in-retry-loop",
        "key-per-attempt",
        "key-from-clock",
        "key-truncated",
        "unscoped-key",
        "money-call-without-key",
        "retry-post-without-key",
    ];
    let rules = refrain_lint::Rules::built_in().unwrap();
    for rule in &rules.rules {
        let is_about_keys = keys.contains(&rule.id.as_str());
        assert_eq!(stage(&rule.id) == 2, is_about_keys, "{}", rule.id);
    }
}
