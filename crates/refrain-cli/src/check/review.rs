//! The review: what a careful reviewer asks about duplicates, answered from the actual state.
//!
//! Each question has a function that looks at the [`Facts`] and answers with lines: done, open or not applicable.

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
mod stored;
mod tested;
mod written;

use described::Described;
use tested::Tested;

/// The form in which a review is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    /// Markdown
    Md,
    /// One page that needs nothing else
    Html,
    /// For a program
    Json,
}

/// What a line comes to.
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
    /// Whether the review fails while it is open.
    required: bool,
    why: String,
    /// File and line, or what else it is about.
    place: String,
    /// What to do about it, where it is open.
    fix: Option<String>,
}

/// A question, and what was found.
#[derive(Debug, Serialize)]
struct Item {
    id: &'static str,
    title: &'static str,
    lines: Vec<Line>,
}

/// The whole review.
#[derive(Debug, Serialize)]
pub(super) struct Review {
    /// Of this form; 1.
    version: u32,
    file: String,
    items: Vec<Item>,
}

/// What there is to look at.
struct Facts {
    file: PathBuf,
    /// The file as it was typed, to find places in it.
    text: String,
    settings: Settings,
    tested: Tested,
    described: Option<Described>,
}

/// A question.
type Question = (&'static str, &'static str, fn(&Facts) -> Vec<Line>);

const QUESTIONS: [Question; 10] = [
    (
        "classified",
        "Mutating paths are classified",
        operations::classified,
    ),
    (
        "covered",
        "The API's own description is covered",
        described::covered,
    ),
    (
        "keys",
        "Every effect has a key that does not change between attempts",
        operations::keys,
    ),
    (
        "scope",
        "Keys have a scope, and replays a reader",
        operations::scope,
    ),
    (
        "storage",
        "The store keeps what it promised",
        stored::storage,
    ),
    (
        "retention",
        "Outcomes are kept for as long as retries can come",
        stored::retention,
    ),
    (
        "conflicts",
        "Another request under the same key is refused",
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
    /// Looks at everything.
    ///
    /// # Errors
    /// What is wrong with one of the other files.
    pub(super) fn of(
        file: &Path,
        settings: Settings,
        verify: &[PathBuf],
        openapi: Option<&Path>,
    ) -> Result<Self, String> {
        let facts = Facts {
            text: fs::read_to_string(file).unwrap_or_default(),
            tested: Tested::find(file, verify)?,
            described: openapi.map(Described::read).transpose()?,
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

    /// Whether something required is open.
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

    /// Open, and left to the reader's judgement.
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

impl Facts {
    /// File and line of what has this name in the file.
    fn place(&self, name: &str) -> String {
        let quoted = [format!("\"{name}\""), format!("'{name}'")];
        let has = |line: &str| quoted.iter().any(|it| line.contains(it.as_str()));
        let line = self.text.lines().position(has).map(|at| at + 1);
        let file = self.file.display();
        line.map_or(file.to_string(), |line| format!("{file}:{line}"))
    }

    fn whole(&self) -> String {
        self.file.display().to_string()
    }

    /// Operations that run only once, as far as the file can say.
    fn guarded(&self) -> impl Iterator<Item = &Operation> {
        self.settings.policy.operations().filter(|it| it.guarded)
    }

    /// Whether this is what the file says of every POST or PATCH, without naming any.
    fn is_catch_all(&self, operation: &Operation) -> bool {
        operation.class.is_none()
            && operation.pattern.to_string().ends_with(" *")
            && !self.text.contains(&format!("\"{}\"", operation.name))
    }
}

/// The findings, or that there is nothing to say against it.
fn or_done(open: Vec<Line>, place: String, why: impl Into<String>) -> Vec<Line> {
    match open.iter().any(|line| line.required) {
        true => open,
        false => std::iter::once(Line::done(place, why))
            .chain(open)
            .collect(),
    }
}
