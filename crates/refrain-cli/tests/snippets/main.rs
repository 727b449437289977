//! A reader copies a command from a page, and it does not do what the page shows.
//!
//! Every code block in README.md and docs/ is covered:
//! - `sh` and `console` blocks run here, page by page, in the order of the page, with the real command;
//! - `rust` blocks are documentation tests of the crate that includes the page;
//! - `toml` blocks are accepted by `refrain check` (tests/book.rs), and dependency lines build here;
//! - examples of `refrain lint` findings are linted, the wrong half and the right one, and its rule files are read;
//! - `sql` blocks run on a real PostgreSQL;
//! - blocks marked `not-run` are excerpts, or need something that no test has; there is no other exception.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, path::Path};

mod dependencies;
mod lint;
#[path = "../support/pages.rs"]
mod pages;
mod session;

use pages::Page;
use session::Session;

/// Mark of a block that no test runs.
const NOT_RUN: &str = "not-run";
/// Languages of blocks that show output or data, never input.
const SHOWN: [&str; 4] = ["text", "json", "ini", "yaml"];
/// First words of lines that readers type into a shell or a server's client.
const TYPED: [&str; 21] = [
    "$",
    "cargo",
    "cat",
    "curl",
    "docker",
    "echo",
    "export",
    "kubectl",
    "printf",
    "psql",
    "redis-cli",
    "refrain",
    "sed",
    "sudo",
    "systemctl",
    "DELETE",
    "INSERT",
    "SELECT",
    "SET",
    "UPDATE",
    "XADD",
];

fn root() -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Pages that readers follow; those below `reference` are generated from the command itself.
fn read_by_users() -> impl Iterator<Item = Page> {
    let is_read = |page: &Page| {
        page.path == "README.md"
            || (page.path.starts_with("docs/") && !page.path.starts_with("docs/reference/"))
    };
    pages::all().into_iter().filter(is_read)
}

#[test]
fn every_code_block_is_run_or_marked_as_not_run() {
    let doc_tested = doc_tested_pages();
    let mut faults = Vec::new();
    for page in read_by_users() {
        for block in page.blocks() {
            let covered = match block.language {
                _ if block.has(NOT_RUN) => true,
                "sh" | "console" | "sql" => true,
                _ if page.path == lint::PAGE => lint::Example::of(&block).is_some(),
                "rust" => !block.has("ignore") && doc_tested.contains(&page.path),
                "toml" => !lint::is_rules(&block),
                language if SHOWN.contains(&language) => !block.lines.iter().any(|it| is_typed(it)),
                _ => false,
            };
            if !covered {
                faults.push(format!(
                    "{}: nothing runs this block of `{}`; mark it `{NOT_RUN}` or use a language that is run",
                    block.place, block.language
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether a line is a command rather than output.
fn is_typed(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    TYPED.contains(&first) || line.contains("$(")
}

#[test]
fn commands_are_told_from_output() {
    for (line, want) in [
        ("line=$(sed -n 3p audit.jsonl)", true),
        ("printf %s \"${line}\" | sha256sum", true),
        ("XADD orders * order 17", true),
        ("  $ refrain check", true),
        ("POST /v1/payments  -> charged 20.00", false),
        ("Idempotency-Key: \"6f1c\"", false),
        (
            "      fix:  Claim the key (INSERT … ON CONFLICT, SET NX)",
            false,
        ),
        ("", false),
    ] {
        assert_eq!(is_typed(line), want, "{line}");
    }
}

/// Pages that a crate includes in its documentation, so that their Rust is compiled and run.
fn doc_tested_pages() -> Vec<String> {
    let mut pages = Vec::new();
    for folder in fs::read_dir(root().join("crates")).unwrap() {
        let source = fs::read_to_string(folder.unwrap().path().join("src/lib.rs"));
        let source = source.unwrap_or_default();
        let included = source.lines().filter_map(|line| {
            let path = line.strip_prefix("#[doc = include_str!(\"../../../")?;
            path.strip_suffix("\")]")
        });
        pages.extend(included.map(str::to_owned));
    }
    pages
}

#[test]
fn the_commands_on_every_page_do_what_it_shows() {
    let mut faults = Vec::new();
    let mut commands = 0;
    for page in read_by_users() {
        let mut session = Session::new(&page);
        let played = session.play();
        commands += session.commands;
        faults.extend(played.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(commands > 25, "only {commands} commands were run");
}

/// CI runs the two commands at the top of the README.
#[test]
fn the_first_two_commands_are_run_by_ci() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    let (_, behind) = readme.split_once("```sh,not-run\n").unwrap();
    let (block, _) = behind.split_once("```").unwrap();
    let commands: Vec<_> = block
        .lines()
        .map(|line| line.split(" #").next().unwrap_or(line).trim_end())
        .collect();
    assert_eq!(
        commands,
        ["cargo run --release -- demo", "cargo xtask test"]
    );
    for command in commands {
        assert!(ci.contains(&format!("check {command}")), "{command}");
    }
}
