//! Records as text.

use std::time::Duration;

use refrain::policy::units::Span;
use serde_json::Value;

use crate::output::{harmless, say};

/// Prints records as rows of a table, with a heading before the first.
pub(super) fn rows(records: &[Value], is_first: bool) {
    if is_first && !records.is_empty() {
        let heading = [
            "ID",
            "STATE",
            "FIRST SEEN",
            "DETAIL",
            "TIME LEFT",
            "REQUEST",
        ];
        say(row(heading));
    }
    for record in records {
        let text = |name: &str| value_text(&record[name]);
        let detail = match record["state"].as_str() {
            Some("completed") => format!("{}, {} bytes", text("status"), text("body_bytes")),
            Some("indeterminate") => text("reason"),
            Some("in-flight") => format!("attempt {}", text("attempts")),
            _ => "-".into(),
        };
        let cells = [
            text("id"),
            text("state"),
            text("first_seen"),
            detail,
            time_left(record),
            request(record),
        ];
        say(row(cells.each_ref().map(String::as_str)));
    }
}

fn row([id, state, first_seen, detail, left, request]: [&str; 6]) -> String {
    let line = format!("{id:32}  {state:13}  {first_seen:24}  {detail:20}  {left:22}  {request}");
    line.trim_end().to_owned()
}

/// The request of a record: its target, then its operation if that has another name, and its key if that is kept.
fn request(record: &Value) -> String {
    let known = |name: &str| record[name].as_str().filter(|text| !text.is_empty());
    let operation = known("operation");
    let target = known("target").or(operation).unwrap_or("-");
    let mut shown = target.to_owned();
    let path = target.split('?').next().unwrap_or(target);
    if let Some(operation) = operation.filter(|name| *name != path) {
        shown.push_str(&format!(" (operation {operation})"));
    }
    if let Some(key) = known("key") {
        shown.push_str(&format!(" key {key}"));
    }
    harmless(&shown.replace(['\n', '\t'], " "), &[])
}

const COLUMNS: [&str; 11] = [
    "id",
    "state",
    "operation",
    "target",
    "first_seen",
    "last_change",
    "attempts",
    "node",
    "status",
    "reason",
    "key",
];

/// Prints records as comma-separated values (RFC 4180), with a heading before the first.
pub(super) fn csv(records: &[Value], is_first: bool) {
    if is_first {
        say(COLUMNS.join(","));
    }
    for record in records {
        let cell = |name: &&str| match &record[*name] {
            Value::Null => String::new(),
            value => csv_cell(&value_text(value)),
        };
        let cells: Vec<_> = COLUMNS.iter().map(cell).collect();
        say(cells.join(","));
    }
}

/// A cell in quotes. Spreadsheets would run text that begins like a formula, so it begins with an apostrophe.
fn csv_cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    let mark = if formula { "'" } else { "" };
    format!("\"{mark}{}\"", text.replace('"', "\"\""))
}

/// The time until the record's next change of state.
fn time_left(record: &Value) -> String {
    let times = [
        ("lease_left_seconds", "lease"),
        ("settle_left_seconds", "settles"),
        ("retention_left_seconds", "kept"),
        ("remember_left_seconds", "remembered"),
    ];
    let time = |(name, word): (&str, &str)| Some(format!("{word} {}", span(&record[name])?));
    times
        .into_iter()
        .find_map(time)
        .unwrap_or_else(|| "-".into())
}

/// Prints one record: a line for each field, and then its body.
pub(super) fn record(record: &Value) {
    let Some(facts) = record.as_object() else {
        return;
    };
    let first = [
        "id",
        "state",
        "reason",
        "status",
        "operation",
        "target",
        "key",
        "first_seen",
        "last_change",
        "node",
        "fence",
    ];
    let rest = facts.keys().map(String::as_str);
    let rest = rest.filter(|name| !first.contains(name) && !is_part(name));
    for name in first.into_iter().chain(rest) {
        match &record[name] {
            Value::Null => {}
            value => fact(name, value),
        }
    }
    for attempt in record["history"].as_array().into_iter().flatten() {
        show_attempt(attempt);
    }
    for part in ["headers", "trailers"] {
        for pair in record[part].as_array().into_iter().flatten() {
            let (name, value) = (value_text(&pair[0]), value_text(&pair[1]));
            say(format_args!("{part:22}{name}: {value}"));
        }
    }
    if let Some(body) = record["body"].as_str().filter(|body| !body.is_empty()) {
        say(format_args!("\n{}", harmless(body, &['\n', '\t'])));
    }
    if let Some(body) = record["body_base64"].as_str() {
        say(format_args!("\n(base64) {body}"));
    }
}

fn is_part(name: &str) -> bool {
    ["headers", "trailers", "body", "body_base64", "history"].contains(&name)
}

/// Prints the start of an attempt, and a line for each of its ends.
fn show_attempt(attempt: &Value) {
    let text = |name: &str| value_text(&attempt[name]);
    let (at, number, node, fence) = (text("at"), text("attempt"), text("node"), text("fence"));
    let label = format!("attempt {number}");
    say(format_args!(
        "{label:22}{at} started by {node}, fence {fence}"
    ));
    if attempt["trace_id"].is_string() {
        say(format_args!("{:22}trace id {}", "", text("trace_id")));
    }
    for end in attempt["ends"].as_array().into_iter().flatten() {
        let (at, name) = (value_text(&end["at"]), value_text(&end["end"]));
        let what = match name.as_str() {
            "unknown" => format!("outcome unknown: {}", value_text(&end["reason"])),
            "no-effect" => "ended without effect".into(),
            _ => name,
        };
        say(format_args!("{:22}{at} {what}", ""));
    }
}

fn fact(name: &str, value: &Value) {
    let (name, value) = match name.strip_suffix("_seconds") {
        Some(name) => (name, span(value).unwrap_or_default()),
        None => (name, value_text(value)),
    };
    say(format_args!("{:22}{value}", name.replace('_', " ")));
}

/// A value as text, on a terminal.
pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => harmless(text, &['\n', '\t']),
        other => other.to_string(),
    }
}

/// Seconds as a duration, rounded up to whole seconds.
fn span(value: &Value) -> Option<String> {
    let seconds = value.as_f64()?;
    let seconds = Duration::try_from_secs_f64(seconds.ceil()).ok()?;
    Some(Span(seconds).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_a_spreadsheet_would_run_begin_with_an_apostrophe() {
        for start in ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"] {
            let cell = csv_cell(&format!("{start}1"));
            assert_eq!(cell, format!("\"'{start}1\""));
        }
        assert_eq!(csv_cell("POST /a=\"1\""), "\"POST /a=\"\"1\"\"\"");
    }
}
