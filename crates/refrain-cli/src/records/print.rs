//! Records as text.

use std::time::Duration;

use refrain::policy::units::Span;
use serde_json::Value;

use crate::output::say;

/// Prints records as rows of a table, with a heading before the first.
pub(super) fn rows(records: &[Value], is_first: bool) {
    if is_first && !records.is_empty() {
        say(row(["ID", "STATE", "DETAIL", "TIME LEFT", "FENCE"]));
    }
    for record in records {
        let text = |name: &str| value_text(&record[name]);
        let what = match record["state"].as_str() {
            Some("completed") => format!("{}, {} bytes", text("status"), text("body_bytes")),
            Some("indeterminate") => text("reason"),
            Some("in-flight") => format!("attempt {}", text("attempts")),
            _ => "-".into(),
        };
        let cells = [
            text("id"),
            text("state"),
            what,
            time_left(record),
            text("fence"),
        ];
        say(row(cells.each_ref().map(String::as_str)));
    }
}

fn row([id, state, what, left, fence]: [&str; 5]) -> String {
    let line = format!("{id:32}  {state:13}  {what:20}  {left:16}  {fence}");
    line.trim_end().to_owned()
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
    let first = ["id", "state", "reason", "status", "fence"];
    let rest = facts.keys().map(String::as_str);
    let rest = rest.filter(|name| !first.contains(name) && !is_part(name));
    for name in first.into_iter().chain(rest) {
        match &record[name] {
            Value::Null => {}
            value => fact(name, value),
        }
    }
    for part in ["headers", "trailers"] {
        for pair in record[part].as_array().into_iter().flatten() {
            let (name, value) = (value_text(&pair[0]), value_text(&pair[1]));
            say(format_args!("{part:22}{name}: {value}"));
        }
    }
    if let Some(body) = record["body"].as_str().filter(|body| !body.is_empty()) {
        say(format_args!("\n{}", harmless(body)));
    }
    if let Some(body) = record["body_base64"].as_str() {
        say(format_args!("\n(base64) {body}"));
    }
}

fn is_part(name: &str) -> bool {
    ["headers", "trailers", "body", "body_base64"].contains(&name)
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
        Value::String(text) => harmless(text),
        other => other.to_string(),
    }
}

/// Seconds as a duration, rounded up to whole seconds.
fn span(value: &Value) -> Option<String> {
    let seconds = value.as_f64()?;
    let seconds = Duration::try_from_secs_f64(seconds.ceil()).ok()?;
    Some(Span(seconds).to_string())
}

/// Escapes control characters, so that text cannot control the terminal.
fn harmless(text: &str) -> String {
    let shown = |char: char| match char.is_control() && char != '\n' && char != '\t' {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(shown).collect()
}
