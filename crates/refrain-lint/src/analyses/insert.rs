//! Inserts of keys into columns without a unique constraint.

use super::Hit;
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
    rule::Severity,
};

/// SQL that prevents or ignores a duplicate row.
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
/// Errors that show that the database rejects a duplicate row.
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
    let mut hits = models(project, file);
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
        // A column that is only called `key` proves little without the definition of its table.
        let is_vague = column == "key" && !project.schema.knows(&table);
        if safe || is_vague {
            continue;
        }
        let hit = Hit::new(
            text.start + found,
            format!("nothing in this project makes `{column}` of `{table}` unique"),
        );
        hits.push(if project.schema.knows(&table) {
            hit
        } else {
            hit.with_severity(Severity::Hint)
        });
    }
    hits
}

/// Inserts through a model that has a key column, in a project that makes nothing unique.
fn models(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let is_key = |name: &str| name.contains("idempotencykey") || name == "dedupkey";
    let mut hits = Vec::new();
    for pair in source.of(Role::Pair) {
        let name = &source.items[pair].name;
        let Some(call) = source.nearest(pair, Role::Call).filter(|_| is_key(name)) else {
            continue;
        };
        let item = &source.items[call];
        let makes = matches!(
            item.tail(),
            "create" | "insert" | "insertone" | "forcecreate"
        ) && !item.base.is_empty();
        let function = source
            .function(call)
            .map_or("", |at| source.low(&source.items[at].span));
        let refused = names::has_any(function, &REFUSED)
            || names::has_any(function, &project.words.stores.atomic);
        let files = || project.files.iter().filter(|it| it.lang == source.lang);
        let says_unique = |it: &File| names::has_any(&it.lower, &["*unique", "primary"]);
        if makes && !refused && files().any(|it| defines(it, name)) && !files().any(says_unique) {
            let note = "nothing in this project makes the key of this model unique";
            hits.push(Hit::new(super::money::position_of_call(source, call), note));
        }
    }
    hits
}

/// Whether a line of a migration or model defines a column with this name.
fn defines(file: &File, column: &str) -> bool {
    let types = [
        "t.string",
        "t.text",
        "t.uuid",
        "->string(",
        "->uuid(",
        "->text(",
        "->char(",
        "models.",
        "column(",
        "field(",
        "type: string",
        "datatypes.",
        "varchar",
    ];
    file.lower
        .lines()
        .any(|line| types.iter().any(|it| line.contains(it)) && names::fold(line).contains(column))
}

/// Byte range of the SQL statement, which may span several strings of the same call or assignment.
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
                || table.contains("idempot") && matches!(*column, "key" | "request_key")
                || noted
                    && matches!(
                        *column,
                        "event_id" | "message_id" | "webhook_id" | "delivery_id"
                    )
        })?;
    Some((table, column.into()))
}
