//! `/operations`, `/store` and `/configuration`: what is in force.

use axum::{Extension, response::Response};
use maud::{Markup, html};
use refrain::{
    AuditLog, Operation, Store as _,
    policy::{Mode, units::Span},
    receipts::Standing,
    store::Guarantees,
};
use serde_json::{Map, Value};

use super::{
    Desk,
    frame::{self, Section, badge, notice, size},
    overview::{StoreView, readiness},
    record::guarantee,
};
use crate::admin::{
    health,
    operations::{in_force, witness},
};

pub(super) async fn operations(desk: Desk) -> Response {
    let policy = desk.admin.layer.policy();
    let guarded: Vec<_> = policy.operations().filter(|it| it.guarded).collect();
    let passed: Vec<_> = policy.operations().filter(|it| !it.guarded).collect();
    let contents = html! {
        h1 { "Operations" }
        p.lead { "The operations that the policy guards, with the guarantee that is promised and the one in force now." }
        @for warning in policy.warnings() {
            (notice("warn", &warning.name, &html! { p { (frame::sentence(&warning.message)) " " (frame::sentence(&warning.help)) } }))
        }
        @if guarded.is_empty() { p.soft { "The policy guards no operation." } }
        @else { (operation_table(&desk, &guarded)) }
        @if !passed.is_empty() {
            section aria-labelledby="unguarded" {
                h2 #unguarded { "Not guarded" }
                ul { @for operation in passed { li { code { (operation.name) } } } }
            }
        }
    };
    frame::page(&desk, Section::Operations, "Operations", &contents)
}

fn operation_table(desk: &Desk, operations: &[&Operation]) -> Markup {
    html! {
        table.list {
            caption.unseen { "Guarded operations" }
            thead { tr {
                th scope="col" { "Operation" }
                th scope="col" { "Mode" }
                th scope="col" { "Promised" }
                th scope="col" { "In force" }
                th scope="col" { "Outcome kept" }
                th scope="col" { "Audited" }
                th scope="col" { "Receipts" }
            } }
            tbody { @for operation in operations { tr {
                td data-name="Operation" {
                    a href={ "/records?" (records_query(&operation.name)) } { code.target { (operation.name) } }
                }
                td data-name="Mode" { (mode(operation.mode)) }
                td data-name="Promised" { (guarantee(operation.terms.guarantee)) }
                td data-name="In force" { (force(desk, operation)) }
                td data-name="Outcome kept" { (Span(operation.terms.retention)) span.soft { ", key refused " (Span(operation.terms.remember)) " more" } }
                td data-name="Audited" { @if operation.is_audited() { "yes" } @else { "no" } }
                td data-name="Receipts" { (receipts(desk, operation)) }
            } } }
        }
    }
}

fn records_query(operation: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("operation", operation).finish()
}

fn mode(mode: Mode) -> Markup {
    match mode {
        Mode::Enforce => html! { "enforce" },
        Mode::Observe => badge("warn", "observe: nothing is refused"),
    }
}

fn force(desk: &Desk, operation: &Operation) -> Markup {
    let promised = operation.terms.guarantee;
    match in_force(operation, witness(&desk.admin, operation)) {
        None => badge("warn", "none"),
        Some(it) if it == promised => html! { (guarantee(it)) },
        Some(it) => badge("fail", guarantee(it)),
    }
}

fn receipts(desk: &Desk, operation: &Operation) -> Markup {
    let Some(witness) = witness(&desk.admin, operation) else {
        return html! { span.soft { "none" } };
    };
    let text = match witness.standing() {
        Standing::Unproven => "none seen yet",
        Standing::Proven => "proven",
        Standing::Missing => "missing: at-most-once until one is seen",
    };
    html! { (text) @if witness.missing() > 0 { ", " (witness.missing()) " successes without one" } }
}

pub(super) async fn store(desk: Desk, Extension(view): Extension<StoreView>) -> Response {
    let trouble = health::why_not_ready(&desk.admin).await;
    let census = view.get(&desk.admin).await.census;
    let engine = desk.admin.layer.engine();
    let store = engine.store().clone();
    // It may wait for the disk.
    let bytes = tokio::task::spawn_blocking(move || store.bytes_on_disk()).await;
    let contents = html! {
        h1 { "Store" }
        (readiness(trouble))
        div.columns {
            section aria-labelledby="records" {
                h2 #records { "Records by state" }
                @match census {
                    Some(census) => dl.facts {
                        dt { "In flight" } dd.number { (census.in_flight) }
                        dt { "Completed" } dd.number { (census.completed) }
                        dt { "Unknown outcome" } dd.number { a href="/unknown" { (census.indeterminate) } }
                        dt { "Tombstones" } dd.number { (census.tombstones) }
                        dt { "Damaged" } dd.number {
                            (census.unreadable)
                            @if census.unreadable > 0 { ": run " code { "refrain store check" } }
                        }
                    },
                    None => p { "The store did not count its records in time." }
                }
                @if let Ok(Some(bytes)) = bytes { p { strong { (size(bytes)) } " allocated on disk" } }
            }
            (promises(engine.store().guarantees()))
            (audit(engine.audit()))
        }
    };
    frame::page(&desk, Section::Store, "Store", &contents)
}

fn promises(guarantees: Guarantees) -> Markup {
    let rows = [
        (
            "Survives a crash of the process",
            guarantees.survives_process,
        ),
        ("Survives a power failure", guarantees.survives_power),
        ("A failover may lose writes", guarantees.lossy_failover),
        ("Shared with other processes", guarantees.shared),
    ];
    html! {
        section aria-labelledby="promises" {
            h2 #promises { "What the store guarantees" }
            dl.facts { @for (name, holds) in rows { dt { (name) } dd { @if holds { "yes" } @else { "no" } } } }
        }
    }
}

fn audit(log: Option<&AuditLog>) -> Markup {
    html! {
        section aria-labelledby="audit" {
            h2 #audit { "Audit log" }
            @match log {
                None => p.soft { "This process has none." },
                Some(log) => dl.facts {
                    dt { "State" }
                    dd { @match log.trouble() { None => "writable", Some(trouble) => { (badge("fail", "not writable")) " " (trouble) } } }
                    dt { "Entries of this process" } dd.number { (log.entries()) }
                }
            }
        }
    }
}

pub(super) async fn configuration(desk: Desk) -> Response {
    let contents = html! {
        h1 { "Configuration" }
        p.lead { "The settings in force, with the defaults filled in. Secrets are left out." }
        @match &desk.admin.configuration {
            Value::Object(members) => (sections(members)),
            _ => p.soft { "This process shows no settings." },
        }
    };
    frame::page(&desk, Section::Configuration, "Configuration", &contents)
}

/// The plain settings first, then a section for each table, and for each list of tables.
fn sections(members: &Map<String, Value>) -> Markup {
    let is_plain = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => !items.iter().any(Value::is_object),
        _ => true,
    };
    let (plain, tables): (Vec<_>, Vec<_>) = members.iter().partition(|(_, value)| is_plain(value));
    html! {
        section aria-label="Process" { h2 { "Process" } (facts(plain.into_iter())) }
        @for (name, value) in tables {
            section aria-label=(name) {
                h2 { code { (name) } }
                @match value {
                    Value::Object(table) => (facts(table.iter())),
                    Value::Array(items) => @for item in items { (entry(item)) }
                    _ => {}
                }
            }
        }
    }
}

fn facts<'a>(members: impl Iterator<Item = (&'a String, &'a Value)>) -> Markup {
    html! { dl.facts { @for (name, value) in members { dt { code { (name) } } dd { (shown(value)) } } } }
}

/// A table of a list, such as an operation, by its name.
fn entry(item: &Value) -> Markup {
    let name = item.get("name").and_then(Value::as_str);
    html! {
        details {
            summary { code { (name.unwrap_or("without a name")) } }
            @if let Value::Object(members) = item { (facts(members.iter())) }
        }
    }
}

fn shown(value: &Value) -> Markup {
    match value {
        Value::Null => html! { span.soft { "not set" } },
        Value::String(text) => html! { code { (text) } },
        Value::Array(items) if items.is_empty() => html! { span.soft { "none" } },
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            html! { code { (texts.join(", ")) } }
        }
        other => html! { code { (other) } },
    }
}
