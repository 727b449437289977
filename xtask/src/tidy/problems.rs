//! Checks that every problem code of the HTTP layer has a page, and every page a code.

use std::collections::BTreeMap;

use super::{
    Finding,
    tree::{File, Tree},
};

const SOURCE: &str = "crates/refrain/src/http/problem.rs";
const PAGES: &str = "docs/problems/";

/// Rule: codes and pages are the same set.
pub(super) fn pages(tree: &Tree) -> Vec<Finding> {
    let Some(source) = tree.file(SOURCE) else {
        return Vec::new();
    };
    let codes = codes(source);
    if codes.is_empty() {
        let message = "no problem codes found; define them in `fn code` or in fields `code: \"…\"`";
        return vec![Finding::new(SOURCE, 1, message)];
    }
    let mut findings = Vec::new();
    for (code, line) in &codes {
        let page = format!("{PAGES}{code}.md");
        if !tree.paths.contains(&page) {
            let message = format!("the problem `{code}` has no page; write {page}");
            findings.push(Finding::new(SOURCE, *line, message));
        }
    }
    for page in tree.ending(".md") {
        let code = page
            .path
            .strip_prefix(PAGES)
            .map(|name| name.trim_end_matches(".md"));
        if let Some(code) = code.filter(|code| !codes.contains_key(*code)) {
            let message = format!(
                "no problem has the code `{code}`; delete the page, or add the code to {SOURCE}"
            );
            findings.push(Finding::new(&page.path, 1, message));
        }
    }
    findings
}

/// The codes and their lines: string literals in the body of `fn code`, and fields `code: "…"`.
fn codes(source: &File) -> BTreeMap<String, usize> {
    let mut codes = BTreeMap::new();
    let mut end_of_fn: Option<String> = None;
    for (at, line) in source.code() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.contains("fn code(") {
            end_of_fn = Some(format!("{indent}}}"));
        }
        let in_fn = literals(line).filter(|_| end_of_fn.is_some());
        let named = in_fn.chain(fields(line)).filter(|text| is_code(text));
        codes.extend(named.map(|code| (code.to_string(), at)));
        if end_of_fn.as_deref() == Some(line.trim_end()) {
            end_of_fn = None;
        }
    }
    codes
}

/// The string literals of a line.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// The values of the fields `code: "…"` in a line.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    let behind = line.split("code: \"").skip(1);
    behind.filter_map(|rest| rest.split('"').next())
}

/// Codes are lowercase letters and hyphens.
fn is_code(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}
