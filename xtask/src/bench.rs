//! `cargo xtask bench`: the benchmarks, built as packages are.

use std::process::ExitCode;

use crate::cargo;

/// Runs the benchmarks that are named, or all of them.
pub(crate) fn run(names: &[String]) -> ExitCode {
    // The benchmark of the proxy runs the command itself.
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
