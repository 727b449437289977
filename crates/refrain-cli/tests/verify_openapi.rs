//! `refrain verify --openapi` must test a service from its description alone, and send nothing without consent.
//!
//! The service rejects invalid requests, so a case that passes proves that the generated bodies are valid. The same
//! service is described three times: OpenAPI 3.0 as YAML, 3.1 as JSON, and Swagger 2.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;
mod verify_support;

use std::{
    collections::HashSet,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use serde_json::{Value, json};
use support::{Proxy, Starting, Upstream, answer};
use verify_support::{json as report, refrain};

/// Orders with a unique reference, notes about existing orders, refunds as forms. No keys.
fn shop() -> Upstream {
    let (count, taken) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
    let orders = Arc::new(Mutex::new(HashSet::new()));
    Upstream::start(move |seen, stream| {
        let (method, target) = seen.start().split_once(' ').unwrap();
        let path = target.split('?').next().unwrap();
        let order = path.strip_prefix("/v1/orders/");
        let order = order.and_then(|rest| rest.strip_suffix("/notes"));
        let id = || format!("o{}", count.fetch_add(1, SeqCst));
        let created = |id: &str| json!({ "id": id }).to_string();
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let (status, said) = match (method, path) {
            ("POST", "/v1/orders") => {
                let reference = body["reference"].as_str().unwrap_or_default().to_owned();
                let is_good = body["amount"].as_i64().is_some_and(|amount| amount >= 5)
                    && body["currency"].as_str().is_some_and(|it| it.len() == 3)
                    && seen.header("x-api-version") == Some("2")
                    && !reference.is_empty();
                match is_good {
                    false => ("400 Bad Request", "a bad order".into()),
                    true if !taken.lock().unwrap().insert(reference) => {
                        ("409 Conflict", "the reference is taken".into())
                    }
                    true => {
                        let id = id();
                        orders.lock().unwrap().insert(id.clone());
                        ("201 Created", created(&id))
                    }
                }
            }
            ("POST", _) if order.is_some_and(|id| orders.lock().unwrap().contains(id)) => {
                match body["text"].is_string() {
                    true => ("201 Created", created(&id())),
                    false => ("400 Bad Request", "a bad note".into()),
                }
            }
            ("POST", "/v1/refunds") if is_refund(&text) => ("201 Created", created(&id())),
            ("POST", "/v1/shops/7/things") => ("201 Created", created(&id())),
            ("POST", "/v1/refused") => ("403 Forbidden", "not for you".into()),
            _ => ("404 Not Found", "not found".into()),
        };
        answer(stream, status, &[], said.as_bytes())
    })
}

fn is_refund(form: &str) -> bool {
    let mut pairs: Vec<_> = form.split('&').collect();
    pairs.sort_unstable();
    matches!(&pairs[..], [amount, "order=o0"] if amount.starts_with("amount="))
}

/// The description in OpenAPI 3.
fn description(version: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    json!({
        "openapi": version,
        "info": {"title": "shop", "version": "1"},
        "servers": [{"url": "https://shop.example/v1"}],
        "paths": {
            "/orders": {
                "get": {"responses": {}},
                "post": {
                    "parameters": [
                        {"name": "Idempotency-Key", "in": "header", "required": true, "schema": {"type": "string"}},
                        {"name": "X-Api-Version", "in": "header", "required": true, "schema": {"enum": ["2"]}}],
                    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}}}},
            "/orders/{id}/notes": {
                "parameters": [parameter("id")],
                "post": {"requestBody": {"content": {"application/json": {"schema":
                    {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}}}}}},
            "/refunds": {"post": {"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema":
                {"type": "object", "required": ["order", "amount"], "properties": {
                    "order": {"type": "string", "example": "o0"},
                    "amount": {"type": "integer", "minimum": 2}}}}}}}},
            "/shops/{shop}/things": {"parameters": [parameter("shop")], "post": {}},
            "/refused": {"post": {}},
            "/uploads": {"post": {"requestBody": {"content": {"multipart/form-data": {}}}}},
            "/settings": {"put": {}}
        },
        "components": {"schemas": {"Order": {
            "type": "object", "required": ["amount", "currency", "reference"],
            "properties": {
                "id": {"type": "string", "readOnly": true},
                "amount": {"type": "integer", "minimum": 5},
                "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "reference": {"type": "string"}}}}}
    })
}

const SWAGGER: &str = r##"
swagger: "2.0"
info: {title: shop, version: "1"}
basePath: /v1
paths:
  /orders:
    post:
      parameters:
        - {name: Idempotency-Key, in: header, required: true, type: string}
        - {name: X-Api-Version, in: header, required: true, type: string, enum: ["2"]}
        - {name: order, in: body, schema: {$ref: "#/definitions/Order"}}
  /orders/{id}/notes:
    post:
      parameters:
        - {name: id, in: path, required: true, type: string}
        - {name: note, in: body, schema: {type: object, required: [text], properties: {text: {type: string}}}}
  /refunds:
    post:
      consumes: [application/x-www-form-urlencoded]
      parameters:
        - {name: order, in: formData, required: true, type: string, x-example: o0}
        - {name: amount, in: formData, required: true, type: integer, minimum: 2}
  /shops/{shop}/things:
    post:
      parameters: [{name: shop, in: path, required: true, type: string}]
  /refused: {post: {}}
  /uploads:
    post:
      consumes: [multipart/form-data]
      parameters: [{name: file, in: formData, required: true, type: file}]
  /settings: {put: {}}
definitions:
  Order:
    type: object
    required: [amount, currency, reference]
    properties:
      id: {type: string, readOnly: true}
      amount: {type: integer, minimum: 5}
      currency: {type: string, pattern: "^[A-Z]{3}$"}
      reference: {type: string}
"##;

/// A folder with the description in a file.
struct Described {
    _folder: tempfile::TempDir,
    file: String,
}

fn described(name: &str, text: &str) -> Described {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join(name);
    fs::write(&file, text).unwrap();
    Described {
        _folder: folder,
        file: file.display().to_string(),
    }
}

fn yaml() -> Described {
    // YAML allows JSON syntax; the comment in the first line makes it invalid JSON.
    let text = format!("# a shop\n{}", description("3.0.3"));
    described("openapi.yaml", &text)
}

fn guarded(upstream: &Upstream) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start()
}

fn verify(url: &str, described: &Described, more: &[&str]) -> Output {
    let mut all = vec![url, "--openapi", &described.file, "--json", "-"];
    all.extend(["--case", "sequential-duplicate", "--case", "other-body"]);
    all.extend(more);
    refrain(&all).output().unwrap()
}

/// Operations that were tested, and those left out with the reason.
fn told(report: &Value) -> (Vec<&str>, Vec<(&str, &str)>) {
    let (mut tested, mut left_out) = (Vec::new(), Vec::new());
    for operation in report["operations"].as_array().unwrap() {
        let name = operation["operation"].as_str().unwrap();
        match operation["left_out"].as_str() {
            Some(why) => left_out.push((name, why)),
            None => tested.push(name),
        }
    }
    left_out.sort_unstable();
    (tested, left_out)
}

const TESTED: [&str; 4] = [
    "POST /orders",
    "POST /orders/{id}/notes",
    "POST /refunds",
    "POST /shops/{shop}/things",
];

#[test]
fn a_service_is_tested_from_its_description_in_every_language() {
    let upstream = shop();
    let proxy = guarded(&upstream);
    let url = format!("http://{}", proxy.address);
    for described in [
        yaml(),
        described("openapi.json", &description("3.1.0").to_string()),
        described("swagger.yaml", SWAGGER),
    ] {
        let output = verify(&url, &described, &["--yes", "--param", "shop=7"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{}: {said}", described.file);
        let report = report(&output);
        let (tested, out) = told(&report);
        assert_eq!(tested, TESTED, "{said}");
        let expected = [
            ("POST /refused", "returned 403"),
            ("POST /uploads", "multipart/form-data"),
            ("PUT /settings", "idempotent by definition"),
        ];
        assert_eq!(out.len(), expected.len(), "{out:?}");
        for ((name, why), (wanted, word)) in out.iter().zip(expected) {
            assert_eq!(*name, wanted);
            assert!(why.contains(word), "{name}: {why}");
        }
    }
}

#[test]
fn holes_are_found_in_each_operation() {
    let upstream = shop();
    let url = format!("http://{}", upstream.address);
    let output = verify(&url, &yaml(), &["--yes"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = report(&output);
    let (tested, out) = told(&report);
    assert_eq!(tested, TESTED[..3]);
    let things = out.iter().find(|(name, _)| *name == TESTED[3]).unwrap();
    assert!(things.1.contains("--param shop="), "{}", things.1);
    let failed: Vec<_> = report["operations"].as_array().unwrap()[1..3]
        .iter()
        .map(|it| it["cases"][0]["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["fail", "fail"], "{report:#}");
}

#[test]
fn one_operation_can_be_named() {
    let upstream = shop();
    let proxy = guarded(&upstream);
    let url = format!("http://{}", proxy.address);
    let output = verify(&url, &yaml(), &["--yes", "--op", "POST /refunds"]);
    let report = report(&output);
    assert_eq!(told(&report), (vec!["POST /refunds"], vec![]));
    let unknown = verify(&url, &yaml(), &["--yes", "--op", "POST /none"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(64), "{said}");
    assert!(said.contains("POST /refunds"), "{said}");
}

#[test]
fn nothing_is_sent_before_confirmation() {
    let upstream = shop();
    let url = format!("http://{}", upstream.address);
    let described = yaml();
    let output = verify(&url, &described, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in [
        "POST /orders\n",
        r#"{"amount":5,"currency":"AAA","reference":"{{unique}}"}"#,
        "left out: POST /shops/{shop}/things: it needs an existing resource; pass --param shop=…",
        "pass --yes",
    ] {
        assert!(said.contains(word), "`{word}` is not in {said}");
    }
    assert_eq!(upstream.count(), 0);
    for (answer, code, is_sent) in [("n", 2, false), ("y", 1, true)] {
        let output = asked(
            answer,
            &[&url, "--openapi", &described.file, "--op", "POST /refunds"],
        );
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(upstream.count() > 0, is_sent, "{answer}");
    }
}

/// Runs the command on a terminal and types `answer` at its question.
fn asked(answer: &str, arguments: &[&str]) -> Output {
    const TERMINAL: &str = r#"
import os, pty, sys
pid, screen = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
while b"[y/N]" not in seen:
    seen += os.read(screen, 4096)
os.write(screen, sys.argv[1].encode() + b"\n")
try:
    while os.read(screen, 4096):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let case = ["--case", "sequential-duplicate"];
    Command::new("python3")
        .args([
            "-c",
            TERMINAL,
            answer,
            env!("CARGO_BIN_EXE_refrain"),
            "verify",
        ])
        .args(arguments)
        .args(case)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn unreadable_description_is_reported_with_its_position() {
    let check = |name: &str, text: &str, code: i32, word: &str| {
        let described = described(name, text);
        let output = refrain(&["http://127.0.0.1:9", "--openapi", &described.file, "--yes"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(word), "`{word}` is not in {said}");
    };
    check("a.yaml", "openapi: 3.0.0\npaths: [", 64, "a.yaml:");
    check("b.yaml", "hello: world", 64, "is not an API description");
    check(
        "c.json",
        r#"{"openapi":"3.1.0","paths":{"/a":{"get":{}}}}"#,
        64,
        "no operation can be tested",
    );
    check("d.yaml", "asyncapi: 3.0.0\nchannels: {}", 64, "--worker");
    check(
        "e.json",
        r#"{"openapi":"3.1.0","paths":{"/a":{"post":{}}}}"#,
        69,
        "does not respond",
    );
}
