//! Suppression comments: `refrain-lint: allow(rule, …) reason`, on the same line or above it.

use crate::{file::File, item::Role};

/// One suppression comment.
#[derive(Debug)]
pub(crate) struct Allow {
    pub(crate) rules: Vec<String>,
    /// Lines that the comment applies to.
    lines: std::ops::RangeInclusive<usize>,
    /// Line of the comment itself.
    pub(crate) line: usize,
    pub(crate) has_reason: bool,
}

const MARK: &str = "refrain-lint:";
/// Name that stands for every rule.
pub(crate) const ALL: &str = "all";

/// All suppression comments of a file.
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
    let start = file.text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let is_behind_code = !file.text[start..span.start].trim().is_empty();
    let last = match is_behind_code {
        true => line,
        false => statement_end(file, next_code_line(&file.text, end)),
    };
    Some(Allow {
        rules: rules
            .split(',')
            .map(|rule| rule.trim().to_string())
            .collect(),
        // Further comments may follow; the range ends with the first statement after them.
        lines: line..=last,
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

/// Last line of the calls, assignments and returns that start on a line and contain no function.
fn statement_end(file: &File, line: usize) -> usize {
    let line_start = |at: usize| file.text[..at].matches('\n').count() + 1;
    let begin: usize = file
        .text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let end = file.text[begin..]
        .find('\n')
        .map_or(file.text.len(), |at| begin + at);
    let begins = file.items.iter().filter(|item| {
        begin <= item.at()
            && item.at() < end
            && matches!(item.role, Role::Call | Role::Assign | Role::Return)
    });
    let whole = begins.filter(|item| {
        let inside = file.within(&item.span);
        !inside
            .into_iter()
            .any(|at| file.items[at].role == Role::Function)
    });
    whole
        .map(|item| line_start(item.span.end))
        .max()
        .unwrap_or(line)
        .max(line)
}

impl Allow {
    /// Whether the comment allows a rule at a line.
    pub(crate) fn covers(&self, rule: &str, line: usize) -> bool {
        self.has_reason
            && self.lines.contains(&line)
            && self.rules.iter().any(|it| it == rule || it == ALL)
    }
}
