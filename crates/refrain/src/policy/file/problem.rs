//! Errors in `refrain.toml`: position, message and fix.

use std::{fmt, ops::Range};

use crate::policy::address::{Address, quoted_bytes, redacted};

/// Maximum number of problems that are printed.
const PROBLEMS_MAX: usize = 20;
/// Maximum number of problems that are collected.
pub(super) const FOUND_MAX: usize = 200;
/// Maximum number of characters of a source line that are printed.
const EXCERPT_CHARS_MAX: usize = 100;
/// Maximum number of characters printed before the position of the problem.
const EXCERPT_LEAD: usize = 60;

/// Errors in `refrain.toml`. Prints each problem with its position, its source line and a fix.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
    /// Number of problems that were not kept.
    left_off: usize,
}

/// One error in `refrain.toml`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// Line number, from 1; `None` if the problem concerns the whole file.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    /// Error message.
    pub message: String,
    /// Suggested fix; may be empty.
    pub help: String,
    /// The source line, and a line of carets below it.
    #[serde(skip)]
    excerpt: Option<(String, String)>,
}

impl ConfigError {
    /// Creates an error about the whole file.
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

    /// Returns the name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the problems in the order of the file.
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

/// Collects problems while a file is resolved.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a str,
    name: &'a str,
    /// Byte ranges, messages and fixes.
    found: Vec<(Range<usize>, String, String)>,
    /// Whether the secrets of the current part are read.
    pub(super) reads_secrets: bool,
    /// Whether every client of the proxy has a verified certificate, so that operations may depend on it.
    pub(super) has_client_certificates: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a str, name: &'a str) -> Self {
        Self {
            text,
            name,
            found: Vec::new(),
            reads_secrets: true,
            has_client_certificates: false,
        }
    }

    /// Adds a problem. A problem of `[policy]` that affects many operations is added once.
    pub(super) fn push(
        &mut self,
        at: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        // The parser's messages quote values, and a value may be an address with a password.
        let (message, help) = (redacted(&message.into()), help.into());
        let is_known = self
            .found
            .iter()
            .any(|(place, text, _)| *place == at && *text == message);
        if !is_known && self.found.len() < FOUND_MAX {
            self.found.push((at, message, help));
        }
    }

    /// Adds an error whose message separates the fix with a semicolon.
    pub(super) fn push_error(&mut self, at: Range<usize>, error: &crate::Error) {
        let text = error.to_string();
        let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
        self.push(at, message, help);
    }

    /// Whether a problem that overlaps this range was already added.
    pub(super) fn has(&self, at: &Range<usize>) -> bool {
        let overlaps = |place: &Range<usize>| place.start < at.end && at.start < place.end;
        self.found.iter().any(|(place, ..)| overlaps(place))
    }

    /// Line number of this byte offset, from 1.
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

/// The part of a line around `column`, with secrets redacted, and a line of carets below it.
fn excerpt(line: &str, column: usize, width: usize) -> (String, String) {
    // Redacted secrets are shorter than the originals, so the carets move.
    let chars = |count: usize| line.chars().take(count).collect::<String>();
    let printed = |count: usize| shown_line(&chars(count)).chars().count();
    let (column, width) = (
        printed(column),
        printed(column + width).saturating_sub(printed(column)),
    );
    let line = shown_line(line);
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

/// Settings whose values are addresses.
const ADDRESSES: [&str; 7] = [
    "store", "upstream", "source", "deliver", "receipts", "outbox", "to",
];

/// Redacts the secrets of a line: passwords in addresses, and values of settings that refer to secrets.
fn shown_line(line: &str) -> String {
    let mut shown = String::new();
    let mut setting = "";
    let mut rest = line;
    loop {
        let (plain, quoted) = rest.split_at(rest.find(['"', '\'']).unwrap_or(rest.len()));
        shown.push_str(&unquoted(plain));
        if let Some((before, _)) = plain.rsplit_once('=') {
            let before = before.trim_end().rsplit([' ', '\t', ',', '{']).next();
            setting = before.unwrap_or_default();
        }
        let Some(quote) = quoted.chars().next() else {
            return shown;
        };
        let inside = &quoted[1..];
        let end = quoted_bytes(inside, quote);
        shown.push(quote);
        shown.push_str(&value(setting, &inside[..end]));
        if end == inside.len() {
            return shown;
        }
        shown.push(quote);
        rest = &inside[end + 1..];
    }
}

/// Redacts text outside quotes. An address without quotes extends to the end of the line.
fn unquoted(text: &str) -> String {
    let Some(at) = text.find("://") else {
        return text.into();
    };
    let start = text[..at].rfind([' ', '\t', '=', '[', ',']);
    let (before, address) = text.split_at(start.map_or(0, |at| at + 1));
    format!("{before}{}", Address::new(address))
}

/// Redacts the value of a setting.
fn value(setting: &str, text: &str) -> String {
    let names_secret =
        setting.starts_with("secret") || setting.ends_with("_env") || setting.ends_with("_file");
    let is_hidden = text.starts_with("whsec_")
        || text.contains("password=")
        || (names_secret && !is_reference(text));
    match (
        is_hidden,
        text.contains("://") || ADDRESSES.contains(&setting),
    ) {
        (true, _) => "***".into(),
        (false, true) => Address::new(text).to_string(),
        (false, false) => text.into(),
    }
}

/// Whether the text is a variable name or a path, and so not itself a secret.
fn is_reference(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.chars().all(is_name) || (text.contains('/') && !text.contains("://"))
}
