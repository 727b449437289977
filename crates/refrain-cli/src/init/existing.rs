//! An existing policy: its settings are not asked for again, and not changed.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context as _;
use toml_edit::{DocumentMut, Item};

use crate::{marks::Marks, plan::POLICY};

/// The existing policy of the folder, if any.
#[derive(Debug, Default)]
pub(crate) struct Existing {
    document: Option<DocumentMut>,
    marks: Marks,
}

impl Existing {
    /// Reads the policy of a folder.
    ///
    /// # Errors
    /// When it cannot be read, or is not TOML.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(POLICY);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| path.display().to_string())?,
        };
        let document = text
            .parse()
            .with_context(|| format!("{} is not valid TOML", path.display()))?;
        Ok(Self {
            document: Some(document),
            marks: Marks::of(&text),
        })
    }

    /// A setting at the top or in a table; a list gives all its elements.
    pub(crate) fn setting(&self, table: Option<&str>, name: &str) -> Option<Vec<String>> {
        let document = self.document.as_ref()?.as_table();
        let table = match table {
            Some(table) => document.get(table)?.as_table_like()?,
            None => document,
        };
        let item = table.get(name)?;
        let parts = match item.as_array() {
            Some(parts) => parts
                .iter()
                .filter_map(|it| it.as_str().map(String::from))
                .collect(),
            None => vec![item.as_str()?.to_owned()],
        };
        Some(parts)
    }

    /// Whether the file names operations.
    pub(crate) fn has_operations(&self) -> bool {
        let document = self.document.as_ref();
        let list = document.and_then(|it| it.get("operation"));
        list.and_then(Item::as_array_of_tables)
            .is_some_and(|it| !it.is_empty())
    }

    /// Whether the file has this operation, and its class is not marked as unsure.
    pub(crate) fn has_decided(&self, pattern: &str) -> bool {
        let document = self.document.as_ref();
        let list = document.and_then(|it| it.get("operation"));
        let mut tables = list
            .and_then(Item::as_array_of_tables)
            .into_iter()
            .flatten();
        let is_named = tables.any(|it| it.get("match").and_then(Item::as_str) == Some(pattern));
        let mark = self.marks.of_operation(pattern);
        is_named && !mark.is_some_and(|it| it.is_unsure)
    }
}
