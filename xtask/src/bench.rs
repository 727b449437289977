//! `cargo xtask bench`: the benchmarks, in release mode.

use std::process::ExitCode;

use crate::cargo;

/// Runs the benchmarks that are named, or all of them.
pub(crate) fn run(names: &[String]) -> ExitCode {
    let status = cargo::command(&["run", "--release", "--package", "refrain-bench", "--"])
        .args(names)
        .status();
    match status {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}
