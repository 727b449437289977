//! What stands around an operation: the paths above, beside and below it, and what they answer.

use std::collections::HashMap;

use refrain_openapi::{Kind, Operation, Schema, View};

use crate::{
    envelope::{opened, unwrapped},
    segments::Segments,
    text::{singular, words},
    verbs::named,
    words as lists,
};

/// A document with fewer operations is not taken for one of functions.
const CALLS_MIN: usize = 8;

/// The paths of a document, and what can be read from each.
#[derive(Debug)]
pub(crate) struct Surroundings<'d> {
    paths: HashMap<String, Known<'d>>,
    /// Whether any operation asks for security.
    is_secured: bool,
    /// What most operations ask for.
    usual_security: Vec<Vec<&'d str>>,
    /// Whether the API is one of functions: `POST /Projects/ArchiveProject`.
    pub(crate) is_of_calls: bool,
}

#[derive(Debug, Default)]
struct Known<'d> {
    methods: Vec<String>,
    /// What GET answers, lists and envelopes taken off.
    read: Option<View<'d>>,
    /// What GET answers, where that is a list or the envelope of one.
    list: Option<View<'d>>,
    /// What POST answers: for a list, what it holds.
    made: Option<View<'d>>,
    has_items: bool,
}

impl<'d> Surroundings<'d> {
    pub(crate) fn of(operations: &[Operation<'d>]) -> Self {
        let mut paths: HashMap<String, Known<'d>> = HashMap::new();
        let mut securities: HashMap<Vec<Vec<&'d str>>, usize> = HashMap::new();
        for operation in operations.iter().filter(|it| it.kind() == Kind::Path) {
            *securities.entry(operation.security()).or_default() += 1;
            let path = normal(operation.path());
            if let Some(above) = path.strip_suffix("/{}") {
                paths.entry(above.into()).or_default().has_items = true;
            }
            let known = paths.entry(path).or_default();
            known.methods.push(operation.method().into());
            if operation.method() == "POST" {
                let schema = operation.success().and_then(|it| it.schema());
                known.made = schema.map(|it| opened(it).view());
            }
            if operation.method() == "GET" {
                let schema = operation.success().and_then(|it| it.schema());
                let schema = schema.map(opened);
                known.read = schema.map(|it| unwrapped(it).view());
                let is_list = |it: &Schema<'_>| {
                    it.is("array") || it.properties().iter().any(|(_, it)| it.is("array"))
                };
                known.list = schema.filter(is_list).map(|it| it.view());
            }
        }
        let is_secured = securities.keys().any(|it| !it.is_empty());
        let usual = securities.into_iter().max_by_key(|(_, count)| *count);
        let usual_security = usual.map(|(security, _)| security).unwrap_or_default();
        Self {
            paths,
            is_secured,
            usual_security,
            is_of_calls: is_of_calls(operations),
        }
    }

    pub(crate) fn has_items(&self, path: &str) -> bool {
        self.paths.get(&normal(path)).is_some_and(|it| it.has_items)
    }

    pub(crate) fn is_readable(&self, path: &str) -> bool {
        self.has(&normal(path), &["GET"])
    }

    /// Whether it is one of a list that nothing is sent to, and that no list of the same name makes elsewhere.
    pub(crate) fn is_made_here(&self, path: &str, answer: Option<Schema<'_>>) -> bool {
        let path = normal(path);
        let list = path.strip_suffix("/{}");
        let name = list.and_then(|it| it.rsplit('/').next());
        let is_made = |answer: Schema<'_>| {
            let mut lists = self
                .paths
                .iter()
                .filter(|(path, _)| path.rsplit('/').next() == name);
            lists.any(|(_, it)| it.made.is_some_and(|made| made.is_same(&answer.view())))
        };
        list.is_some_and(|list| !self.has(list, &["POST"])) && !answer.is_some_and(is_made)
    }

    /// Whether it is a list whose members are looked at, changed or removed one by one.
    pub(crate) fn is_managed(&self, path: &str) -> bool {
        let path = normal(path);
        let item = match path.ends_with("/{}") {
            true => path.clone(),
            false => format!("{path}/{{}}"),
        };
        self.has(&path, &["GET"]) && self.paths.contains_key(&item)
            || self.has(&item, &["GET", "DELETE", "PUT", "PATCH"])
    }

    /// Whether the answer is what the thing above is read as, or was made as.
    pub(crate) fn is_parent(&self, path: &str, answer: Schema<'_>) -> bool {
        let path = normal(path);
        let mut above = path.as_str();
        while let Some(at) = above.rfind(['/', ':']) {
            above = &above[..at];
            if let Some(read) = self.paths.get(above).and_then(|it| it.read) {
                return read.is_same(&answer.view());
            }
            let list = above.strip_suffix("/{}");
            let made = list.and_then(|list| self.paths.get(list)?.made);
            if made.is_some_and(|made| made.is_same(&answer.view())) {
                return true;
            }
        }
        false
    }

    /// Whether the answer is what the same path, or one item of it, is read as.
    pub(crate) fn is_sibling(&self, path: &str, answer: Schema<'_>) -> bool {
        let path = normal(path);
        let reads = [
            self.paths.get(&path),
            self.paths.get(&format!("{path}/{{}}")),
        ];
        let mut reads = reads.into_iter().flatten().filter_map(|it| it.read);
        reads.any(|read| read.is_same(&answer.view()))
    }

    /// Whether the answer is the very list, or page, that the same path is read as.
    pub(crate) fn is_list(&self, path: &str, answer: Schema<'_>) -> bool {
        let known = self.paths.get(&normal(path));
        let list = known.filter(|it| !it.has_items).and_then(|it| it.list);
        list.is_some_and(|list| list.is_same(&answer.view()))
    }

    /// Whether the very path can also be read or removed.
    pub(crate) fn has_siblings(&self, path: &str) -> bool {
        self.has(&normal(path), &["GET", "DELETE"])
    }

    /// Whether it stands below a list of things that a word names, and that are looked at or removed one by one.
    pub(crate) fn is_below_managed(&self, path: &str, list: &'static [&'static str]) -> bool {
        let path = normal(path);
        let ends = path.match_indices('/').map(|(at, _)| at);
        let mut above = ends.filter(|at| *at > 0).map(|at| &path[..at]);
        above.any(|above| {
            let last = above.rsplit('/').next().unwrap_or_default();
            named(&singular(last), list).is_some()
                && path[above.len()..].starts_with("/{}")
                && self.is_managed(above)
        })
    }

    /// Whether an operation asks for no security, where others do.
    pub(crate) fn is_open(&self, operation: &Operation<'d>) -> bool {
        operation.kind() == Kind::Path && self.is_secured && operation.security().is_empty()
    }

    /// Whether an operation asks for other security than most.
    pub(crate) fn is_apart(&self, operation: &Operation<'d>) -> bool {
        operation.kind() == Kind::Path && operation.security() != self.usual_security
    }

    fn has(&self, path: &str, methods: &[&str]) -> bool {
        let known = self.paths.get(path);
        known.is_some_and(|it| {
            it.methods
                .iter()
                .any(|method| methods.contains(&method.as_str()))
        })
    }
}

/// Whether nearly everything is a POST to a path without names in braces, which ends with what is done.
fn is_of_calls(operations: &[Operation<'_>]) -> bool {
    let served = operations.iter().filter(|it| it.kind() == Kind::Path);
    let (mut all, mut calls) = (0, 0);
    for operation in served {
        all += 1;
        let is_call = operation.method() == "POST" && !operation.path().contains('{');
        let path = Segments::of(operation.path());
        let first = path.literal.last().map(|it| words(it));
        let first = first.and_then(|it| it.into_iter().next());
        calls += usize::from(is_call && first.is_some_and(|it| lists::is_verb(&it)));
    }
    all >= CALLS_MIN && 10 * calls >= 7 * all
}

/// The path with its names left out: `/a/{id}` and `/a/{key}` are the same place.
fn normal(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut is_name = false;
    for char in path.trim_end_matches('/').chars() {
        match char {
            '{' => {
                is_name = true;
                normal.push('{');
            }
            '}' => {
                is_name = false;
                normal.push('}');
            }
            _ if is_name => {}
            char => normal.push(char),
        }
    }
    normal
}
