//! Checks that the threat model names a test for each threat, and that these tests exist.

use super::{
    Finding,
    tree::{File, Tree},
};

const PAGE: &str = "SECURITY.md";
const TITLE: &str = "## Threat model";
/// How many lines before a function its attribute may be.
const ATTRIBUTE_LINES_MAX: usize = 4;

/// Rule: the last cell of each row is `NAME` in `FILE`, and that file has such a test.
pub(super) fn tests(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(PAGE) else {
        return Vec::new();
    };
    let rows = rows(page);
    if rows.is_empty() {
        let message = format!("no table below `{TITLE}`; write one row for each threat");
        return vec![Finding::new(PAGE, 1, message)];
    }
    let faults = rows.into_iter().flat_map(|(line, row)| {
        let faults = faults(tree, row);
        faults
            .into_iter()
            .map(move |fault| Finding::new(PAGE, line, fault))
    });
    faults.collect()
}

/// The rows of the first table below the title, without its head.
fn rows(page: &File) -> Vec<(usize, &str)> {
    let below = page.lines().skip_while(|(_, line)| *line != TITLE);
    let table = below.skip_while(|(_, line)| !line.starts_with('|'));
    let table = table.take_while(|(_, line)| line.starts_with('|'));
    table.skip(2).collect()
}

/// What is wrong with the tests of a row.
fn faults(tree: &Tree, row: &str) -> Vec<String> {
    let cell = row
        .trim_end_matches('|')
        .rsplit('|')
        .next()
        .unwrap_or_default();
    let (mut names, mut faults, mut has_test) = (Vec::new(), Vec::new(), false);
    for word in cell.split('`').skip(1).step_by(2) {
        if !word.ends_with(".rs") {
            names.push(word);
            continue;
        }
        for name in names.drain(..) {
            has_test = true;
            if !tree
                .file(word)
                .is_some_and(|file| has_test_named(file, name))
            {
                faults.push(format!("{word} has no test `{name}`; name one that exists"));
            }
        }
    }
    if !has_test || !names.is_empty() {
        faults.push("the row names no test; end it with `NAME` in `FILE.rs`".into());
    }
    faults
}

fn has_test_named(file: &File, name: &str) -> bool {
    let function = format!("fn {name}(");
    let lines: Vec<&str> = file.text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let before = &lines[at.saturating_sub(ATTRIBUTE_LINES_MAX)..at];
        line.contains(&function) && before.iter().any(|it| is_attribute(it))
    })
}

fn is_attribute(line: &str) -> bool {
    let line = line.trim();
    line == "#[test]" || line.starts_with("#[tokio::test")
}
