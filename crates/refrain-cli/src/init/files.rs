//! Writes the files at the end of the guide.

use std::path::Path;

use refrain_plan::render::class_name;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

use super::stages::{Choices, Decision};
use crate::{
    plan::{self, MARK, Outcome},
    proxy::Failure,
};

/// Writes the policy and the other files of the plan; existing files keep their settings.
pub(super) fn write(folder: &Path, choices: &Choices) -> Result<Vec<Outcome>, Failure> {
    let adjust = |document: &mut DocumentMut, is_new: bool| adjust(document, is_new, choices);
    let (main, messages) = match (&choices.requests, &choices.messages) {
        (Some(requests), messages) => (requests, messages.as_ref()),
        (None, Some(messages)) => (messages, None),
        (None, None) => return plan::write_bare(folder, &choices.upstream, &adjust),
    };
    let job = plan::Job {
        description: &main.file,
        out: folder,
        is_check: false,
        is_forced: false,
        upstream: Some(&choices.upstream),
        url: plan::PROXY,
        messages,
        adjust: &adjust,
    };
    plan::write(&job, &main.document, &main.plan).map(|written| written.files)
}

/// Sets the choices in a new policy, and adds missing settings to an existing one.
fn adjust(document: &mut DocumentMut, is_new: bool, choices: &Choices) {
    let top = document.as_table_mut();
    let store = match choices.store.as_slice() {
        [only] => Value::from(only),
        several => several.iter().collect::<Array>().into(),
    };
    put(top, is_new, "store", store);
    put(top, false, "upstream", &choices.upstream);
    if top.get("policy").is_none() {
        let mut policy = Table::new();
        // Place it before the operations.
        policy.set_position(Some(-1));
        policy.decor_mut().set_prefix("\n");
        top.insert("policy", Item::Table(policy));
    }
    let policy = top.get_mut("policy").and_then(Item::as_table_like_mut);
    if let Some(policy) = policy {
        if choices.key_header != super::KEY_HEADER {
            let key = format!("header:{}", choices.key_header);
            put(policy, is_new, "key", key);
        }
        put(policy, is_new, "scope", &choices.scope);
        put(policy, is_new, "retention", &choices.retention);
        put(policy, is_new, "wait", &choices.wait);
    }
    let operations = top.get_mut("operation");
    let Some(tables) = operations.and_then(Item::as_array_of_tables_mut) else {
        return;
    };
    for table in tables.iter_mut() {
        decide(table, &choices.decisions);
        if choices.natural_keys {
            add_natural_key(table, choices);
        }
    }
}

fn put(table: &mut dyn TableLike, is_over: bool, name: &str, set: impl Into<Value>) {
    if is_over || table.get(name).is_none() {
        table.insert(name, value(set));
    }
}

/// Writes a person's decision about an operation. The mark keeps the class that the description suggests, so that the next plan keeps the decision.
fn decide(table: &mut Table, decisions: &[Decision]) {
    let matched = table.get("match").and_then(Item::as_str);
    let Some(decision) = decisions
        .iter()
        .find(|it| Some(it.pattern.as_str()) == matched)
    else {
        return;
    };
    let (read, chosen) = (class_name(decision.read), class_name(decision.chosen));
    let above = table.decor().prefix().and_then(|it| it.as_str());
    let above: Vec<_> = above
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.starts_with("# unsure (") && !line.starts_with("# decided: "))
        .collect();
    let mut lines = Vec::new();
    for line in above {
        match line.starts_with(MARK) {
            true => {
                lines.push(format!("{MARK}{read}"));
                lines.push(format!("# decided: {chosen}"));
            }
            false => lines.push(line.to_owned()),
        }
    }
    table.decor_mut().set_prefix(lines.join("\n") + "\n");
    if chosen != read || table.contains_key("class") {
        table.insert("class", value(chosen));
    }
}

/// Adds a natural key after the client's own, for requests that carry no key.
fn add_natural_key(table: &mut Table, choices: &Choices) {
    let matched = table.get("match").and_then(Item::as_str);
    let operations = choices.requests.iter().flat_map(|it| &it.plan.operations);
    let mut planned = operations.filter(|it| it.pattern.as_deref() == matched);
    if let Some(natural) = planned.next().and_then(|it| it.keys.natural.first()) {
        let client = format!("header:{}", choices.key_header);
        let keys: Array = [client, natural.source.clone()].into_iter().collect();
        table["key"] = value(keys);
    }
}
