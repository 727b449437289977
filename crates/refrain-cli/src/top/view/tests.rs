//! A frame must fit any terminal, and no string of a server or a client may control it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{super::data::Fetched, *};

fn state(requests: Vec<Value>, operation: &str) -> State {
    let sample =
        |executed: u64| json!({ "seconds": 5.0, "executed": executed, "executed_p99_us": 12_000 });
    let fetched = Fetched {
        overview: json!({
            "ready": true,
            "version": "0.1.0",
            "store": ["file:refrain-data"],
            "uptime_seconds": 3_725,
            "records": { "completed": 1_204, "in-flight": 3, "indeterminate": 2 },
            "unknown": { "oldest_seconds": 3_725 },
            "operations": [{
                "operation": operation,
                "requests": { "executed": 1_204, "unknown": 2 },
                "executed_p99_us": 12_000,
            }],
            "samples": [sample(0), sample(10), sample(61)],
        }),
        requests,
        unknown: Some(vec![json!({
            "id": "42c32fd7266a105d0a10901d7bffb60d",
            "operation": operation,
            "reason": "timeout",
            "first_seen": "2026-11-19T20:35:34.269Z",
            "node": "payments-1",
        })]),
        workers: vec![json!({
            "name": "billing",
            "counts": [["completed", 41], ["dead-lettered", 2]],
            "lag": 7,
            "trouble": format!("the broker is gone{operation}"),
        })],
    };
    let mut state = State::new("http://127.0.0.1:8378", Duration::from_secs(2));
    assert!(state.apply(Ok(fetched)).is_none());
    state
}

fn request(path: &str) -> Value {
    json!({
        "seq": 7,
        "time": "2026-11-19T20:35:50.878Z",
        "method": "POST",
        "path": path,
        "outcome": "refused",
        "code": "key-reused",
        "status": 422,
        "total_us": 1_500,
        "record": "922db9b8c7f5d310591627c321d3ea16",
    })
}

fn text(state: &State, size: Size) -> Vec<String> {
    let lines = frame(state, size, true);
    lines.iter().map(ToString::to_string).collect()
}

#[test]
fn a_frame_shows_everything_that_an_operator_looks_for() {
    let state = state(vec![request("/v1/payments")], "POST /v1/payments");
    let shown = text(&state, Size::unlimited(120)).join("\n");
    for part in [
        "Refrain 0.1.0  ready  up 1h 2m  http://127.0.0.1:8378",
        "store file:refrain-data  1204 completed, 3 in flight",
        "UNKNOWN OUTCOMES: 2, oldest 1h 2m",
        "12.2/s ▁▃█",
        "POST /v1/payments",
        "WORKERS                                                            LAG   RUNNING COMPLETED",
        "7         0        41         0         0         2\n  the broker is gone",
        "42c32fd7266a105d0a10901d7bffb60d  timeout    2026-11-19 20:35:34",
        "20:35:50.878  refused   422   1.5 ms  POST /v1/payments  key-reused  922db9b8c7f5d310591627c321d3ea16",
    ] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
}

#[test]
fn every_frame_fits_its_terminal() {
    let mut state = state(
        vec![request("/v1/payments"); 200],
        "POST /v1/a/very/long/name/of/an/operation/{id}",
    );
    for is_unknown_only in [false, true] {
        state.is_unknown_only = is_unknown_only;
        for columns in [20, 40, 60, 80, 120, 500] {
            for rows in [5, 10, 24, 50] {
                let size = Size {
                    columns,
                    rows: Some(rows),
                };
                let lines = frame(&state, size, true);
                assert_eq!(lines.len(), rows, "{columns} x {rows}");
                for line in lines {
                    let len: usize = line.0.iter().map(|(_, text)| text.chars().count()).sum();
                    assert!(len <= columns, "{len} > {columns}: {line}");
                }
            }
        }
    }
}

#[test]
fn a_narrow_terminal_has_the_important_columns() {
    let state = state(Vec::new(), "POST /v1/payments");
    let size = Size {
        columns: 40,
        rows: Some(40),
    };
    let shown = text(&state, size).join("\n");
    assert!(shown.contains("EXECUTED   UNKNOWN\n"), "{shown}");
    assert!(shown.contains("POST /v1/payments "), "{shown}");
    assert!(
        shown.contains("42c32fd7266a105d0a10901d7bffb60d"),
        "{shown}"
    );
}

/// A client chooses the path, and a policy the name of the operation.
#[test]
fn control_characters_are_escaped() {
    let hostile = "/\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}";
    let mut state = state(vec![request(hostile)], hostile);
    for is_unknown_only in [false, true] {
        state.is_unknown_only = is_unknown_only;
        for line in text(&state, Size::unlimited(200)) {
            let is_unsafe = |it: char| it.is_control() || it == '\u{202e}';
            assert!(!line.contains(is_unsafe), "{line:?}");
        }
    }
    assert!(
        text(&state, Size::unlimited(200))
            .join("")
            .contains("\\u{1b}[2J")
    );
}

#[test]
fn a_lost_connection_keeps_what_was_shown() {
    use crate::client::RequestError;
    let mut state = state(vec![request("/v1/payments")], "POST /v1/payments");
    let lost = RequestError::Unreachable("connection refused".into());
    assert!(state.apply(Err(lost)).is_none());
    let shown = text(&state, Size::unlimited(120)).join("\n");
    assert!(
        shown.contains("reconnecting: connection refused"),
        "{shown}"
    );
    assert!(shown.contains("key-reused"), "{shown}");
    let wrong = RequestError::usage("the token is wrong".into());
    assert!(state.apply(Err(wrong)).is_some());
}
