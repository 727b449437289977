//! What is wrong with a file: where, what, and what to do about it.

use std::{fmt, ops::Range};

use super::redacted;

/// How many problems are told at once.
const PROBLEMS_MAX: usize = 20;
/// How many are counted.
pub(super) const FOUND_MAX: usize = 200;
/// How much of a source line is shown.
const EXCERPT_CHARS_MAX: usize = 100;
/// How much of it stands before the place that is meant.
const EXCERPT_LEAD: usize = 60;

/// What is wrong with a file. Prints every problem with its place, its line and a fix.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
    /// How many more there were.
    left_off: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// The line, from 1; `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// The column, in characters from 1.
    pub column: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
    /// The source line, and a line of carets below it.
    #[serde(skip)]
    excerpt: Option<(String, String)>,
}

impl ConfigError {
    /// A problem with the file as a whole.
    pub(super) fn whole(file: &str, message: impl Into<String>, help: &str) -> Self {
        let (message, help) = (message.into(), help.into());
        let problem = Problem {
            line: None,
            column: None,
            message,
            help,
            excerpt: None,
        };
        Self {
            file: file.into(),
            problems: vec![problem],
            left_off: 0,
        }
    }

    /// What is wrong, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{}:", self.file)?;
            problem.fmt(f)?;
        }
        match self.left_off {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)?;
        if let (Some(line), Some((source, carets))) = (self.line, &self.excerpt) {
            let margin = " ".repeat(line.to_string().len());
            write!(f, "\n  {line} | {source}\n  {margin} | {carets}")?;
        }
        match self.help.as_str() {
            "" => Ok(()),
            help => write!(f, "\n  fix: {help}"),
        }
    }
}

/// Gathers problems while a file is resolved.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a str,
    name: &'a str,
    /// Byte ranges, messages and fixes.
    found: Vec<(Range<usize>, String, String)>,
}

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a str, name: &'a str) -> Self {
        Self {
            text,
            name,
            found: Vec::new(),
        }
    }

    /// Notes a problem. What `[policy]` gets wrong for many operations is told once.
    pub(super) fn push(
        &mut self,
        at: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (message, help) = (message.into(), help.into());
        let is_known = self
            .found
            .iter()
            .any(|(place, text, _)| *place == at && *text == message);
        if !is_known && self.found.len() < FOUND_MAX {
            self.found.push((at, message, help));
        }
    }

    /// Notes a problem whose message has the fix behind a semicolon.
    pub(super) fn push_error(&mut self, at: Range<usize>, error: &crate::Error) {
        let text = error.to_string();
        let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
        self.push(at, message, help);
    }

    /// Whether something was told about this place already.
    pub(super) fn has(&self, at: &Range<usize>) -> bool {
        let overlaps = |place: &Range<usize>| place.start < at.end && at.start < place.end;
        self.found.iter().any(|(place, ..)| overlaps(place))
    }

    /// The line that this byte is on, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.before(at).matches('\n').count() + 1
    }

    pub(super) fn finish(mut self) -> Option<ConfigError> {
        self.found.sort_by_key(|(at, ..)| at.start);
        let left_off = self.found.len().saturating_sub(PROBLEMS_MAX);
        let first = self.found.iter().take(PROBLEMS_MAX);
        let problems: Vec<_> = first
            .map(|(at, message, help)| self.problem(at, message, help))
            .collect();
        let file = self.name.into();
        (!problems.is_empty()).then_some(ConfigError {
            file,
            problems,
            left_off,
        })
    }

    fn before(&self, at: usize) -> &'a str {
        let at = (0..=at.min(self.text.len()))
            .rev()
            .find(|at| self.text.is_char_boundary(*at));
        &self.text[..at.unwrap_or(0)]
    }

    fn problem(&self, at: &Range<usize>, message: &str, help: &str) -> Problem {
        let before = self.before(at.start);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let column = before[line_start..].chars().count();
        let marked = self.before(at.end).get(before.len()..).unwrap_or_default();
        let width = marked.lines().next().unwrap_or_default().chars().count();
        Problem {
            line: Some(self.line(at.start)),
            column: Some(column + 1),
            message: message.into(),
            help: help.into(),
            excerpt: Some(excerpt(line, column, width)),
        }
    }
}

/// The part of a line around `column`, fit to be shown, and carets below it.
fn excerpt(line: &str, column: usize, width: usize) -> (String, String) {
    let line = hushed(&redacted(line));
    let column = column.min(line.chars().count());
    let start = column.saturating_sub(EXCERPT_LEAD);
    let shown: String = line
        .chars()
        .skip(start)
        .take(EXCERPT_CHARS_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let lead = column - start;
    let room = shown.chars().count().saturating_sub(lead);
    let carets = "^".repeat(width.clamp(1, room.max(1)));
    (shown, format!("{}{carets}", " ".repeat(lead)))
}

/// The same line without what may be a secret: the values of settings that are called so, but for names of variables and paths.
fn hushed(line: &str) -> String {
    let mut shown = String::new();
    let mut is_secret = false;
    for (at, text) in line.split(['"', '\'']).enumerate() {
        if at > 0 {
            shown.push('"');
        }
        let is_quoted = at % 2 == 1;
        if !is_quoted && let Some((before, _)) = text.rsplit_once('=') {
            let setting = before.trim_end().rsplit([' ', '\t', ',', '{']).next();
            is_secret = setting.is_some_and(|name| name.starts_with("secret"));
        }
        let is_hushed = text.starts_with("whsec_") || (is_secret && !is_reference(text));
        match is_quoted && is_hushed {
            true => shown.push_str("***"),
            false => shown.push_str(text),
        }
    }
    shown
}

/// Whether this names a secret, and is none.
fn is_reference(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.chars().all(is_name) || text.contains('/')
}
