//! The review: a reviewer's questions about duplicates, answered from the files of the project.
//!
//! Each question has a function that inspects the [`ReviewInput`] and returns lines: done, open or not applicable.

use std::{
    fs,
    path::{Path, PathBuf},
};

use refrain::policy::{Operation, Settings};
use serde::Serialize;

mod consumers;
mod described;
mod money;
mod operations;
mod page;
mod stored;
mod tested;
mod written;

use described::Described;
use refrain_plan::Consumer;
use tested::Tested;

use super::Form;
use crate::{find::FoundFiles, marks::Marks};

/// The result of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Done,
    Open,
    NotApplicable,
}

/// One line of the review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    state: State,
    /// Whether the review fails while the line is open.
    required: bool,
    why: String,
    /// File and line, or the other subject of the line.
    place: String,
    /// How to fix it, if it is open.
    fix: Option<String>,
}

/// A question, with its findings.
#[derive(Debug, Serialize)]
struct Item {
    id: &'static str,
    title: &'static str,
    lines: Vec<Line>,
}

/// The whole review.
#[derive(Debug, Serialize)]
pub(super) struct Review {
    /// The version of this format; 1.
    version: u32,
    file: String,
    items: Vec<Item>,
}

/// The inputs of a review.
struct ReviewInput {
    file: PathBuf,
    /// The text of the file, to find line numbers in.
    text: String,
    /// The comments that `refrain plan` left in it.
    marks: Marks,
    settings: Settings,
    tested: Tested,
    described: Described,
    /// The channels that the project consumes, each with the name of its description.
    consumed: Vec<(String, Consumer)>,
}

/// A question: its id, its title, and the function that answers it.
type Question = (&'static str, &'static str, fn(&ReviewInput) -> Vec<Line>);

const QUESTIONS: [Question; 11] = [
    (
        "classified",
        "Mutating paths are classified",
        operations::classified,
    ),
    (
        "covered",
        "The file covers the API description",
        described::covered,
    ),
    (
        "keys",
        "Every effect has a key that does not change between attempts",
        operations::keys,
    ),
    (
        "scope",
        "Keys have a scope, and replays go only to its callers",
        operations::scope,
    ),
    (
        "documented",
        "Clients have a page about safe retries",
        page::documented,
    ),
    (
        "storage",
        "The store keeps acknowledged writes",
        stored::storage,
    ),
    (
        "retention",
        "Outcomes are kept for as long as clients retry",
        stored::retention,
    ),
    (
        "conflicts",
        "A different request with the same key is refused",
        operations::conflicts,
    ),
    (
        "consumers",
        "HTTP and consumers are aligned",
        consumers::aligned,
    ),
    (
        "tests",
        "Duplicate-delivery tests are present and pass",
        tested::tests,
    ),
    (
        "financial",
        "Financial flows have longer retention and audit",
        money::financial,
    ),
];

impl Review {
    /// Reads all inputs and answers every question.
    ///
    /// # Errors
    /// A message about another input file that is invalid.
    pub(super) fn of(
        file: &Path,
        settings: Settings,
        verify: &[PathBuf],
        openapi: Option<&Path>,
    ) -> Result<Self, String> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let found = FoundFiles::in_folder(folder_of(file));
        let facts = ReviewInput {
            marks: Marks::of(&text),
            text,
            tested: Tested::find(file, verify)?,
            described: Described::find(openapi, &found, &settings)?,
            consumed: described::consumers(&found),
            file: file.into(),
            settings,
        };
        let items = QUESTIONS.map(|(id, title, ask)| Item {
            id,
            title,
            lines: ask(&facts),
        });
        Ok(Self {
            version: 1,
            file: file.display().to_string(),
            items: items.into(),
        })
    }

    /// Whether a required line is open.
    pub(super) fn is_open(&self) -> bool {
        let mut lines = self.items.iter().flat_map(|item| &item.lines);
        lines.any(|line| line.required && line.state == State::Open)
    }

    /// The review in this form.
    pub(super) fn written(&self, form: Form) -> String {
        match form {
            Form::Md => written::markdown(self),
            Form::Html => written::html(self),
            Form::Json => written::json(self),
        }
    }
}

impl Line {
    fn done(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            state: State::Done,
            required: true,
            why: why.into(),
            place: place.into(),
            fix: None,
        }
    }

    fn open(place: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            state: State::Open,
            fix: Some(fix.into()),
            ..Self::done(place, why)
        }
    }

    /// An open line that does not fail the review.
    fn advice(place: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            required: false,
            ..Self::open(place, why, fix)
        }
    }

    fn not_applicable(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            state: State::NotApplicable,
            required: false,
            ..Self::done(place, why)
        }
    }
}

impl ReviewInput {
    /// File and line of the first quoted use of this name, or the file alone.
    fn location(&self, name: &str) -> String {
        let quoted = [format!("\"{name}\""), format!("'{name}'")];
        let has = |line: &str| quoted.iter().any(|it| line.contains(it.as_str()));
        let line = self.text.lines().position(has).map(|at| at + 1);
        let file = self.file.display();
        line.map_or(file.to_string(), |line| format!("{file}:{line}"))
    }

    /// Whether this host and port are the proxy's own.
    fn is_proxy(&self, host: &str) -> bool {
        let listen = self.settings.listen;
        let is_any = listen.ip().is_unspecified() && host.ends_with(&format!(":{}", listen.port()));
        is_any || same_host(host, &listen.to_string())
    }

    /// Whether this host and port are the upstream's.
    fn is_upstream(&self, host: &str) -> bool {
        let upstream = self.settings.upstream.as_deref();
        upstream.is_some_and(|it| same_host(host, host_and_path(it).0))
    }

    fn whole(&self) -> String {
        self.file.display().to_string()
    }

    /// Operations that the policy guards.
    fn guarded(&self) -> impl Iterator<Item = &Operation> {
        self.settings.policy.operations().filter(|it| it.guarded)
    }

    /// Whether this is the default operation for every POST or PATCH, which the file does not name.
    fn is_catch_all(&self, operation: &Operation) -> bool {
        operation.class.is_none()
            && operation.pattern.to_string().ends_with(" *")
            && !self.text.contains(&format!("\"{}\"", operation.name))
    }
}

fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Splits an address into `host:port` and the rest, path and query.
fn host_and_path(address: &str) -> (&str, &str) {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()))
}

/// Whether two hosts are equal, with `localhost` as a name of 127.0.0.1.
fn same_host(one: &str, other: &str) -> bool {
    let plain = |host: &str| host.replacen("localhost:", "127.0.0.1:", 1);
    plain(one) == plain(other)
}

/// The most names listed in one line.
const NAMED_MAX: usize = 4;

/// Groups names by their value: `30d: POST /a, POST /b; 1d: POST /c`.
fn grouped(pairs: impl Iterator<Item = (String, String)>) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for (what, who) in pairs {
        match groups.iter_mut().find(|(it, _)| *it == what) {
            Some((_, names)) => names.push(who),
            None => groups.push((what, vec![who])),
        }
    }
    let told = groups
        .iter()
        .map(|(what, names)| format!("{what}: {}", listed(names)));
    told.collect::<Vec<_>>().join("; ")
}

/// A few names in full, or the first of many with the number of the others.
fn listed(names: &[String]) -> String {
    match names.len().saturating_sub(NAMED_MAX) {
        0 | 1 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMED_MAX].join(", ")),
    }
}

/// One line of advice for each of a few operations, or a single line for many.
fn folded(facts: &ReviewInput, names: &[String], one: &str, many: &str, fix: &str) -> Vec<Line> {
    match names.len() > NAMED_MAX {
        true => {
            let why = format!("{} operations {many}: {}", names.len(), listed(names));
            vec![Line::advice(facts.whole(), why, fix)]
        }
        false => names
            .iter()
            .map(|name| Line::advice(facts.location(name), format!("{name} {one}"), fix))
            .collect(),
    }
}

/// The findings, preceded by a done line unless a required one is open.
fn or_done(open: Vec<Line>, place: String, why: impl Into<String>) -> Vec<Line> {
    match open.iter().any(|line| line.required) {
        true => open,
        false => std::iter::once(Line::done(place, why))
            .chain(open)
            .collect(),
    }
}
