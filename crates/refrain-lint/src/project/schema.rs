//! Unique columns of a project, from SQL, migrations and models.

use crate::{file::File, item::Role, names};

/// Facts about database tables.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// Statements and source lines that mention uniqueness, in lower case.
    unique: Vec<String>,
    /// Tables whose definition is in the project.
    tables: Vec<String>,
}

const SAYS_UNIQUE: [&str; 4] = ["unique", "primary key", "primarykey", "primary_key"];

impl Schema {
    /// Reads SQL texts, SQL in string literals, and source lines that contain the word `unique`.
    pub(super) fn new(files: &[File], sql: &[String]) -> Self {
        let mut schema = Self::default();
        for text in sql {
            for statement in text.split(';') {
                schema.statement(&statement.to_ascii_lowercase());
            }
        }
        for file in files
            .iter()
            .filter(|file| names::has_any(&file.lower, &SAYS_UNIQUE))
        {
            schema.source(file);
        }
        schema
    }

    fn statement(&mut self, text: &str) {
        if let Some(at) = text.find("create table") {
            let rest = text[at + 12..]
                .trim_start()
                .trim_start_matches("if not exists")
                .trim_start();
            let name = rest.split(|c: char| c.is_whitespace() || c == '(').next();
            self.tables
                .push(name.unwrap_or_default().trim_matches(['"', '`']).into());
        }
        if names::has_any(text, &SAYS_UNIQUE) {
            self.unique.push(text.into());
        }
    }

    fn source(&mut self, file: &File) {
        for at in file.of(Role::Text) {
            let text = file.low(&file.items[at].span);
            if text.contains("create ") || text.contains("alter table") {
                text.split(';')
                    .for_each(|statement| self.statement(statement));
            }
        }
        let migration = [
            "add_index",
            "unique",
            "uniqueconstraint",
            "uniqueindex",
            "column(",
            "primary",
        ];
        for line in file.lower.lines() {
            if line.contains("unique") && names::has_any(line, &migration) {
                self.unique.push(line.into());
            }
        }
    }

    /// Whether a statement or source line makes the column unique.
    pub(crate) fn is_unique(&self, table: &str, column: &str) -> bool {
        self.unique.iter().any(|text| {
            let named = text.contains(column) && (text.contains(table) || !text.contains("create"));
            named && column_is_unique(text, column)
        })
    }

    /// Whether the definition of the table is in the project.
    pub(crate) fn knows(&self, table: &str) -> bool {
        self.tables.iter().any(|it| it == table)
    }
}

/// In a `CREATE TABLE`, the column itself or a constraint that names it must be unique.
fn column_is_unique(text: &str, column: &str) -> bool {
    if !text.contains("create table") {
        return true;
    }
    let at_column = text
        .split(',')
        .any(|part| part.contains(column) && SAYS_UNIQUE.iter().any(|word| part.contains(word)));
    let constraint = SAYS_UNIQUE.iter().any(|word| {
        let parts = text.split(word).skip(1);
        parts.into_iter().any(|rest| {
            let list = rest
                .trim_start()
                .strip_prefix('(')
                .and_then(|rest| rest.split(')').next());
            list.is_some_and(|list| list.contains(column))
        })
    });
    at_column || constraint
}
