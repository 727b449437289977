//! Facts about a whole project: function definitions, what reruns a function, unique columns.

use std::collections::{HashMap, HashSet};

use crate::{file::File, item::Role, words::Words};

mod reach;
mod rerun;
mod schema;

pub(crate) use reach::{Kind, Piece};
pub(crate) use rerun::Rerun;

/// Maximum number of functions with the same name that a call is resolved to.
const NAMESAKES_MAX: usize = 3;

/// All files of a project, and facts about them.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) files: Vec<File>,
    pub(crate) words: Words,
    /// Functions by name, as (file, item).
    functions: HashMap<String, Vec<(usize, usize)>>,
    /// Functions that are rerun because of their callers, with the reason.
    rerun: HashMap<(usize, usize), Rerun>,
    /// Unique columns from SQL, migrations and models.
    pub(crate) schema: schema::Schema,
}

impl Project {
    /// Collects the facts. `sql` has the contents of SQL files.
    pub(crate) fn new(files: Vec<File>, sql: &[String], words: Words) -> Self {
        let mut functions: HashMap<String, Vec<_>> = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            for item in file.of(Role::Function) {
                let name = &file.items[item].name;
                if !name.is_empty() {
                    functions.entry(name.clone()).or_default().push((at, item));
                }
            }
        }
        let schema = schema::Schema::new(&files, sql);
        let rerun = HashMap::new();
        let mut project = Self {
            files,
            words,
            functions,
            rerun,
            schema,
        };
        project.spread_reruns();
        project
    }

    /// Functions that a call may refer to: those in the same file, or else a few of the same name elsewhere.
    pub(crate) fn callees(&self, file: usize, call: usize) -> Vec<(usize, usize)> {
        let name = self.files[file].items[call].tail();
        self.named(file, name)
    }

    /// Functions with this name, as seen from a file.
    pub(crate) fn named(&self, file: usize, name: &str) -> Vec<(usize, usize)> {
        let Some(all) = self.functions.get(name) else {
            return Vec::new();
        };
        let own: Vec<_> = all.iter().copied().filter(|(at, _)| *at == file).collect();
        if !own.is_empty() {
            return own.into_iter().take(NAMESAKES_MAX).collect();
        }
        let lang = self.files[file].lang;
        let same: Vec<_> = all
            .iter()
            .copied()
            .filter(|(at, _)| self.files[*at].lang == lang)
            .collect();
        let known = same.len() <= NAMESAKES_MAX && name.len() > 4 && !GENERIC.contains(&name);
        if known { same } else { Vec::new() }
    }

    /// Marks functions that rerun code calls, through at most two levels of calls.
    fn spread_reruns(&mut self) {
        for _ in 0..2 {
            let mut found = Vec::new();
            for (at, file) in self.files.iter().enumerate() {
                for call in file.of(Role::Call) {
                    found.extend(self.spread_call(at, call));
                }
            }
            let known: HashSet<_> = self.rerun.keys().copied().collect();
            let news = found.into_iter().filter(|(at, _)| !known.contains(at));
            let before = self.rerun.len();
            self.rerun.extend(news);
            if self.rerun.len() == before {
                break;
            }
        }
    }
}

/// Names too common to identify a function in another file.
const GENERIC: [&str; 34] = [
    "apply", "build", "close", "create", "delete", "execute", "fetch", "filter", "handle",
    "handler", "index", "invoke", "method", "parse", "perform", "process", "query", "request",
    "reset", "return", "start", "store", "string", "update", "value", "write", "publish", "append",
    "insert", "remove", "select", "format", "render", "commit",
];
