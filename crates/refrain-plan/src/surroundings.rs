//! Neighbours of an operation: the paths above, beside and below it, and their responses.

use std::collections::HashMap;

use refrain_openapi::{Kind, Operation, Schema, View};

use crate::{
    envelope::{opened, unwrapped},
    segments::Segments,
    text::{singular, words},
    verbs::named,
    words as lists,
};

/// Minimum number of operations before a document can count as an RPC-style API.
const CALLS_MIN: usize = 8;

/// Index of a document's paths, with the schemas that each path returns.
#[derive(Debug)]
pub(crate) struct Surroundings<'d> {
    paths: HashMap<String, Known<'d>>,
    /// Whether any operation requires authentication.
    is_secured: bool,
    /// Most frequent security requirements.
    usual_security: Vec<Vec<&'d str>>,
    /// Whether the API is RPC-style: `POST /Projects/ArchiveProject`.
    pub(crate) is_of_calls: bool,
}

#[derive(Debug, Default)]
struct Known<'d> {
    methods: Vec<String>,
    /// Response schema of GET, without list and envelope.
    read: Option<View<'d>>,
    /// Response schema of GET, if it is a list or an envelope of a list.
    list: Option<View<'d>>,
    /// Response schema of POST, without envelope.
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

    /// Whether the path is an item of a list that has no POST, and no other list of the same name has a POST
    /// that returns this response.
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

    /// Whether the path is a list, or an item of a list, whose items can be read, changed or deleted one by one.
    pub(crate) fn is_managed(&self, path: &str) -> bool {
        let path = normal(path);
        let item = match path.ends_with("/{}") {
            true => path.clone(),
            false => format!("{path}/{{}}"),
        };
        self.has(&path, &["GET"]) && self.paths.contains_key(&item)
            || self.has(&item, &["GET", "DELETE", "PUT", "PATCH"])
    }

    /// Whether the response is the parent resource, as GET returns it or as POST on its list returns it.
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

    /// Whether the response is what GET returns on the same path, or on an item of it.
    pub(crate) fn is_sibling(&self, path: &str, answer: Schema<'_>) -> bool {
        let path = normal(path);
        let reads = [
            self.paths.get(&path),
            self.paths.get(&format!("{path}/{{}}")),
        ];
        let mut reads = reads.into_iter().flatten().filter_map(|it| it.read);
        reads.any(|read| read.is_same(&answer.view()))
    }

    /// Whether the response is the same list or page that GET on the same path returns.
    pub(crate) fn is_list(&self, path: &str, answer: Schema<'_>) -> bool {
        let known = self.paths.get(&normal(path));
        let list = known.filter(|it| !it.has_items).and_then(|it| it.list);
        list.is_some_and(|list| list.is_same(&answer.view()))
    }

    /// Whether the same path also has GET or DELETE.
    pub(crate) fn has_siblings(&self, path: &str) -> bool {
        self.has(&normal(path), &["GET", "DELETE"])
    }

    /// Whether the path is below an item of a managed list whose name is in `list`.
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

    /// Whether an operation requires no authentication, although others do.
    pub(crate) fn is_open(&self, operation: &Operation<'d>) -> bool {
        operation.kind() == Kind::Path && self.is_secured && operation.security().is_empty()
    }

    /// Whether the security requirements of an operation differ from those of most operations.
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

/// Whether at least 70 % of the operations are a POST to a path that has no parameters and ends with a command.
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

/// Path without the names of its parameters: `/a/{id}` and `/a/{key}` are the same path.
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
