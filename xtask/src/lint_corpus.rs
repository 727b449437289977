//! `cargo xtask lint-corpus`: runs the rules of `refrain lint` on the labelled corpus.

use std::process::ExitCode;

use crate::cargo;

/// Prints the table; exit code 1 if the rules miss their required quality.
pub(crate) fn run(parts: &[String]) -> ExitCode {
    let run = [
        "run",
        "--quiet",
        "--package",
        "refrain-lint",
        "--example",
        "lint_corpus",
        "--",
    ];
    match cargo::command(&run).args(parts).status() {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}
