//! What is written at the end.

use std::path::Path;

use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::stages::Choices;
use crate::{
    plan::{self, Outcome},
    proxy::Failure,
};

/// Writes what the stages came to; what is there already is merged into, or left alone.
pub(super) fn write(folder: &Path, choices: &Choices) -> Result<Vec<Outcome>, Failure> {
    let adjust = |document: &mut DocumentMut| adjust(document, choices);
    match &choices.planned {
        Some((file, document, plan)) => {
            let job = plan::Job {
                description: file,
                out: folder,
                is_check: false,
                is_forced: false,
                upstream: Some(&choices.upstream),
                url: plan::PROXY,
                adjust: &adjust,
            };
            plan::write(&job, document, plan).map(|written| written.files)
        }
        None => plan::write_bare(folder, &choices.upstream, &adjust),
    }
}

/// Puts what was chosen into a new policy.
fn adjust(document: &mut DocumentMut, choices: &Choices) {
    document["store"] = match choices.store.as_slice() {
        [only] => value(only),
        several => value(several.iter().collect::<Array>()),
    };
    let policy = document
        .entry("policy")
        .or_insert(Item::Table(Table::new()));
    if choices.key_header != "Idempotency-Key" {
        policy["key"] = value(format!("header:{}", choices.key_header));
    }
    policy["scope"] = value(&choices.scope);
    policy["retention"] = value(&choices.retention);
    policy["wait"] = value(&choices.wait);
    if choices.natural_keys {
        add_natural_keys(document, choices);
    }
}

/// The client's key counts where there is one; what the request is about, where there is none.
fn add_natural_keys(document: &mut DocumentMut, choices: &Choices) {
    let Some((_, _, plan)) = &choices.planned else {
        return;
    };
    let Some(tables) = document["operation"].as_array_of_tables_mut() else {
        return;
    };
    for table in tables.iter_mut() {
        let matched = table.get("match").and_then(Item::as_str);
        let planned = plan
            .operations
            .iter()
            .find(|it| it.pattern.as_deref() == matched);
        if let Some(natural) = planned.and_then(|it| it.keys.natural.first()) {
            let client = format!("header:{}", choices.key_header);
            table["key"] = value(
                [client, natural.source.clone()]
                    .into_iter()
                    .collect::<Array>(),
            );
        }
    }
}
