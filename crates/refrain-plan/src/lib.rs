//! Classifies the operations of an API description, and proposes which of them need idempotency keys.
//!
//! [`plan`] classifies every operation of a document, with a confidence and readable evidence.
//! [`render`] writes a plan as a policy, as client documentation and as tests.
//! A plan is a proposal: uncertain operations are marked, so that a person decides.
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
pub use classify::{Classification, Evidence};

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

// rustfmt would put each word on a line of its own; related words stay together on one line.
#[rustfmt::skip]
mod words;

/// Options of [`plan`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Base path of all operations; replaces the base path that the document declares.
    pub base: Option<String>,
}

/// Result of planning an API: its classified operations and consumers.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Title of the API.
    pub title: String,
    /// Base path of all operations.
    pub base: String,
    /// All operations, in the document's order.
    pub operations: Vec<Planned>,
    /// All channels that the application consumes, in the document's order.
    pub consumers: Vec<Consumer>,
    /// References in the document that could not be resolved, and other problems with reading it.
    pub troubles: Vec<String>,
}

/// One operation with its class and proposed keys.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Planned {
    /// HTTP method, in upper case.
    pub method: String,
    /// The path as the document writes it; for a webhook its name, for a callback its expression.
    pub path: String,
    /// Pattern that the policy matches the operation with.
    ///
    /// `None` if an earlier operation has the same pattern, the pattern is invalid, or the API sends the request.
    pub pattern: Option<String>,
    /// Whether clients send the request to the API; false for webhooks and callbacks, which the API sends.
    pub is_served: bool,
    /// `operationId` of the document.
    pub id: Option<String>,
    /// `summary` of the document.
    pub summary: Option<String>,
    /// Class of the operation, with the evidence.
    pub verdict: Classification,
    /// Where the idempotency key comes from.
    pub keys: Keys,
}

impl Planned {
    /// Whether the policy has an entry for the operation. Reads have one only for POST and PATCH,
    /// which Refrain guards by default.
    #[must_use]
    pub fn is_in_policy(&self) -> bool {
        let is_default = matches!(self.method.as_str(), "POST" | "PATCH");
        self.pattern.is_some() && (self.verdict.class != Class::Read || is_default)
    }

    /// Method and path: `POST /payments`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Classifies every operation of a document and proposes its keys.
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

/// Pattern that matches an operation, unless an earlier operation already has an equivalent one.
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

/// Converts a path segment to pattern syntax: `{user-id}` becomes `{user_id}`, `{task}:complete` becomes `{task}`.
/// A suffix after the braces is part of the segment that the parameter matches.
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
