//! Event ids: the key of a delivery must be the delivery's own id, or the second event about a resource is lost.

use refrain::policy::Class;
use refrain_openapi::Document;
use refrain_plan::{Options, plan};
use serde_json::{Value, json};

/// The key that is planned for a webhook with these headers and body members.
fn key(headers: &[&str], members: &Value) -> Option<String> {
    let headers = headers
        .iter()
        .map(|name| json!({ "name": name, "in": "header" }));
    let body = json!({ "application/json": { "schema": { "properties": members } } });
    let post = json!({
        "parameters": headers.collect::<Vec<_>>(),
        "requestBody": { "content": body },
        "responses": { "204": { "description": "ok" } },
    });
    let text = json!({ "openapi": "3.1.0", "paths": { "/hooks/in": { "post": post } } });
    let document = Document::parse(text.to_string().as_bytes(), "hooks.json").unwrap();
    let mut planned = plan(&document, &Options::default()).operations;
    assert_eq!(planned[0].verdict.class, Class::Event);
    planned.remove(0).keys.event
}

#[test]
fn events_are_named_by_what_names_the_message() {
    let check = |headers: &[&str], members: Value, wanted: Option<&str>| {
        let found = key(headers, &members);
        assert_eq!(found.as_deref(), wanted, "{headers:?} {members}");
    };
    let id = json!({ "id": {} });
    check(
        &["X-Signature", "X-Acme-Delivery"],
        id.clone(),
        Some("header:X-Acme-Delivery"),
    );
    check(
        &["Webhook-Timestamp", "webhook-id"],
        json!({}),
        Some("header:webhook-id"),
    );
    check(
        &["Paypal-Transmission-Id"],
        id,
        Some("header:Paypal-Transmission-Id"),
    );
    check(
        &["X-Subscription"],
        json!({ "type": {}, "id": {} }),
        Some("body:/id"),
    );
    check(
        &[],
        json!({ "specversion": {}, "id": {}, "source": {} }),
        Some("natural:{/source}-{/id}"),
    );
    check(
        &[],
        json!({ "message": { "properties": { "messageId": {}, "data": {} } } }),
        Some("body:/message/messageId"),
    );
    check(
        &[],
        json!({ "meta": { "properties": { "event_id": {}, "id": {} } }, "data": {} }),
        Some("body:/meta/event_id"),
    );
    // A payment and its state: the next state arrives with the same id.
    check(&[], json!({ "id": {}, "status": {} }), None);
}
