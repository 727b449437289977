//! Locks that are released without checking the owner.

use super::{Hit, claims, money};
use crate::{file::File, item::Role, language::Lang, names, project::Project};

pub(super) fn without_owner(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = sql(source);
    let takes = [
        "nx=true",
        "nx: true",
        "'nx'",
        "\"nx\"",
        "*setnx",
        "*set_nx",
        "*setifabsent",
        "\"nx",
        "unless_exist: true",
        "cache::add(",
        "cache.add(",
        ".nx",
        "nx()",
        "setargs",
    ];
    let takes_locks = names::has_any(&source.lower, &takes);
    for call in source.of(Role::Call) {
        let item = &source.items[call];
        if item.tail() == "forcerelease" {
            hits.push(Hit::new(
                money::position_of_call(source, call),
                "the current holder of the lock loses it",
            ));
            continue;
        }
        let deletes =
            names::fits_any(&item.name, &project.words.stores.deletes) && !item.args.is_empty();
        let own = matches!(source.lang, Lang::JavaScript | Lang::TypeScript | Lang::Tsx)
            && item.tail() == "delete"
            && !claims::is_shared(&item.base);
        if !deletes
            || own
            || !takes_locks
            || !names_lock(project, file, call)
            || asks_owner(source, call)
        {
            continue;
        }
        hits.push(Hit::new(
            money::position_of_call(source, call),
            "after the lock lapsed, this deletes the lock of the next holder",
        ));
    }
    hits
}

fn names_lock(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    source.items[call].args.iter().any(|arg| {
        let pieces = project.reach(file, &arg.span).pieces;
        pieces
            .iter()
            .filter(|piece| piece.span.len() < 160)
            .any(|piece| {
                names::has_any(
                    project.files[piece.file].low(&piece.span),
                    &["*lock", "mutex"],
                )
            })
    })
}

/// Whether a condition around the deletion, or a guard before it, compares the content of the lock.
fn asks_owner(file: &File, call: usize) -> bool {
    let compares = |text: &str| {
        names::has_any(
            text,
            &[
                "==", "!=", "equals", "eq(", "*.get(", "*owner", "*token", "*compare",
            ],
        )
    };
    let around = file
        .around(call)
        .any(|at| file.items[at].role == Role::If && compares(file.low(&file.items[at].value)));
    let Some(function) = file.function(call) else {
        return around;
    };
    let body = &file.items[function].span;
    let before = body.start..file.items[call].at();
    let guard = file.within(&before).any(|at| {
        let item = &file.items[at];
        let reads = names::has_any(file.low(&before), &["*.get(", "*get(", "watch"]);
        // The name `opsForValue()` does not mean that the condition compares a value.
        let head = file.low(&item.value).replace("opsforvalue", "");
        item.role == Role::If
            && reads
            && compares(&head)
            && names::has_any(
                &head,
                &["*token", "*owner", "*value", "*current", "*held", "*holder"],
            )
    });
    around
        || guard
        || names::has_any(
            file.low(body),
            &["*eval(", "*evalsha", "*redis.call", "script."],
        )
}

/// `DELETE FROM locks WHERE name = …` without the owner.
fn sql(file: &File) -> Vec<Hit> {
    let mut hits = Vec::new();
    for at in file.of(Role::Text) {
        let span = &file.items[at].span;
        let text = file.low(span);
        let Some(found) = text.find("delete from ") else {
            continue;
        };
        let table = text[found + 12..]
            .split_whitespace()
            .next()
            .unwrap_or_default();
        let owned = names::has_any(
            text,
            &[
                "*owner",
                "*token",
                "*fence",
                "*holder",
                "*locked_by",
                "*expires",
                "*nonce",
                "*lapse",
            ],
        );
        if table.contains("lock") && !table.contains("block") && text.contains("where") && !owned {
            hits.push(Hit::new(
                span.start + found,
                "this deletes the row of the lock, even if another process holds it",
            ));
        }
    }
    hits
}
