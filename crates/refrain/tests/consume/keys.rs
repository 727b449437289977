//! Sources of a message's key. A key that changes between two deliveries handles a message twice; a key that two
//! messages share drops one of them.

use refrain::{
    ErrorKind,
    consume::{KeySource, Message, Position, find_key},
};

/// Parses the sources; returns the key as text.
fn found(sources: &str, message: &Message) -> Option<String> {
    let sources: Vec<KeySource> = sources
        .split(' ')
        .map(|text| text.parse().unwrap())
        .collect();
    let key = find_key(&sources, message).unwrap();
    key.map(|key| key.as_str().to_owned())
}

fn message() -> Message {
    Message::new(r#"{"id":"evt_1","order":{"no":7},"cart":"c 1"}"#)
}

fn at(offset: &str) -> Message {
    let mut message = message();
    message.position = Some(Position {
        log: "orders".into(),
        partition: 3,
        offset: offset.into(),
    });
    message
}

#[test]
fn the_first_source_that_is_present_decides() {
    let both = at("42").with_id("m-1");
    for (sources, message, key) in [
        ("id", message().with_id("m-1"), Some("m-1")),
        ("id", message(), None),
        ("id", message().with_id(""), None),
        ("position", at("42"), Some("position:orders/3/42")),
        ("cloudevents id position", both.clone(), Some("m-1")),
        (
            "cloudevents id position",
            at("42"),
            Some("position:orders/3/42"),
        ),
        (
            "header:x-key",
            message().with_header("X-Key", "k"),
            Some("k"),
        ),
        ("header:x-key id", both, Some("m-1")),
        ("body:/id", message(), Some("evt_1")),
        ("body:/order/no", message(), Some("7")),
        ("body:/missing", message(), None),
        ("natural:{/order/no}-{/cart}", message(), Some("7-c%201")),
        ("natural:{/missing}", message(), None),
        ("body:/id", Message::new("no json"), None),
        ("preset:stripe", message(), Some("evt_1")),
        (
            "preset:github",
            message().with_header("X-GitHub-Delivery", "d"),
            Some("d"),
        ),
        (
            "preset:shopify",
            message().with_header("X-Shopify-Webhook-Id", "w"),
            Some("w"),
        ),
        (
            "preset:shopify",
            message().with_header("X-Shopify-Event-Id", "e"),
            None,
        ),
        (
            "preset:svix",
            message().with_header("svix-id", "msg_1"),
            Some("msg_1"),
        ),
        (
            "preset:standard-webhooks",
            message().with_header("webhook-id", "msg_2"),
            Some("msg_2"),
        ),
        ("preset:github", message(), None),
    ] {
        assert_eq!(found(sources, &message).as_deref(), key, "{sources}");
    }
}

#[test]
fn invalid_key_is_replaced_by_its_digest() {
    let long = "x".repeat(256);
    let digest = |text: &str| format!("digest:{}", blake3::hash(text.as_bytes()).to_hex());
    for text in ["two words", "Zürich", &long, &digest("two words")] {
        let key = found("id", &message().with_id(text)).unwrap();
        assert_eq!(key, digest(text));
    }
    let raw = message().with_header("k", &b"\xff\0"[..]);
    assert!(found("header:k", &raw).unwrap().starts_with("digest:"));
    assert_eq!(
        found("id", &message().with_id("x".repeat(255)))
            .unwrap()
            .len(),
        255
    );
}

const STRUCTURED: &str = r#"{"specversion":"1.0","id":"A1","source":"/shop","type":"t"}"#;

#[test]
fn a_cloud_event_is_the_same_in_every_encoding() {
    let structured =
        Message::new(STRUCTURED).with_content_type("application/cloudevents+json; charset=utf-8");
    let wanted = found("cloudevents", &structured).unwrap();
    assert!(wanted.starts_with("cloudevent:"), "{wanted}");
    for prefix in ["ce-", "ce_", "cloudEvents:", "cloudEvents_", "Ce-"] {
        let binary = Message::new("data")
            .with_header(format!("{prefix}id"), "A1")
            .with_header(format!("{prefix}source"), "/shop");
        assert_eq!(
            found("cloudevents", &binary).as_deref(),
            Some(&*wanted),
            "{prefix}"
        );
    }
    let header =
        Message::new(STRUCTURED).with_header("Content-Type", "application/cloudevents+json");
    assert_eq!(found("cloudevents", &header), Some(wanted));
}

#[test]
fn incomplete_cloud_event_has_no_key() {
    let json = "application/cloudevents+json";
    let batch = "application/cloudevents-batch+json";
    for (media_type, payload) in [
        ("application/json", STRUCTURED),
        (json, r#"{"id":"A1"}"#),
        (json, r#"{"id":"","source":"/shop"}"#),
        (json, r#"{"id":7,"source":"/shop"}"#),
        (json, "no json"),
        (batch, "[]"),
        (batch, r#"[{"id":"A1"}]"#),
        (batch, r#"{"id":"A1","source":"/shop"}"#),
    ] {
        let message = Message::new(payload).with_content_type(media_type);
        assert_eq!(found("cloudevents", &message), None, "{payload}");
    }
    let half = Message::new("data").with_header("ce-id", "A1");
    assert_eq!(found("cloudevents", &half), None);
    let mixed = half.with_header("ce_source", "/shop");
    assert_eq!(found("cloudevents", &mixed), None);
}

#[test]
fn a_batch_is_named_by_all_its_events_in_order() {
    let batch = |events: &[(&str, &str)]| {
        let event = |(source, id): &(&str, &str)| format!(r#"{{"source":"{source}","id":"{id}"}}"#);
        let events: Vec<_> = events.iter().map(event).collect();
        let message = Message::new(format!("[{}]", events.join(",")))
            .with_content_type("application/cloudevents-batch+json");
        found("cloudevents", &message).unwrap()
    };
    let key = batch(&[("/a", "1"), ("/a", "2")]);
    assert!(key.starts_with("cloudevents:"));
    assert_eq!(key, batch(&[("/a", "1"), ("/a", "2")]));
    for other in [
        batch(&[("/a", "2"), ("/a", "1")]),
        batch(&[("/a", "1")]),
        batch(&[("/a", "1"), ("/a2", "")].map(|(source, id)| match id {
            "" => (source, "x"),
            _ => (source, id),
        })),
    ] {
        assert_ne!(key, other);
    }
}

#[test]
fn sources_and_ids_cannot_run_into_each_other() {
    let binary = |source: &'static str, id: &'static str| {
        let message = Message::new("").with_header("ce-source", source);
        found("cloudevents", &message.with_header("ce-id", id)).unwrap()
    };
    assert_ne!(binary("ab", "c"), binary("a", "bc"));
}

#[test]
fn rejects_ambiguous_keys() {
    let twice = Message::new("").with_header("k", "a").with_header("K", "a");
    let events = Message::new("")
        .with_header("ce-id", "1")
        .with_header("ce-id", "2")
        .with_header("ce-source", "/");
    let member = Message::new(r#"{"id":1,"id":2}"#);
    for (source, message) in [
        ("header:k", twice),
        ("cloudevents", events),
        ("body:/id", member),
    ] {
        let source: KeySource = source.parse().unwrap();
        let error = find_key(&[source], &message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn sources_are_written_as_they_are_read() {
    for text in [
        "id",
        "cloudevents",
        "position",
        "header:x-key",
        "body:/a/0",
        "natural:{/a}-{/b}",
        "preset:stripe",
        "preset:github",
        "preset:shopify",
        "preset:standard-webhooks",
    ] {
        assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "ids",
        "stripe",
        "preset:",
        "preset:acme",
        "derive",
        "header:",
        "header:a b",
        "body:id",
        "natural:x",
        "x:y",
    ] {
        let error = text.parse::<KeySource>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
    }
}
