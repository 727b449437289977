//! Rules for all text files: length, leftover notes, white space.

use super::{
    Finding,
    tree::{File, Tree, words},
};

/// Maximum length of a file, in lines.
const LINES_MAX: usize = 600;
/// Generated pages have no length limit.
const GENERATED: &str = "docs/reference/";

/// Leftover notes. Written in halves, so that this file passes its own rule.
const LEFTOVERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];
const DEBUG_MACRO: &str = concat!("dbg", "!(");

/// Rule: no file is longer than [`LINES_MAX`] lines.
pub(super) fn length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let written = |file: &&File| !file.path.starts_with(GENERATED);
    for file in tree.files.iter().filter(written) {
        let lines = file.lines().count();
        if lines > LINES_MAX {
            let message = format!("{lines} lines, the limit is {LINES_MAX}; split it by purpose");
            findings.push(Finding::new(&file.path, LINES_MAX + 1, message));
        }
    }
    findings
}

/// Rule: no leftover notes and no debug macros.
pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    each_line(tree, |line| {
        let note = words(line).find(|word| LEFTOVERS.contains(word));
        let debug = line.contains(DEBUG_MACRO).then_some(DEBUG_MACRO);
        let what = note.or(debug)?;
        Some(format!("`{what}`; resolve it now, or remove it"))
    })
}

/// Rule: no line ends in white space.
pub(super) fn white_space(tree: &Tree) -> Vec<Finding> {
    each_line(tree, |line| {
        let trailing = line.trim_end() != line;
        trailing.then(|| "white space at the end of the line; delete it".into())
    })
}

/// Rule: every file ends with exactly one newline.
pub(super) fn last_newline(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.text.is_empty()) {
        let message = match file.text.as_str() {
            text if !text.ends_with('\n') => "no newline at the end of the file; add one",
            text if text.ends_with("\n\n") => "empty lines at the end of the file; delete them",
            _ => continue,
        };
        findings.push(Finding::new(&file.path, file.lines().count(), message));
    }
    findings
}

fn each_line(tree: &Tree, rule: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (at, line) in file.lines() {
            findings.extend(rule(line).map(|message| Finding::new(&file.path, at, message)));
        }
    }
    findings
}
