//! `cargo xtask book`: builds and checks the documentation.
//!
//! Compares the pages with the table of contents, builds the book, checks every link in the built book, and
//! runs the tests that compare examples and generated pages with the real command.

use std::{fs, path::Path, process::ExitCode};

use crate::cargo;

mod links;
mod mdbook;
mod summary;

/// Source folder, relative to the workspace root.
const SOURCES: &str = "docs";
/// Output folder, relative to the workspace root.
const BUILT: &str = "target/book";
/// Arguments for the tests that check the pages; the same build options as in `cargo xtask test`, so that
/// nothing is built twice.
const TESTS: [&str; 8] = [
    "test",
    "--workspace",
    "--all-features",
    "--bin",
    "refrain",
    "--test",
    "book",
    "book",
];

/// Exit code if a required tool is unavailable.
const UNAVAILABLE: u8 = 69;

/// Builds and checks the book.
pub(crate) fn run() -> ExitCode {
    let root = cargo::root();
    let mdbook = match mdbook::find_or_install(&root) {
        Ok(mdbook) => mdbook,
        Err(problem) => {
            eprintln!("xtask book: {problem}");
            return ExitCode::from(UNAVAILABLE);
        }
    };
    let built = summary::check(&root.join(SOURCES)).and_then(|mut findings| {
        // Files of an earlier run would hide a dead link.
        let _ = fs::remove_dir_all(root.join(BUILT));
        mdbook::build(&mdbook, &root.join(SOURCES))?;
        findings.extend(links::check(&root.join(BUILT))?);
        Ok(findings)
    });
    let findings = match built {
        Ok(findings) => findings,
        Err(problem) => {
            eprintln!("xtask book: {problem}");
            return ExitCode::FAILURE;
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    let tested = cargo::command(&TESTS).status();
    match tested {
        Err(error) => cargo::not_run(&error),
        Ok(status) if !status.success() => cargo::exit_code(status),
        Ok(_) if findings.is_empty() => {
            println!("xtask book: wrote {BUILT}/index.html, no problems found");
            ExitCode::SUCCESS
        }
        Ok(_) => {
            println!("xtask book: {} problems to fix", findings.len());
            ExitCode::FAILURE
        }
    }
}

/// Writes the generated pages; `cargo xtask book` and the tests report stale ones.
pub(crate) fn write_reference() -> ExitCode {
    let mut command = cargo::command(&["test", "--package", "refrain-cli", "--bin", "refrain"]);
    command.args(["book::reference"]);
    let status = command.env("REFRAIN_REFERENCE", "write").status();
    match status {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}

/// All files below a folder whose names have this ending, as sorted paths relative to it, with `/` as separator.
fn files(folder: &Path, end: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(prefix) = folders.pop() {
        let here = folder.join(&prefix);
        let entries =
            fs::read_dir(&here).map_err(|error| format!("{}: {error}", here.display()))?;
        for entry in entries.flatten() {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => folders.push(name + "/"),
                false if name.ends_with(end) => found.push(name),
                false => {}
            }
        }
    }
    found.sort();
    Ok(found)
}
