//! Finds mdbook on the machine, or installs it below `target`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use crate::cargo;

/// The version to install.
const VERSION: &str = "0.5.4";
/// Versions with the same `book.toml` format.
const SERIES: &str = "mdbook v0.5.";

/// Returns the program's path.
pub(super) fn find_or_install(root: &Path) -> Result<PathBuf, String> {
    let tools = root.join("target/tools");
    let own = tools.join("bin/mdbook");
    let found = [PathBuf::from("mdbook"), own.clone()];
    if let Some(found) = found.into_iter().find(|program| is_right(program)) {
        return Ok(found);
    }
    eprintln!("xtask book: mdbook 0.5 is not installed; installing {VERSION} into target/tools");
    #[expect(
        clippy::disallowed_methods,
        reason = "the elapsed time is only printed"
    )]
    let begin = Instant::now();
    // Unoptimised and without its web server: mdbook builds the book in a second anyway, and compiles much faster.
    let mut command = cargo::command(&["install", "mdbook", "--version", VERSION, "--locked"]);
    command.args(["--debug", "--no-default-features", "--features", "search"]);
    command
        .arg("--root")
        .arg(&tools)
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    let status = command.status().map_err(|error| error.to_string())?;
    if !status.success() || !is_right(&own) {
        let advice = format!("run `cargo install mdbook --version {VERSION}`");
        return Err(format!("cannot install mdbook; {advice}"));
    }
    eprintln!("xtask book: installed in {} s", begin.elapsed().as_secs());
    Ok(own)
}

fn is_right(program: &Path) -> bool {
    let shown = Command::new(program).arg("--version").output();
    shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).starts_with(SERIES))
}

/// Builds the book. A warning counts as a failure, because mdbook warns about what it leaves out.
pub(super) fn build(program: &Path, sources: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    let built = command.arg("build").arg(sources).stdin(Stdio::null());
    let built = built.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&built.stderr);
    eprint!("{said}");
    match built.status.success() && !said.contains("WARN") {
        true => Ok(()),
        false => Err("mdbook failed or printed warnings".into()),
    }
}
