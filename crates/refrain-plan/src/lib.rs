//! Reads an API's description and decides which of its operations need keys, and why.
//!
//! [`plan`] classifies every operation of a document, with evidence that can be read and a confidence;
//! what becomes of that (policy, pages, tests) is written by renderers apart.
//! It is a proposal: what it is not sure of it says so, and a person decides.

mod classify;
pub use classify::{Evidence, Verdict};

mod facts;

mod surroundings;

mod text;

// Lists of a word a line would hide what is next to what.
#[rustfmt::skip]
mod words;

use refrain_openapi::{Document, Kind};
use serde::Serialize;

/// How a document is planned.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The path that all paths stand behind, in place of what the document says.
    pub base: Option<String>,
}

/// What was decided about an API.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// What the API is called.
    pub title: String,
    /// Every operation, in the document's order.
    pub operations: Vec<Planned>,
}

/// One operation, and what was decided about it.
#[derive(Debug, Serialize)]
pub struct Planned {
    /// In capitals.
    pub method: String,
    /// The path as the document writes it.
    pub path: String,
    /// What it is, and why.
    pub verdict: Verdict,
    #[serde(skip)]
    kind: Kind,
}

/// Decides about every operation of a document.
#[must_use]
pub fn plan(document: &Document, _options: &Options) -> Plan {
    let operations = document.operations();
    let around = surroundings::Surroundings::of(&operations);
    let planned = operations.iter().map(|operation| {
        let facts = facts::Facts::of(operation, &around);
        Planned {
            method: operation.method().into(),
            path: operation.path().into(),
            verdict: classify::classify(&facts),
            kind: operation.kind(),
        }
    });
    Plan {
        title: document.title().unwrap_or("the API").into(),
        operations: planned.collect(),
    }
}
