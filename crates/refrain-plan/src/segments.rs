//! Splits paths and operation ids into nouns, path parameters and verbs.

use crate::{text::words, tongue::english, words as lists};

/// Verb of an `operationId`: its first word, unless only its last part starts with a verb.
pub(crate) fn id_verb(id: &str) -> String {
    let first = words(id).into_iter().next().unwrap_or_default();
    let last = id.rsplit(['.', '_', '/', ':', '-']).next();
    let behind = last.and_then(|it| words(it).into_iter().next());
    match behind {
        Some(behind) if lists::is_verb(&behind) && !lists::is_plain_verb(&first) => behind,
        _ => first,
    }
}

/// A path split into segments.
pub(crate) struct Segments {
    /// Literal segments (not path parameters), translated to English.
    pub(crate) literal: Vec<String>,
    /// Whether the last segment is a path parameter.
    pub(crate) is_item: bool,
    /// Whether the segment directly before the last literal one is a path parameter, or the path ends with a call.
    pub(crate) is_below_item: bool,
    /// Whether any segment before the last literal one is a path parameter, or the path ends with a call.
    pub(crate) is_in_item: bool,
    pub(crate) is_call: bool,
    /// All prefixes of the path that end at a segment boundary.
    pub(crate) folders: Vec<String>,
}

impl Segments {
    pub(crate) fn of(path: &str) -> Self {
        let mut found: Vec<(String, bool)> = Vec::new();
        let mut folders = Vec::new();
        let mut is_call = false;
        for (at, part) in path.match_indices('/').map(|(at, _)| (at, &path[at + 1..])) {
            let part = part.split('/').next().unwrap_or_default();
            if part.is_empty() {
                continue;
            }
            if at > 0 {
                folders.push(path[..at].into());
            }
            let (thing, verb) = call(part);
            // `/servers/{id}/actions/reboot` is a call, too.
            let above = found.last().map(|(text, _)| text.as_str());
            is_call = verb.is_some() || above.is_some_and(|it| lists::ACTS.contains(&it));
            found.push((english(thing), thing.starts_with('{')));
            found.extend(verb.map(|verb| (english(verb), false)));
        }
        let is_item = found.last().is_some_and(|(_, is_name)| *is_name);
        let last = found.iter().rposition(|(_, is_name)| !is_name);
        let is_below_item = is_call || last.is_some_and(|at| at > 0 && found[at - 1].1);
        let is_in_item = is_call || last.is_some_and(|at| found[..at].iter().any(|it| it.1));
        let literal = found.into_iter().filter(|(_, is_name)| !is_name);
        Self {
            literal: literal.map(|(text, _)| text).collect(),
            is_item,
            is_below_item,
            is_in_item,
            is_call,
            folders,
        }
    }
}

/// Splits `tasks:query` and `tasks.query` into the noun and the verb that is called on it.
fn call(part: &str) -> (&str, Option<&str>) {
    match part.rsplit_once(':') {
        Some((thing, verb)) if !thing.is_empty() && !verb.contains('}') => {
            return (thing, Some(verb));
        }
        _ => {}
    }
    let is_name = |it: &str| it.len() > 1 && it.chars().all(|it| it.is_alphabetic() || it == '_');
    match part.rsplit_once('.') {
        Some((thing, verb))
            if is_name(verb)
                && thing.split('.').all(is_name)
                && !lists::ENDINGS.contains(&verb.to_lowercase().as_str()) =>
        {
            (thing, Some(verb))
        }
        _ => (part, None),
    }
}
