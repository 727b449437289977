//! The comments that `refrain plan` writes above the tables of a policy: the planned class, and whether it is unsure.

use std::collections::HashMap;

use toml_edit::{DocumentMut, Item, Table};

use crate::plan::MARK;

/// The start of a comment that asks for a decision.
const UNSURE: &str = "# unsure (";

/// The marks of a file, by the names of their operations and workers.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    operations: HashMap<String, Mark>,
    workers: HashMap<String, Mark>,
}

/// The mark above one table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The class that the last plan chose.
    pub(crate) class: String,
    /// Whether it asks for a decision that is still open.
    pub(crate) is_unsure: bool,
}

impl Marks {
    /// The marks of a file; none if it is not from `refrain plan`, or not TOML.
    pub(crate) fn of(text: &str) -> Self {
        let Ok(document) = text.parse::<DocumentMut>() else {
            return Self::default();
        };
        Self {
            operations: marked(&document, "operation", "match"),
            workers: marked(&document, "worker", "name"),
        }
    }

    pub(crate) fn of_operation(&self, name: &str) -> Option<&Mark> {
        self.operations.get(name)
    }

    pub(crate) fn of_worker(&self, name: &str) -> Option<&Mark> {
        self.workers.get(name)
    }
}

fn marked(document: &DocumentMut, list: &str, key: &str) -> HashMap<String, Mark> {
    let tables = document.get(list).and_then(Item::as_array_of_tables);
    let named = tables.into_iter().flatten().filter_map(|table| {
        let name = table.get(key).and_then(Item::as_str)?;
        Some((name.to_owned(), Mark::of(table)?))
    });
    named.collect()
}

impl Mark {
    fn of(table: &Table) -> Option<Self> {
        let above = table.decor().prefix().and_then(|it| it.as_str())?;
        let mut lines = above.lines().map(str::trim);
        let class = lines.find_map(|line| line.strip_prefix(MARK))?.trim();
        let written = table.get("class").and_then(Item::as_str);
        let is_open = lines.any(|line| line.starts_with(UNSURE));
        Some(Self {
            class: class.into(),
            // A class that differs from the planned one is a decision.
            is_unsure: is_open && written.is_none_or(|it| it == class),
        })
    }
}

#[test]
fn mark_stays_unsure_until_an_operator_decides() {
    let above = "# plan: monetary\n# unsure (0.50): monetary, or create? Reasons:\n# - a reason\n";
    let table = |above: &str, class: &str| {
        format!("{above}[[operation]]\nmatch = \"POST /orders\"\nclass = \"{class}\"\n")
    };
    let cases = [
        (table(above, "monetary"), Some(("monetary", true))),
        (table(above, "create"), Some(("monetary", false))),
        (
            table("# plan: monetary\n# - a reason\n", "monetary"),
            Some(("monetary", false)),
        ),
        (table("# ours\n", "monetary"), None),
        (table("", "monetary"), None),
        ("[[operation]".into(), None),
    ];
    for (text, expected) in cases {
        let marks = Marks::of(&text);
        let mark = marks.of_operation("POST /orders");
        let mark = mark.map(|it| (it.class.as_str(), it.is_unsure));
        assert_eq!(mark, expected, "{text}");
    }
}
