//! `cargo xtask bench`: runs the benchmarks, built as `cargo install` builds the command.

use std::process::ExitCode;

use crate::cargo;

/// Runs the named benchmarks, or all of them.
pub(crate) fn run(names: &[String]) -> ExitCode {
    // The proxy benchmark starts the `refrain` binary.
    match cargo::command(&["build", "--release", "--package", "refrain-cli"]).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return cargo::exit_code(status),
        Err(error) => return cargo::not_run(&error),
    }
    let status = cargo::command(&["run", "--release", "--package", "refrain-bench", "--"])
        .args(names)
        .status();
    match status {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}
