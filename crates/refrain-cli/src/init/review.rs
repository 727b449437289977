//! What the source says, in a few words.

use std::path::Path;

use serde::Serialize;

/// What `refrain lint` finds in the folder.
#[derive(Debug, Default, Serialize)]
pub(super) struct Source {
    files: usize,
    errors: usize,
    warnings: usize,
    hints: usize,
    /// What could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[cfg(feature = "lint")]
pub(super) fn of(folder: &Path) -> Source {
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
        report
            .findings
            .iter()
            .filter(|it| it.severity == severity)
            .count()
    };
    Source {
        files: report.files,
        errors: exactly(Severity::Error),
        warnings: exactly(Severity::Warning),
        hints: exactly(Severity::Hint),
        problem: None,
    }
}

#[cfg(not(feature = "lint"))]
pub(super) fn of(_folder: &Path) -> Source {
    Source::unseen(&"this build has no linter; build with the feature `lint`")
}

impl Source {
    fn unseen(problem: &impl std::fmt::Display) -> Self {
        Self {
            problem: Some(problem.to_string()),
            ..Self::default()
        }
    }

    pub(super) fn told(&self, folder: &Path) -> String {
        let Self {
            files,
            errors,
            warnings,
            hints,
            problem,
        } = self;
        match problem {
            Some(problem) => problem.clone(),
            None if errors + warnings + hints == 0 => {
                format!("nothing suspicious in {files} files.")
            }
            None => format!(
                "{errors} errors, {warnings} warnings and {hints} hints in {files} files; `refrain lint {}` shows them.",
                folder.display()
            ),
        }
    }
}
