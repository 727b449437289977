//! `cargo xtask bench`: runs the benchmarks, built with the profile of packages.

use std::process::ExitCode;

use crate::cargo;

/// Runs the named benchmarks, or all of them.
pub(crate) fn run(names: &[String]) -> ExitCode {
    // The proxy benchmark starts the `refrain` binary.
    match cargo::command(&["build", "--profile", "dist", "--package", "refrain-cli"]).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return cargo::exit_code(status),
        Err(error) => return cargo::not_run(&error),
    }
    let status = cargo::command(&[
        "run",
        "--profile",
        "dist",
        "--package",
        "refrain-bench",
        "--",
    ])
    .args(names)
    .status();
    match status {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}
