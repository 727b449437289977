//! `cargo xtask book`: the documentation as a book, and that nothing in it is broken.
//!
//! Pages are compared with the table of contents, the book is built, every link in what was built is followed,
//! and the tests run that hold examples and generated pages to the real command.

use std::{fs, path::Path, process::ExitCode};

use crate::cargo;

mod links;
mod mdbook;
mod summary;

/// The sources, from the root of the workspace.
const SOURCES: &str = "docs";
/// What is built, from the root of the workspace.
const BUILT: &str = "target/book";
/// The tests that hold the pages to the command; built as `cargo xtask test` builds them, so that it is done once.
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

/// A tool that is needed cannot be had.
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
        // What an earlier run left would make a dead link look alive.
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
            println!("xtask book: {BUILT}/index.html, nothing found");
            ExitCode::SUCCESS
        }
        Ok(_) => {
            println!("xtask book: {} to mend", findings.len());
            ExitCode::FAILURE
        }
    }
}

/// Writes the pages that are generated; `cargo xtask book` and the tests say when they are stale.
pub(crate) fn write_reference() -> ExitCode {
    let mut command = cargo::command(&["test", "--package", "refrain-cli", "--bin", "refrain"]);
    command.args(["book::reference"]);
    let status = command.env("REFRAIN_REFERENCE", "write").status();
    match status {
        Ok(status) => cargo::exit_code(status),
        Err(error) => cargo::not_run(&error),
    }
}

/// All files below a folder whose names end like this, as paths from it with `/` between the names, sorted.
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
