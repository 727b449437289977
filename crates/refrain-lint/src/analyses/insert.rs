//! Rows with a key that may be there twice.

use super::Hit;
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
    rule::Severity,
};

/// What lets the second row not happen, or not matter.
const CONFLICT: [&str; 9] = [
    "on conflict",
    "on duplicate key",
    "insert ignore",
    "or ignore",
    "or replace",
    "merge into",
    "not exists",
    "replace into",
    "if not exists",
];
/// What shows that the database refuses the second row.
const REFUSED: [&str; 13] = [
    "*integrityerror",
    "*uniqueviolation",
    "*is_unique_violation",
    "*recordnotunique",
    "*23505",
    "*duplicatekey",
    "*duplicate key",
    "*dataintegrityviolation",
    "*1062",
    "*unique_violation",
    "*er_dup_entry",
    "*uniqueconstraint",
    "*23000",
];

pub(super) fn without_conflict(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for at in source.of(Role::Text) {
        let text = &source.items[at].span;
        let Some(found) = source.low(text).find("insert into") else {
            continue;
        };
        let whole = statement(source, at);
        let sql = source.low(&whole);
        let Some((table, column)) = key_column(&sql[sql.find("insert into").unwrap_or(0)..]) else {
            continue;
        };
        let function = source
            .function(at)
            .map_or("", |at| source.low(&source.items[at].span));
        let safe = CONFLICT.iter().any(|word| sql.contains(word))
            || names::has_any(function, &REFUSED)
            || project.schema.is_unique(&table, &column);
        if safe {
            continue;
        }
        let hit = Hit::new(
            text.start + found,
            format!(
                "`{column}` of `{table}` takes the same key twice, as far as this project says"
            ),
        );
        hits.push(if project.schema.knows(&table) {
            hit
        } else {
            hit.with(Severity::Hint)
        });
    }
    hits
}

/// The statement, which may go on in further strings of the same call or assignment.
fn statement(file: &File, text: usize) -> Span {
    let start = file.items[text].span.start;
    let outer = file.around(text).find(|at| {
        matches!(
            file.items[*at].role,
            Role::Call | Role::Assign | Role::Return
        )
    });
    let end = outer.map_or(file.items[text].span.end, |at| file.items[at].span.end);
    let from = file.lower[..start]
        .rfind(['\n', ';'])
        .map_or(0, |at| at + 1);
    from.max(start.saturating_sub(40))..end
}

/// The table, and the column that holds a key.
fn key_column(sql: &str) -> Option<(String, String)> {
    let rest = sql.strip_prefix("insert into")?.trim_start();
    let table: String = rest
        .chars()
        .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '"' | '`'))
        .collect();
    let columns = rest
        .get(table.len()..)?
        .trim_start()
        .strip_prefix('(')?
        .split(')')
        .next()?;
    let table = table
        .trim_matches(['"', '`'])
        .rsplit('.')
        .next()?
        .to_string();
    let noted = [
        "processed",
        "inbox",
        "event",
        "message",
        "webhook",
        "dedup",
        "handled",
    ]
    .iter()
    .any(|word| table.contains(word));
    let column = columns
        .split(',')
        .map(|column| {
            column
                .trim()
                .trim_matches(['"', '`', '\\', '+', '\'', '\n', ' '])
        })
        .find(|column| {
            column.contains("idempot")
                || column.contains("dedup")
                || column.contains("idem_key")
                || noted
                    && matches!(
                        *column,
                        "event_id" | "message_id" | "webhook_id" | "delivery_id"
                    )
        })?;
    Some((table, column.into()))
}
