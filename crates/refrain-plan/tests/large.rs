//! Planning time of a large description. Real ones reach 5 MB and 1,500 operations; a user must not wait for minutes.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use refrain_openapi::Document;
use refrain_plan::{Options, plan, render};

/// Time limit. A debug build takes about ten times as long as a release build, and longer on a busy machine.
const ALLOWED: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 2 });

#[test]
fn five_megabytes_with_fifteen_hundred_operations_are_planned_in_two_seconds() {
    for text in [yaml(), json()] {
        assert!(text.len() > 5 << 20, "{} bytes", text.len());
        let start = Instant::now();
        let document = Document::parse(text.as_bytes(), "large").unwrap();
        let read = start.elapsed();
        let plan = plan(&document, &Options::default());
        let planned = start.elapsed();
        let merged = render::policy(&plan, None, None).unwrap();
        let again = render::policy(&plan, Some(&merged.text), None).unwrap();
        let taken = start.elapsed();
        assert_eq!(plan.operations.len(), 1_500);
        assert_eq!((again.text, again.drift), (merged.text, Vec::new()));
        println!(
            "{} bytes: read {read:?}, planned {planned:?}, written and merged {taken:?}",
            text.len()
        );
        assert!(taken < ALLOWED, "{taken:?}");
    }
}

fn yaml() -> String {
    let prose =
        "Says at length what it does, and what it does not do, and who may ask for it. ".repeat(12);
    let mut text = String::from("openapi: 3.0.3\ninfo: {title: Large, version: '1'}\npaths:\n");
    for n in 0..500 {
        write!(text, "  /things{n}:\n    get:\n      summary: List things\n      description: {prose}\n      responses:\n        '200': {{description: ok, content: {{application/json: {{schema: {{type: array, items: {{$ref: '#/components/schemas/Thing{n}'}}}}}}}}}}\n").unwrap();
        write!(text, "    post:\n      operationId: createThing{n}\n      description: {prose}\n      requestBody: {{content: {{application/json: {{schema: {{$ref: '#/components/schemas/Thing{n}'}}}}}}}}\n      responses:\n        '201': {{description: made, content: {{application/json: {{schema: {{$ref: '#/components/schemas/Thing{n}'}}}}}}}}\n").unwrap();
        write!(text, "  /things{n}/{{id}}/cancel:\n    post:\n      description: {prose}\n      parameters: [{{name: id, in: path, required: true, schema: {{type: string}}}}]\n      responses:\n        '200': {{description: done, content: {{application/json: {{schema: {{$ref: '#/components/schemas/Thing{n}'}}}}}}}}\n").unwrap();
    }
    text.push_str("components:\n  schemas:\n");
    for n in 0..500 {
        write!(text, "    Thing{n}:\n      type: object\n      properties:\n        id: {{type: string}}\n        next: {{$ref: '#/components/schemas/Thing{}'}}\n", (n + 1) % 500).unwrap();
        for member in 0..100 {
            writeln!(text, "        member_{member}: {{type: string, description: 'What it is, and why it is there at all.'}}").unwrap();
        }
    }
    text
}

fn json() -> String {
    let document = Document::parse(yaml().as_bytes(), "large").unwrap();
    serde_json::to_string_pretty(document.root()).unwrap()
}
