//! The API's own description: which of its paths change something, and whether the file names them.

use std::path::Path;

use refrain::{Policy, policy::Operation};
use refrain_openapi::{Document, Kind};

use super::{Facts, Line, or_done};

/// The most paths that are named one by one.
const TOLD_MAX: usize = 50;
const MUTATING: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// What a description says.
pub(super) struct Described {
    name: String,
    /// Method and path, in the order of the description.
    mutating: Vec<(String, String)>,
}

impl Described {
    /// Reads OpenAPI 3 or Swagger 2.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let name = file.display().to_string();
        let document = Document::read(file).map_err(|error| error.to_string())?;
        if document.is_async() {
            return Err(format!(
                "{name}: describes messages, not requests; name an OpenAPI or Swagger document"
            ));
        }
        let base = document.base_path();
        let operations = document.operations();
        let mutating = operations
            .iter()
            .filter(|it| it.kind() == Kind::Path && MUTATING.contains(&it.method()))
            .map(|it| (it.method().to_owned(), format!("{base}{}", it.path())));
        Ok(Self {
            mutating: mutating.collect(),
            name,
        })
    }
}

pub(super) fn covered(facts: &Facts) -> Vec<Line> {
    let Some(described) = &facts.described else {
        return vec![Line::advice(
            facts.whole(),
            "no description of the API was given: paths that the file does not name are not seen",
            "name one with --openapi FILE",
        )];
    };
    let named = match everything(facts) {
        Ok(named) => named,
        Err(why) => return vec![Line::advice(facts.whole(), why, "compare by hand")],
    };
    let is_named = |method: &str, path: &str| {
        let found = named.find(method, path);
        found.is_some_and(|it| !facts.is_catch_all(&it.operation))
    };
    let missing = described
        .mutating
        .iter()
        .filter(|(method, path)| !is_named(method, path));
    let missing: Vec<_> = missing
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    let mut open: Vec<_> = missing
        .iter()
        .take(TOLD_MAX)
        .map(|operation| {
            let why =
                format!("{operation} changes something, and no operation of the file is for it");
            let fix = format!("add [[operation]] match = \"{operation}\" with its class");
            Line::open(&described.name, why, fix)
        })
        .collect();
    if missing.len() > TOLD_MAX {
        let why = format!("{} more are not named", missing.len() - TOLD_MAX);
        open.push(Line::open(&described.name, why, "name them, too"));
    }
    let count = described.mutating.len();
    or_done(
        open,
        described.name.clone(),
        format!("all {count} mutating operations are named"),
    )
}

/// The same operations, of which those that are not guarded are found, too.
fn everything(facts: &Facts) -> Result<Policy, String> {
    let operations = facts.settings.policy.operations().cloned();
    let operations = operations.map(|operation| Operation {
        guarded: true,
        ..operation
    });
    Policy::new(operations.collect()).map_err(|error| error.to_string())
}
