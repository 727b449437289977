//! The API's own description: which of its paths change something, and whether the file names them.

use std::{fs::File, io::Read as _, path::Path};

use refrain::{Policy, policy::Operation};
use serde_json::Value;

use super::{Facts, Line, or_done};

/// The largest description that is read.
const BYTES_MAX: u64 = 32 << 20;
/// The most paths that are named one by one.
const TOLD_MAX: usize = 50;
const MUTATING: [&str; 4] = ["post", "put", "patch", "delete"];

/// What a description says.
pub(super) struct Described {
    name: String,
    /// Method and path, in the order of the description.
    mutating: Vec<(String, String)>,
}

impl Described {
    /// Reads OpenAPI 3 or Swagger 2, as JSON.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let name = file.display().to_string();
        let mut text = String::new();
        let read = File::open(file);
        let read = read.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
        let document: Value = serde_json::from_str(&text).map_err(|error| {
            format!("{name}: is no JSON: {error}; a description in YAML has to be converted first")
        })?;
        let Some(paths) = document["paths"].as_object() else {
            return Err(format!(
                "{name}: has no `paths`; name an OpenAPI or Swagger document"
            ));
        };
        let base = &base(&document);
        let operations = paths.iter().flat_map(|(path, item)| {
            let methods = MUTATING.iter().filter(|method| item[**method].is_object());
            methods.map(move |method| (method.to_uppercase(), format!("{base}{path}")))
        });
        Ok(Self {
            mutating: operations.collect(),
            name,
        })
    }
}

/// What goes before every path.
fn base(document: &Value) -> String {
    let server = document["servers"][0]["url"].as_str();
    let path = server.map(|url| match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => url,
    });
    let path = path.or(document["basePath"].as_str()).unwrap_or_default();
    path.trim_end_matches('/').to_owned()
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
