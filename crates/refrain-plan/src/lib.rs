//! Reads an API's description and decides which of its operations need keys, and why.
//!
//! [`plan`] classifies every operation of a document, with evidence that can be read and a confidence;
//! what becomes of that (policy, pages, tests) is written by [`render`].
//! It is a proposal: what it is not sure of it says so, and a person decides.
//!
//! ```
//! use refrain_openapi::Document;
//! use refrain_plan::{Options, plan};
//! let text = r#"{"openapi": "3.1.0", "paths": {"/payments": {"post": {"requestBody": {"content": {"application/json":
//!     {"schema": {"properties": {"amount": {"type": "integer"}, "iban": {"type": "string"}}}}}}}}}}"#;
//! let document = Document::parse(text.as_bytes(), "bank.json")?;
//! let plan = plan(&document, &Options::default());
//! assert_eq!(plan.operations[0].verdict.class, refrain::policy::Class::Monetary);
//! # Ok::<(), refrain_openapi::ReadError>(())
//! ```

use std::collections::HashSet;

use refrain::policy::{Class, Pattern};
use refrain_openapi::{Document, Kind, Operation};
use serde::Serialize;

mod classify;
pub use classify::{Evidence, Verdict};

mod consumer;
pub use consumer::Consumer;

mod envelope;

mod facts;

mod keys;
mod members;
pub use keys::{Keys, NaturalKey};

pub mod render;

mod segments;

mod surroundings;

mod text;

mod tongue;

mod verbs;

// Lists of a word a line would hide what is next to what.
#[rustfmt::skip]
mod words;

/// How a document is planned.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The path that all paths stand behind, in place of what the document says.
    pub base: Option<String>,
}

/// What was decided about an API.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// What the API is called.
    pub title: String,
    /// The path that all paths stand behind.
    pub base: String,
    /// Every operation, in the document's order.
    pub operations: Vec<Planned>,
    /// Every channel that the application consumes, in the document's order.
    pub consumers: Vec<Consumer>,
    /// What could not be followed in the document.
    pub troubles: Vec<String>,
}

/// One operation, and what was decided about it.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Planned {
    /// In capitals.
    pub method: String,
    /// The path as the document writes it; a webhook's name, or a callback's expression.
    pub path: String,
    /// What the policy matches it with; none where no pattern tells it from another, or it is not sent to the API.
    pub pattern: Option<String>,
    /// Whether it is sent to the API, rather than by it.
    pub is_served: bool,
    /// `operationId`.
    pub id: Option<String>,
    /// What it is for.
    pub summary: Option<String>,
    /// What it is, and why.
    pub verdict: Verdict,
    /// Where its key comes from.
    pub keys: Keys,
}

impl Planned {
    /// Whether the policy needs to name it. What is read by GET is not guarded anyway.
    #[must_use]
    pub fn is_in_policy(&self) -> bool {
        let is_default = matches!(self.method.as_str(), "POST" | "PATCH");
        self.pattern.is_some() && (self.verdict.class != Class::Read || is_default)
    }

    /// Method and path, as people name it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Decides about every operation of a document.
#[must_use]
pub fn plan(document: &Document, options: &Options) -> Plan {
    let operations = document.operations();
    let around = surroundings::Surroundings::of(&operations);
    let base = options.base.clone().unwrap_or_else(|| document.base_path());
    let mut taken = HashSet::new();
    let mut known = members::Known::default();
    let mut facts: Vec<_> = operations
        .iter()
        .map(|operation| facts::Facts::of(operation, &around, &mut known))
        .collect();
    let verdicts = classify::all(&mut facts);
    let planned = operations
        .iter()
        .zip(verdicts)
        .map(|(operation, verdict)| Planned {
            method: operation.method().into(),
            path: operation.path().into(),
            pattern: pattern(operation, &base, &mut taken),
            is_served: operation.kind() == Kind::Path,
            id: operation.id().map(String::from),
            summary: operation.summary().map(String::from),
            keys: Keys::of(operation, verdict.class),
            verdict,
        });
    Plan {
        title: document.title().unwrap_or("this API").into(),
        operations: planned.collect(),
        consumers: consumer::all(document),
        troubles: document
            .troubles()
            .iter()
            .map(ToString::to_string)
            .collect(),
        base,
    }
}

/// The pattern that matches an operation, unless an earlier one matches the same requests.
fn pattern(operation: &Operation<'_>, base: &str, taken: &mut HashSet<String>) -> Option<String> {
    if operation.kind() != Kind::Path {
        return None;
    }
    let segments: Vec<_> = operation.path().split('/').map(segment).collect();
    let path = format!("{base}{}", segments.join("/"));
    let text = format!("{} {path}", operation.method());
    text.parse::<Pattern>().ok()?;
    let is_name = |it: &&str| it.starts_with('{');
    let shape: Vec<_> = text
        .split('/')
        .map(|it| if is_name(&it) { "{}" } else { it })
        .collect();
    taken.insert(shape.join("/")).then_some(text)
}

/// `{user-id}` and `{task}:complete` become names that a pattern takes: what is behind the name is part of the segment.
fn segment(segment: &str) -> String {
    match (segment.find('{'), segment.find('}')) {
        (Some(0), Some(end)) => {
            let is_fit = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
            let name: String = segment[1..end]
                .chars()
                .map(|char| if is_fit(&char) { char } else { '_' })
                .collect();
            format!("{{{name}}}")
        }
        _ => segment.into(),
    }
}
