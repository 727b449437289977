//! `cargo xtask tidy`: checks the project's rules that no compiler checks.
//!
//! A rule is a function over the whole [`Tree`]; each finding names file, line and fix. A tree is a plain
//! value, so that the tests can run every rule on a bad sample without files.

use std::{fmt, process::ExitCode};

use crate::cargo;

mod links;
mod phrases;
mod problems;
mod rust;
mod text;
mod threats;
mod tree;

#[cfg(test)]
mod tests;

use tree::Tree;

/// A rule: takes the whole tree and returns the violations.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 12] = [
    text::length,
    text::leftovers,
    text::white_space,
    text::last_newline,
    phrases::home_made,
    rust::opening_doc,
    rust::pure_record,
    rust::no_driver,
    rust::type_names,
    problems::pages,
    links::targets,
    threats::tests,
];

/// Checks the working tree; exit code 1 if there are findings.
pub(crate) fn run() -> ExitCode {
    let tree = match Tree::read(&cargo::root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("xtask tidy: cannot read the source tree: {error}");
            return ExitCode::FAILURE;
        }
    };
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("xtask tidy: {} files, no problems found", tree.files.len());
            ExitCode::SUCCESS
        }
        count => {
            println!("xtask tidy: {count} problems to fix");
            ExitCode::FAILURE
        }
    }
}

/// Applies every rule; sorts the findings by file and line.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    /// What is wrong, and how to fix it.
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
