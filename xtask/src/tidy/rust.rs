//! Rules for Rust sources: opening doc comments, and names that are banned in certain places.

use super::{
    Finding,
    tree::{Tree, words},
};

/// Identifiers that indicate I/O or a clock in the state machine.
const IMPURE: [&str; 7] = [
    "Instant",
    "SystemTime",
    "Clock",
    "SystemClock",
    "StoreClock",
    "tokio",
    "fs",
];

const LIBRARY_MANIFEST: &str = "crates/refrain/Cargo.toml";
/// Database and broker drivers, by the prefix of their crates' names.
const DRIVERS: [&str; 16] = [
    "tokio-postgres",
    "postgres",
    "deadpool",
    "sqlx",
    "diesel",
    "sea-orm",
    "rusqlite",
    "mysql",
    "mongodb",
    "redis",
    "fred",
    "async-nats",
    "lapin",
    "rdkafka",
    "aws-sdk",
    "aws-config",
];

/// Type names that tell a stranger nothing about the fields.
const VAGUE: [&str; 11] = [
    "Answer", "Asked", "Begun", "Care", "Next", "Place", "Post", "Shared", "Thing", "Turn", "Way",
];

/// Rule: a type's name says what it is.
pub(super) fn type_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.ending(".rs") {
        for (at, code) in file.code() {
            if let Some(name) = defined_type(code).filter(|name| VAGUE.contains(name)) {
                let message = format!(
                    "the type name `{name}` is too vague; use a noun from which a reader can guess the fields"
                );
                findings.push(Finding::new(&file.path, at, message));
            }
        }
    }
    findings
}

/// Returns the name of the struct, enum or trait that a line defines.
fn defined_type(code: &str) -> Option<&str> {
    let mut words = words(code);
    words.find(|word| matches!(*word, "struct" | "enum" | "trait"))?;
    words.next()
}

/// Rule: every crate opens with a doc comment.
pub(super) fn opening_doc(tree: &Tree) -> Vec<Finding> {
    let roots = tree
        .ending("src/lib.rs")
        .chain(tree.ending("src/main.rs"))
        .filter(|file| !opens_with_doc(&file.text));
    let message = "the crate does not start with a doc comment; describe it in `//!` lines";
    roots
        .map(|file| Finding::new(&file.path, 1, message))
        .collect()
}

fn opens_with_doc(text: &str) -> bool {
    let said = text
        .strip_prefix("//!")
        .and_then(|rest| rest.lines().next());
    said.is_some_and(|line| !line.trim().is_empty()) || text.starts_with("#![doc")
}

/// Rule: the state machine does no I/O and reads no clock.
pub(super) fn pure_record(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.ending(".rs") {
        let path = file.path.strip_prefix("crates/refrain/src/record");
        if !path.is_some_and(|rest| rest == ".rs" || rest.starts_with('/')) {
            continue;
        }
        for (at, code) in file.code() {
            if let Some(word) = words(code).find(|word| IMPURE.contains(word)) {
                let message = format!(
                    "`{word}` in the state machine, which does no I/O and reads no clock; pass the value as an argument"
                );
                findings.push(Finding::new(&file.path, at, message));
            }
        }
    }
    findings
}

/// Rule: the manifest of the library names no driver.
pub(super) fn no_driver(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, code) in tree
        .file(LIBRARY_MANIFEST)
        .iter()
        .flat_map(|file| file.code())
    {
        if let Some(name) = crate_names(code).find(|name| is_driver(name)) {
            let message = format!(
                "`{name}` is a driver; stores and brokers that need one live in refrain-stores and refrain-brokers"
            );
            findings.push(Finding::new(LIBRARY_MANIFEST, at, message));
        }
    }
    findings
}

fn crate_names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
}

fn is_driver(name: &str) -> bool {
    let name = name.replace('_', "-");
    DRIVERS.iter().any(|driver| {
        let rest = name.strip_prefix(driver);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}
