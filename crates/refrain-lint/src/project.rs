//! What the files of a project know together: who defines a function, what runs again, which columns are unique.

use std::collections::{HashMap, HashSet};

use crate::{file::File, item::Role, words::Words};

mod reach;
mod rerun;
mod schema;

pub(crate) use reach::{Kind, Piece};
pub(crate) use rerun::Rerun;

/// The most definitions of one name among which a call is looked for.
const NAMESAKES_MAX: usize = 3;

/// All files, and what they know together.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) files: Vec<File>,
    pub(crate) words: Words,
    /// The functions of each name, as (file, item).
    functions: HashMap<String, Vec<(usize, usize)>>,
    /// Functions that something runs again, with who does.
    rerun: HashMap<(usize, usize), Rerun>,
    /// Tables and columns that SQL or migrations make unique.
    pub(crate) schema: schema::Schema,
}

impl Project {
    /// Gathers the facts. `sql` are the texts of files in SQL.
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

    /// The functions that a call may mean: those of its own file, or the few of that name elsewhere.
    pub(crate) fn callees(&self, file: usize, call: usize) -> Vec<(usize, usize)> {
        let name = self.files[file].items[call].tail();
        self.named(file, name)
    }

    /// The functions of a name, as seen from a file.
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

    /// Marks the functions that are called from what runs again; two steps of calls are followed.
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

/// Names that are everywhere, and so say nothing about who is meant.
const GENERIC: [&str; 34] = [
    "apply", "build", "close", "create", "delete", "execute", "fetch", "filter", "handle",
    "handler", "index", "invoke", "method", "parse", "perform", "process", "query", "request",
    "reset", "return", "start", "store", "string", "update", "value", "write", "publish", "append",
    "insert", "remove", "select", "format", "render", "commit",
];
