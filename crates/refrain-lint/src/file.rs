//! A source file with its items, and queries on them.

use crate::{
    item::{Item, Role, Span},
    language::Lang,
    names::fold,
};

/// A parsed source file.
#[derive(Debug)]
pub(crate) struct File {
    /// Path for reports.
    pub(crate) path: String,
    pub(crate) lang: Lang,
    pub(crate) text: String,
    /// The text in ASCII lower case, with the same byte offsets.
    pub(crate) lower: String,
    pub(crate) items: Vec<Item>,
}

impl File {
    pub(crate) fn new(path: String, lang: Lang, text: String, items: Vec<Item>) -> Self {
        let lower = text.to_ascii_lowercase();
        Self {
            path,
            lang,
            text,
            lower,
            items,
        }
    }

    /// Lower-case text of a byte range.
    pub(crate) fn low(&self, span: &Span) -> &str {
        self.lower.get(span.clone()).unwrap_or_default()
    }

    /// Indexes of all items with a role.
    pub(crate) fn of(&self, role: Role) -> impl Iterator<Item = usize> {
        let all = self.items.iter().enumerate();
        all.filter_map(move |(at, item)| (item.role == role).then_some(at))
    }

    /// Items within a byte range.
    pub(crate) fn within(&self, span: &Span) -> impl Iterator<Item = usize> {
        let from = self
            .items
            .partition_point(|item| item.span.start < span.start);
        let (start, end) = (from, span.end);
        let rest = self.items[start..].iter().enumerate();
        rest.take_while(move |(_, item)| item.span.start < end)
            .filter(move |(_, item)| item.span.end <= end)
            .map(move |(at, _)| at + start)
    }

    /// Calls within a byte range.
    pub(crate) fn calls(&self, span: &Span) -> impl Iterator<Item = usize> {
        self.within(span)
            .filter(|at| self.items[*at].role == Role::Call)
    }

    /// Enclosing items, from the inside out.
    pub(crate) fn around(&self, item: usize) -> impl Iterator<Item = usize> {
        let mut at = item;
        std::iter::from_fn(move || {
            let parent = self.items[at].parent;
            if parent == at {
                return None;
            }
            let holds = self.items[parent].last > at;
            at = parent;
            holds.then_some(parent)
        })
    }

    /// Nearest enclosing item with a role.
    pub(crate) fn nearest(&self, item: usize, role: Role) -> Option<usize> {
        self.around(item).find(|at| self.items[*at].role == role)
    }

    /// Nearest enclosing function.
    pub(crate) fn function(&self, item: usize) -> Option<usize> {
        self.nearest(item, Role::Function)
    }

    /// Outermost enclosing function: a closure counts as part of the function that creates it.
    pub(crate) fn method(&self, item: usize) -> Option<usize> {
        let functions = self
            .around(item)
            .filter(|at| self.items[*at].role == Role::Function);
        functions.last()
    }

    /// Innermost item that contains a byte range.
    pub(crate) fn innermost(&self, span: &Span) -> Option<usize> {
        let end = self
            .items
            .partition_point(|item| item.span.start <= span.start);
        let last = end.checked_sub(1)?;
        if self.items[last].holds(span) {
            return Some(last);
        }
        self.around(last).find(|at| self.items[*at].holds(span))
    }

    /// Folded names in a byte range, without the contents of string literals, but with interpolated expressions.
    pub(crate) fn names(&self, span: &Span) -> Vec<String> {
        let texts: Vec<Span> = self
            .within(span)
            .filter(|at| self.items[*at].role == Role::Text)
            .map(|at| self.items[at].span.clone())
            .collect();
        let mut names = Vec::new();
        let mut from = span.start;
        for text in texts {
            if text.start >= from {
                words(&self.text[from..text.start], &mut names);
                captured(self, &text, &mut names);
                from = text.end;
            }
        }
        words(
            self.text.get(from..span.end).unwrap_or_default(),
            &mut names,
        );
        names
    }

    /// Whether the path is that of a test file.
    pub(crate) fn is_test(path: &str) -> bool {
        let path = path.to_ascii_lowercase();
        let name = path.rsplit('/').next().unwrap_or_default();
        let folders = [
            "/test/",
            "/tests/",
            "/spec/",
            "/specs/",
            "/__tests__/",
            "/testdata/",
            "/fixtures/",
        ];
        let slashed = format!("/{path}");
        folders.iter().any(|folder| slashed.contains(folder))
            || name.starts_with("test_")
            || [
                "_test.",
                ".test.",
                ".spec.",
                "_spec.",
                "test.java",
                "tests.java",
                "test.php",
            ]
            .iter()
            .any(|end| name.contains(end))
    }
}

fn words(text: &str, names: &mut Vec<String>) {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
    for word in words {
        let word = fold(word);
        if !word.is_empty() && !names.contains(&word) {
            names.push(word);
        }
    }
}

/// Rust: names that `{name}` in a format string captures.
fn captured(file: &File, text: &Span, names: &mut Vec<String>) {
    if file.lang != Lang::Rust {
        return;
    }
    for part in file.text[text.clone()].split('{').skip(1) {
        let name = part.split(['}', ':']).next().unwrap_or_default();
        words(name, names);
    }
}
