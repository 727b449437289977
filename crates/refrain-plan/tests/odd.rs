//! Malformed and tangled descriptions: planning always ends, without a panic and with bounded memory.

use std::fmt::Write as _;

use refrain_openapi::Document;
use refrain_plan::{Options, plan, render};
use serde_json::{Value, json};

/// Limit on the peak memory of the test process, other tests included.
const PEAK_KIB_MAX: u64 = 512 << 10;

fn planned(text: &str) -> usize {
    let Ok(document) = Document::parse(text.as_bytes(), "odd.json") else {
        return 0;
    };
    let plan = plan(&document, &Options::default());
    let policy = render::policy(&plan, None, None).unwrap();
    assert!(policy.text.parse::<toml_edit::DocumentMut>().is_ok());
    plan.operations.len()
}

#[test]
fn a_wrong_type_anywhere_is_no_panic() {
    let good = json!({
        "openapi": "3.1.0",
        "info": {"title": "Odd", "version": "1"},
        "servers": [{"url": "https://odd.example/v1"}],
        "security": [{"key": []}],
        "paths": {"/payments/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
            "post": {
                "operationId": "pay", "summary": "Pay", "description": "Pays.", "tags": ["money"],
                "requestBody": {"content": {"application/json": {"schema": {
                    "type": "object", "required": ["amount"],
                    "properties": {"amount": {"type": "integer", "enum": [1, 2]}, "to": {"$ref": "#/components/schemas/Party"}},
                }}}},
                "responses": {"201": {"description": "ok", "headers": {"Location": {"schema": {"type": "string"}}},
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Party"}}}}},
                "callbacks": {"done": {"{$request.body#/url}": {"post": {"responses": {"200": {"description": "ok"}}}}}},
                "x-idempotent": true,
            },
        }},
        "webhooks": {"paid": {"post": {"responses": {"200": {"description": "ok"}}}}},
        "components": {"schemas": {"Party": {"allOf": [{"$ref": "#/components/schemas/Party"}, {"properties": {"iban": {"type": "string"}}}]}}},
    });
    assert_eq!(planned(&good.to_string()), 3);
    let mut places = Vec::new();
    gather(&good, String::new(), &mut places);
    assert!(places.len() > 70, "{} places", places.len());
    let wrong = [
        json!(null),
        json!(-7.5),
        json!("#/odd"),
        json!([[]]),
        json!({"$ref": 7}),
        json!({"": {}}),
        json!(true),
    ];
    for place in &places {
        for value in &wrong {
            let mut odd = good.clone();
            *odd.pointer_mut(place).unwrap() = value.clone();
            planned(&odd.to_string());
        }
    }
}

fn gather(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            gather(value, format!("{at}/{name}"), places);
        }),
        Value::Array(items) => items.iter().enumerate().for_each(|(n, value)| {
            gather(value, format!("{at}/{n}"), places);
        }),
        _ => {}
    }
    places.push(at);
}

#[test]
#[cfg(target_os = "linux")]
fn large_and_tangled_descriptions_stay_within_half_a_gibibyte() {
    let mut large = String::from("openapi: 3.1.0\npaths:\n");
    let prose = "It does what its name says, and says so at length. ".repeat(20);
    while large.len() < 10 << 20 {
        let n = large.len();
        write!(large, "  /p{n}/{{id}}/cancel:\n    post:\n      description: {prose}\n      responses: {{'200': {{description: done}}}}\n").unwrap();
    }
    assert!(planned(&large) > 9_000);
    let values: Vec<_> = (0..200_000).map(|n| format!("\"value-{n}\"")).collect();
    let wide = format!(
        "{{\"openapi\": \"3.1.0\", \"paths\": {{\"/a\": {{\"post\": {{\"requestBody\": {{\"content\": {{\"application/json\": {{\"schema\": {{\"properties\": {{\"kind\": {{\"enum\": [{}]}}}}}}}}}}}}}}}}}}}}",
        values.join(",")
    );
    assert_eq!(planned(&wide), 1);
    // Every schema has every schema as a member: expanded, a tree of depth n would have 60^n nodes.
    let names: Vec<_> = (0..60).map(|n| format!("S{n}")).collect();
    let members: serde_json::Map<_, _> = names
        .iter()
        .map(|name| {
            (
                name.to_lowercase(),
                json!({"$ref": format!("#/components/schemas/{name}")}),
            )
        })
        .collect();
    let schemas: serde_json::Map<_, _> = names
        .iter()
        .map(|name| {
            (
                name.clone(),
                json!({"type": "object", "properties": members}),
            )
        })
        .collect();
    let tangled = json!({"openapi": "3.1.0", "components": {"schemas": schemas}, "paths": {"/a": {"post": {
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}},
        "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/S1"}}}}},
    }}}});
    assert_eq!(planned(&tangled.to_string()), 1);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("peak: {} MiB", peak >> 10);
    assert!(peak < PEAK_KIB_MAX, "{peak} KiB");
}
