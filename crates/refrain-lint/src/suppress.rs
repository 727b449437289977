//! `refrain-lint: allow(rule, …) reason`, in a comment on the line or above it.

use crate::{file::File, item::Role};

/// One such comment.
#[derive(Debug)]
pub(crate) struct Allow {
    rules: Vec<String>,
    /// The lines that it speaks of.
    lines: std::ops::RangeInclusive<usize>,
    /// Its own line.
    pub(crate) line: usize,
    pub(crate) has_reason: bool,
}

const MARK: &str = "refrain-lint:";

/// The comments of a file that allow something.
pub(crate) fn allows(file: &File) -> Vec<Allow> {
    if !file.text.contains(MARK) {
        return Vec::new();
    }
    file.of(Role::Comment)
        .filter_map(|at| allow(file, at))
        .collect()
}

fn allow(file: &File, at: usize) -> Option<Allow> {
    let span = &file.items[at].span;
    let text = &file.text[span.clone()];
    let (_, rest) = text.split_once(MARK)?;
    let rest = rest.trim_start().strip_prefix("allow(")?;
    let (rules, reason) = rest.split_once(')')?;
    let line = file.text[..span.start].matches('\n').count() + 1;
    let end = file.text[..span.end].trim_end().matches('\n').count() + 1;
    Some(Allow {
        rules: rules
            .split(',')
            .map(|rule| rule.trim().to_string())
            .collect(),
        // Comments may follow each other; the first line of code after them is meant.
        lines: line..=next_code_line(&file.text, end),
        line,
        has_reason: reason.trim_matches(|c: char| !c.is_alphanumeric()).len() > 2,
    })
}

fn next_code_line(text: &str, after: usize) -> usize {
    let rest = text.lines().enumerate().skip(after);
    let is_comment = |line: &str| {
        let line = line.trim_start();
        line.is_empty()
            || line.starts_with(['#', '*']) && !line.starts_with("#[")
            || line.starts_with("//")
    };
    let next = rest.into_iter().find(|(_, line)| !is_comment(line));
    next.map_or(after, |(at, _)| at + 1)
}

impl Allow {
    /// Whether it allows a rule at a line.
    pub(crate) fn covers(&self, rule: &str, line: usize) -> bool {
        self.has_reason
            && self.lines.contains(&line)
            && self.rules.iter().any(|it| it == rule || it == "all")
    }
}
