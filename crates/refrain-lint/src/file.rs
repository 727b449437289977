//! One source file with its items, and the questions that are asked of them.

use crate::{
    item::{Item, Role, Span},
    language::Lang,
    names::fold,
};

/// A file that was read.
#[derive(Debug)]
pub(crate) struct File {
    /// As it is printed.
    pub(crate) path: String,
    pub(crate) lang: Lang,
    pub(crate) text: String,
    /// The text in small letters, byte for byte in the same places.
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

    /// The stretch in small letters.
    pub(crate) fn low(&self, span: &Span) -> &str {
        self.lower.get(span.clone()).unwrap_or_default()
    }

    /// All items of a role.
    pub(crate) fn of(&self, role: Role) -> impl Iterator<Item = usize> {
        let all = self.items.iter().enumerate();
        all.filter_map(move |(at, item)| (item.role == role).then_some(at))
    }

    /// The items within a stretch.
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

    /// The calls within a stretch.
    pub(crate) fn calls(&self, span: &Span) -> impl Iterator<Item = usize> {
        self.within(span)
            .filter(|at| self.items[*at].role == Role::Call)
    }

    /// What is around an item, from the inside out.
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

    /// The nearest item of a role around an item.
    pub(crate) fn nearest(&self, item: usize, role: Role) -> Option<usize> {
        self.around(item).find(|at| self.items[*at].role == role)
    }

    /// The function that an item stands in.
    pub(crate) fn function(&self, item: usize) -> Option<usize> {
        self.nearest(item, Role::Function)
    }

    /// The outermost named function around an item: closures belong to whoever makes them.
    pub(crate) fn method(&self, item: usize) -> Option<usize> {
        let functions = self
            .around(item)
            .filter(|at| self.items[*at].role == Role::Function);
        functions.last()
    }

    /// The innermost item around a stretch.
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

    /// The folded names in a stretch, those of strings left out, what is interpolated left in.
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

    /// Whether it is there to test other code.
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

/// Rust: what `{name}` in a format string captures.
fn captured(file: &File, text: &Span, names: &mut Vec<String>) {
    if file.lang != Lang::Rust {
        return;
    }
    for part in file.text[text.clone()].split('{').skip(1) {
        let name = part.split(['}', ':']).next().unwrap_or_default();
        words(name, names);
    }
}
