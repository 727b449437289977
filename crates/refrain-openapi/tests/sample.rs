//! Sample requests: they satisfy the schema, and unsupported content types are reported.
//!
//! A service rejects invalid requests before it executes them, so such requests would test nothing.
//! Therefore this file has each kind of schema of real descriptions, with the expected value.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use refrain_openapi::{
    Document,
    sample::{Options, SampleRequest, request},
};
use serde_json::{Value, json};

/// Value that is generated for a schema, as the body of a request.
fn made(schema: &Value) -> Value {
    let document = json!({
        "openapi": "3.1.0",
        "components": {"schemas": {
            "Card": {"type": "object", "required": ["kind", "number"], "properties": {
                "kind": {"type": "string"}, "number": {"type": "string", "pattern": "^[0-9]{16}$"}}},
            "Tree": {"type": "object", "required": ["name", "children"], "properties": {
                "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}}}
        }},
        "paths": {"/a": {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}}
    });
    let body = only(&document.to_string(), &Options::default())
        .unwrap()
        .body;
    serde_json::from_slice(&body).unwrap()
}

fn only(text: &str, options: &Options) -> Result<SampleRequest, String> {
    let document = Document::parse(text.as_bytes(), "test").unwrap();
    request(&document.operations()[0], options)
}

#[test]
fn every_kind_of_schema_gets_a_value_that_fits() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(1)),
        (
            json!({"type": "integer", "minimum": 10, "multipleOf": 4}),
            json!(12),
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 10}),
            json!(11),
        ),
        (
            json!({"type": "integer", "minimum": 10, "exclusiveMinimum": true}),
            json!(11),
        ),
        (json!({"type": "integer", "maximum": -5}), json!(-5)),
        (
            json!({"type": "number", "minimum": 0.5, "maximum": 0.75}),
            json!(0.75),
        ),
        (
            json!({"type": "number", "exclusiveMaximum": 0.5}),
            json!(0.49),
        ),
        (json!({"type": "boolean"}), json!(true)),
        (json!({"type": ["null", "string"]}), json!("sample")),
        (json!({"type": "string", "minLength": 8}), json!("samplesa")),
        (json!({"type": "string", "maxLength": 3}), json!("sam")),
        (
            json!({"type": "string", "pattern": "^[A-Z]{3}$"}),
            json!("AAA"),
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("2030-01-15T12:00:00Z"),
        ),
        (json!({"type": "string", "enum": ["b", "a"]}), json!("b")),
        (json!({"const": 7}), json!(7)),
        (json!({"type": "string", "default": "d"}), json!("d")),
        (
            json!({"type": "string", "default": "d", "example": "e"}),
            json!("e"),
        ),
        (json!({"type": "string", "examples": ["f"]}), json!("f")),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 2}),
            json!([1, 1]),
        ),
        (
            json!({"type": "array", "uniqueItems": true, "minItems": 3, "items": {"type": "integer"}}),
            json!([1, 2, 3]),
        ),
        (
            json!({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"enum": ["x", "y"]}}),
            json!(["x", "y"]),
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({"member0": "sample"}),
        ),
        (
            json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"member0": 1}),
        ),
    ] {
        assert_eq!(made(&schema), value, "{schema}");
    }
}

#[test]
fn objects_have_what_they_need_and_not_what_only_answers_have() {
    let amount = json!({"type": "integer", "minimum": 5});
    for (schema, value) in [
        (
            json!({"required": ["amount"], "properties": {"amount": amount, "note": {"type": "string"}}}),
            json!({"amount": 5}),
        ),
        (
            json!({"properties": {"amount": amount, "currency": {"type": "string", "maxLength": 3}}}),
            json!({"amount": 5, "currency": "EUR"}),
        ),
        (
            json!({"required": ["id", "amount", "other"], "properties": {
                "id": {"type": "string", "readOnly": true}, "amount": amount}}),
            json!({"amount": 5, "other": "sample"}),
        ),
        (
            json!({"allOf": [
                {"required": ["amount"], "properties": {"amount": amount}},
                {"required": ["to"], "properties": {"to": {"type": "string"}}}]}),
            json!({"amount": 5, "to": "sample"}),
        ),
        (
            json!({"type": "object", "required": ["amount"], "properties": {"amount": amount},
                "oneOf": [{"$ref": "#/components/schemas/Card"}, {"type": "object"}],
                "discriminator": {"propertyName": "kind", "mapping": {"card": "#/components/schemas/Card"}}}),
            json!({"amount": 5, "kind": "card", "number": "1111111111111111"}),
        ),
        (
            json!({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3}]}),
            json!(3),
        ),
        (
            json!({"required": ["dry_run", "active"], "properties": {
                "dry_run": {"type": "boolean"}, "active": {"type": "boolean"}}}),
            json!({"dry_run": false, "active": true}),
        ),
    ] {
        assert_eq!(made(&schema), value, "{schema}");
    }
}

#[test]
fn a_schema_that_contains_itself_comes_to_an_end() {
    let tree = made(&json!({"$ref": "#/components/schemas/Tree"}));
    assert_eq!(tree["children"][0]["name"], "sample");
    let wide: serde_json::Map<_, _> = (0..3_000)
        .map(|at| (format!("m{at}"), json!({"type": "integer"})))
        .collect();
    let schema = json!({"type": "object", "properties": wide});
    let document = json!({"openapi": "3.0.3", "paths": {"/a": {"post": {"requestBody":
        {"content": {"application/json": {"schema": schema}}}}}}});
    let refused = only(&document.to_string(), &Options::default()).unwrap_err();
    assert!(refused.contains("too large for a request"), "{refused}");
}

const PAYMENTS: &str = r"
openapi: 3.0.3
paths:
  /shops/{shop}/payments:
    parameters:
      - {name: shop, in: path, required: true, schema: {type: string}}
    post:
      parameters:
        - {name: Idempotency-Key, in: header, required: true, schema: {type: string}}
        - {name: X-Version, in: header, required: true, schema: {type: string, enum: [v 1]}}
        - {name: expand, in: query, schema: {type: string}}
        - {name: mode, in: query, required: true, example: a b, schema: {type: string}}
        - {name: session, in: cookie, required: true, schema: {type: string, default: s1}}
      requestBody:
        content:
          application/xml: {schema: {type: object}}
          application/json:
            examples:
              usual: {value: {amount: 20, reference: R-1, lines: [{email: a@b.test}]}}
            schema:
              type: object
              properties: {amount: {type: integer}, reference: {type: string}}
";

#[test]
fn parameters_and_examples_make_the_request() {
    let made = only(PAYMENTS, &Options::default()).unwrap();
    assert_eq!(made.target(), "/shops/sample/payments?mode=a%20b");
    assert_eq!(made.needs, ["shop"]);
    assert_eq!(made.key_header.as_deref(), Some("Idempotency-Key"));
    let headers = [("X-Version", "v 1"), ("Cookie", "session=s1")];
    assert_eq!(
        made.headers,
        headers.map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    assert_eq!(made.content_type.as_deref(), Some("application/json"));
    let options = Options {
        seed: 3,
        unique: Some("{{unique}}".into()),
        given: [("shop", "a/b"), ("expand", "all")]
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .into(),
    };
    let made = only(PAYMENTS, &options).unwrap();
    assert_eq!(made.target(), "/shops/a%2Fb/payments?expand=all&mode=a%20b");
    assert!(made.needs.is_empty());
    let body: Value = serde_json::from_slice(&made.body).unwrap();
    let wanted = json!({"amount": 20, "reference": "{{unique}}", "lines": [{"email": "a@b.test"}]});
    assert_eq!(body, wanted);
}

#[test]
fn only_unique_members_differ_by_seed() {
    let text = r#"{"openapi": "3.1.0", "paths": {"/users": {"post": {"requestBody": {"content": {"application/json":
        {"schema": {"required": ["email", "name", "token", "sku"], "properties": {
            "email": {"type": "string", "format": "email"}, "name": {"type": "string"},
            "token": {"type": "string", "format": "uuid"}, "sku": {"type": "string", "maxLength": 5}}}}}}}}}}"#;
    let of = |seed| -> Value {
        let options = Options {
            seed,
            ..Options::default()
        };
        serde_json::from_slice(&only(text, &options).unwrap().body).unwrap()
    };
    let (one, same, other) = (of(1), of(1), of(2));
    assert_eq!(one, same);
    assert_ne!(one["email"], other["email"]);
    assert!(one["email"].as_str().unwrap().ends_with("@example.com"));
    assert_ne!(one["token"], other["token"]);
    assert_eq!(
        (&one["name"], &one["sku"]),
        (&other["name"], &json!("sampl"))
    );
}

#[test]
fn swagger_2_has_bodies_and_forms() {
    let text = r##"{"swagger": "2.0", "paths": {"/a": {"post": {"parameters": [
        {"name": "body", "in": "body", "schema": {"$ref": "#/definitions/Order"}},
        {"name": "limit", "in": "query", "required": true, "type": "integer", "minimum": 2}]}},
        "/b": {"post": {"parameters": [
        {"name": "to", "in": "formData", "required": true, "type": "string", "x-example": "a&b"},
        {"name": "amount", "in": "formData", "required": true, "type": "number"}]}},
        "/c": {"post": {"consumes": ["multipart/form-data"], "parameters": [
        {"name": "file", "in": "formData", "required": true, "type": "file"}]}},
        "/d/{id}": {"put": {"parameters": [{"name": "id", "in": "path", "required": true, "type": "string"}]}}},
        "definitions": {"Order": {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}}}"##;
    let document = Document::parse(text.as_bytes(), "test").unwrap();
    let made: Vec<_> = document
        .operations()
        .iter()
        .map(|operation| request(operation, &Options::default()))
        .collect();
    let [order, form, file, own] = &made[..] else {
        panic!("{made:#?}")
    };
    let order = order.as_ref().unwrap();
    assert_eq!(
        (order.target(), &order.body[..]),
        ("/a?limit=2".into(), &br#"{"sum":1}"#[..])
    );
    let form = form.as_ref().unwrap();
    assert_eq!(String::from_utf8_lossy(&form.body), "to=a%26b&amount=1");
    assert_eq!(
        form.content_type.as_deref(),
        Some("application/x-www-form-urlencoded")
    );
    assert!(file.as_ref().unwrap_err().contains("multipart/form-data"));
    // With PUT the client chooses the id, so no existing resource is needed.
    let own = own.as_ref().unwrap();
    assert_eq!(
        (&*own.path, own.needs.len(), own.body.len()),
        ("/d/sample", 0, 0)
    );
}
