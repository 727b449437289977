//! Finding, showing, resolving and deleting records.

use std::time::Duration;

use http::Method;
use refrain::{
    Guarantee, Intent, Key, Operation, Policy, RecordId, Scope, Verdict,
    policy::Address,
    receipts::{Receipt, Receipts},
};
use serde_json::{Value, json};

use crate::stage::{self, Setup, Stage};

const SETTLE_AFTER: Duration = Duration::from_secs(90);

async fn resolve(stage: &Stage, id: &str, found: &Value) -> stage::AdminResponse {
    let path = format!("/api/records/{id}/resolve");
    stage.ask(Method::POST, &path, &found.to_string()).await
}

async fn state(stage: &Stage, id: &str) -> Option<String> {
    let record = stage.get(&format!("/api/records/{id}")).await.json;
    record["state"].as_str().map(str::to_owned)
}

fn ids(page: &Value) -> Vec<String> {
    let records = page["records"].as_array().unwrap().iter();
    records
        .map(|it| it["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn records_are_listed_by_page_and_state() {
    let stage = stage::open().await;
    for number in 0..40 {
        stage.complete(&format!("done-{number}"), b"x").await;
    }
    let doubted = stage.doubt("doubted").await.to_string();
    let _running = stage.start("running").await;
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let page = stage.get(&format!("/api/records?limit=17{after}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let found = ids(&page.json);
        assert!(found.len() <= 17, "{} on a page", found.len());
        all.extend(found);
        match page.json["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let mut sorted = all.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((all.len(), &sorted), (42, &all), "each once, in order");
    let page = stage.get("/api/records?state=indeterminate").await.json;
    assert_eq!(ids(&page), [doubted]);
    let record = &page["records"][0];
    assert_eq!(record["reason"], "timeout");
    assert_eq!(record["settle_left_seconds"], SETTLE_AFTER.as_secs_f64());
    let page = stage.get("/api/records?state=in-flight").await.json;
    assert_eq!(ids(&page).len(), 1);
    assert_eq!(page["records"][0]["attempts"], 1);
    assert_eq!(page["records"][0]["guarantee"], "at-most-once");
    for query in [
        "state=lost",
        "limit=0",
        "limit=1001",
        "limit=x",
        "after=7",
        "color=red",
    ] {
        let answer = stage.get(&format!("/api/records?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.json["fix"].is_string(), "{query} {}", answer.text);
    }
}

#[tokio::test]
async fn a_record_is_shown_with_its_outcome() {
    let stage = stage::open().await;
    let text = stage.complete("text", "größe".as_bytes()).await;
    let shown = stage.get(&format!("/api/records/{text}")).await.json;
    let expected = [
        ("state", json!("completed")),
        ("status", json!(201)),
        ("headers", json!([["content-type", "text/plain"]])),
        ("body", json!("größe")),
        ("body_bytes", json!(7)),
        ("body_kept", json!(true)),
        ("retention_left_seconds", json!(86_400.0)),
    ];
    for (name, value) in expected {
        assert_eq!(shown[name], value, "{name} in {shown}");
    }
    let binary = stage.complete("binary", b"\xff\x00").await;
    let shown = stage.get(&format!("/api/records/{binary}")).await.json;
    assert_eq!(
        (&shown["body_base64"], &shown["body"]),
        (&json!("/wA="), &Value::Null)
    );
    for (id, status) in [(stage.id("nobody").to_string(), 404), ("7".into(), 400)] {
        let answer = stage.get(&format!("/api/records/{id}")).await;
        assert_eq!(answer.status, status, "{id}");
        assert!(answer.json["fix"].is_string(), "{}", answer.text);
    }
}

#[tokio::test]
async fn unknown_outcome_is_resolved_with_the_given_outcome() {
    let stage = stage::open().await;
    let id = stage.doubt("order-7").await.to_string();
    let found = json!({
        "as": "completed", "status": 201, "headers": { "Content-Type": "text/plain" },
        "body": "charged", "reason": "found in the ledger",
    });
    let done = resolve(&stage, &id, &found).await;
    assert_eq!(
        (done.status, &done.json["resolved"]),
        (200, &json!("completed"))
    );
    let intent = Intent::new(Scope::none(), Key::new("order-7").unwrap());
    let Verdict::Replay(outcome) = stage.engine.claim(&intent).await.unwrap() else {
        panic!("the outcome is not replayed");
    };
    assert_eq!(
        (outcome.status(), &outcome.body()[..]),
        (201, &b"charged"[..])
    );
    let headers: Vec<_> = outcome.headers().collect();
    assert_eq!(headers, [("content-type", "text/plain".into())]);
    let again = resolve(&stage, &id, &found).await;
    assert_eq!(again.status, 409, "a completed record cannot be resolved");
    let text = stage.get("/metrics").await.text;
    assert!(text.contains("refrain_resolutions_total 1\n"), "{text}");
}

#[tokio::test]
async fn never_happened_is_accepted_only_after_the_attempt_can_no_longer_act() {
    let stage = stage::open().await;
    let id = stage.doubt("order-7").await.to_string();
    let found = json!({ "as": "never-happened", "reason": "not in the ledger" });
    stage.clock.advance(SETTLE_AFTER - Duration::from_secs(7));
    let early = resolve(&stage, &id, &found).await;
    assert_eq!(
        (early.status, &early.headers["retry-after"]),
        (409, &"7".parse().unwrap())
    );
    assert_eq!(state(&stage, &id).await.as_deref(), Some("indeterminate"));
    stage.clock.advance(Duration::from_secs(7));
    assert_eq!(resolve(&stage, &id, &found).await.status, 200);
    assert_eq!(state(&stage, &id).await, None, "the record still exists");
    assert_eq!(resolve(&stage, &id, &found).await.status, 404);
}

#[tokio::test]
async fn a_finding_that_makes_no_sense_changes_nothing() {
    let stage = stage::open().await;
    let id = stage.doubt("order-7").await.to_string();
    let long = "x".repeat(1_001);
    let cases = [
        json!({}),
        json!({ "as": "completed", "status": 200 }),
        json!({ "as": "completed", "status": 200, "reason": "" }),
        json!({ "as": "completed", "status": 200, "reason": " \t" }),
        json!({ "as": "completed", "status": 200, "reason": "two\nlines" }),
        json!({ "as": "completed", "status": 200, "reason": long }),
        json!({ "as": "completed", "reason": "r" }),
        json!({ "as": "completed", "status": 100, "reason": "r" }),
        json!({ "as": "completed", "status": 600, "reason": "r" }),
        json!({ "as": "completed", "status": 200, "reason": "r", "headers": { "set-cookie": "a=b" } }),
        json!({ "as": "completed", "status": 200, "reason": "r", "headers": { "content-length": "9" } }),
        json!({ "as": "completed", "status": 200, "reason": "r", "headers": { "etag": "a\nb" } }),
        json!({ "as": "completed", "status": 200, "reason": "r", "headers": { "e tag": "a" } }),
        json!({ "as": "completed", "status": 200, "reason": "r", "body": "", "body_base64": "" }),
        json!({ "as": "completed", "status": 200, "reason": "r", "body_base64": "?" }),
        json!({ "as": "completed", "status": 200, "reason": "r", "retention": "soon" }),
        json!({ "as": "completed", "status": 200, "reason": "r", "colour": "red" }),
        json!({ "as": "never-happened", "status": 200, "reason": "r" }),
        json!({ "as": "released", "reason": "r" }),
    ];
    for found in cases {
        let answer = resolve(&stage, &id, &found).await;
        assert_eq!(answer.status, 400, "{found}");
        assert!(answer.json["fix"].is_string(), "{found} {}", answer.text);
    }
    for body in ["", "[]", "{"] {
        let path = format!("/api/records/{id}/resolve");
        let answer = stage.ask(Method::POST, &path, body).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    assert_eq!(state(&stage, &id).await.as_deref(), Some("indeterminate"));
}

#[tokio::test]
async fn only_what_has_ended_can_be_erased() {
    let stage = stage::open().await;
    let done = stage.complete("done", b"x").await.to_string();
    let doubted = stage.doubt("doubted").await.to_string();
    let _running = stage.start("running").await;
    let running = stage.id("running").to_string();
    let why = r#"{"reason":"test data"}"#;
    let cases = [
        (&done, "", 400),
        (&done, "{}", 400),
        (&done, r#"{"reason":""}"#, 400),
        (&done, why, 200),
        (&done, why, 404),
        (&doubted, why, 409),
        (&running, why, 409),
    ];
    for (id, body, expected) in cases {
        let path = format!("/api/records/{id}");
        let answer = stage.ask(Method::DELETE, &path, body).await;
        assert_eq!(answer.status, expected, "{id} {body} {}", answer.text);
    }
    assert_eq!(state(&stage, &done).await, None);
    assert_eq!(
        state(&stage, &doubted).await.as_deref(),
        Some("indeterminate")
    );
    assert_eq!(state(&stage, &running).await.as_deref(), Some("in-flight"));
    let _again = stage.start("done").await;
    let text = stage.get("/metrics").await.text;
    assert!(text.contains("refrain_erasures_total 1\n"), "{text}");
}

#[tokio::test]
async fn a_record_is_found_by_its_request() {
    let stage = stage::open().await;
    assert_eq!(
        stage
            .pay(Some("a"), "Bearer ann", "amount=1")
            .await
            .status(),
        201
    );
    let page = stage.get("/api/records").await.json;
    let id = ids(&page).pop().unwrap();
    let request = |key: &str, user: &str| {
        json!({
            "method": "POST", "path": "/v1/payments?x=1", "key": key,
            "headers": { "Authorization": user },
        })
    };
    let by_header = json!({
        "method": "POST", "path": "/v1/payments",
        "headers": { "Authorization": "Bearer ann", "Idempotency-Key": "\"a\"" },
    });
    let cases = [
        (by_header, Some(&id)),
        (request("a", "Bearer ann"), Some(&id)),
        (request("b", "Bearer ann"), None),
        (request("a", "Bearer bob"), None),
    ];
    for (sought, expected) in cases {
        let answer = stage
            .ask(Method::POST, "/api/find", &sought.to_string())
            .await;
        assert_eq!(answer.status, 200, "{sought} {}", answer.text);
        assert_eq!(answer.json["operation"], "POST /v1/payments");
        let found = answer.json["id"].as_str() == Some(id.as_str());
        assert_eq!(found, expected.is_some(), "{sought}");
        assert_eq!(
            answer.json["state"].is_string(),
            expected.is_some(),
            "{sought}"
        );
    }
    let bad = [
        json!({ "method": "POST", "path": "/v1/payments" }),
        json!({ "method": "POST", "path": "/elsewhere", "key": "a" }),
        json!({ "method": "GET", "path": "/v1/payments", "key": "a" }),
        json!({ "method": "PO ST", "path": "/v1/payments", "key": "a" }),
        json!({ "method": "POST", "path": "v1", "key": "a" }),
        json!({ "method": "POST", "path": "/v1/payments", "key": "two words" }),
        json!({ "method": "POST", "path": "/v1/payments", "key": "a", "headers": { "a b": "c" } }),
        json!({ "path": "/v1/payments" }),
    ];
    for sought in bad {
        let answer = stage
            .ask(Method::POST, "/api/find", &sought.to_string())
            .await;
        assert_eq!(answer.status, 400, "{sought} {}", answer.text);
        assert!(answer.json["fix"].is_string(), "{sought}");
    }
}

/// Receipts that are never found, in a database that responds or that does not.
#[derive(Debug)]
struct NoReceipts {
    responds: bool,
}

impl Receipts for NoReceipts {
    async fn find(&self, _: RecordId) -> refrain::Result<Option<Receipt>> {
        match self.responds {
            true => Ok(None),
            false => std::future::pending().await,
        }
    }

    async fn seen(&self, records: &[RecordId]) -> refrain::Result<Vec<bool>> {
        Ok(vec![false; records.len()])
    }
}

#[tokio::test(start_paused = true)]
async fn a_receipts_database_that_does_not_respond_hides_no_record() {
    let of = |name: &str, receipts: &str| {
        let mut operation = Operation::new(name).unwrap();
        operation.terms.guarantee = Guarantee::ExactlyOnce;
        operation.receipts = Some(Address::new(receipts));
        operation
    };
    let operations = [
        of("POST /v1/payments", "postgres://broken/app"),
        of("POST /v1/refunds", "postgres://healthy/app"),
    ];
    let mut setup = Setup::new();
    setup.policy = Policy::new(operations.into()).unwrap();
    setup.adapt = |layer| {
        layer
            .with_receipts("postgres://healthy/app", NoReceipts { responds: true })
            .with_receipts("postgres://broken/app", NoReceipts { responds: false })
    };
    let stage = setup.open().await;
    for (operation, shown) in [
        ("POST /v1/payments", "the receipts database did not respond"),
        ("POST /v1/refunds", "none"),
    ] {
        let key = operation.rsplit('/').next().unwrap();
        stage.doubt_of(operation, key).await;
        let id = stage.id(key);
        let record = stage.get(&format!("/api/records/{id}")).await;
        let receipt = record.json["receipt"].as_str().unwrap_or_default();
        assert!(receipt.ends_with(shown), "{operation}: {}", record.text);
        let page = stage.get(&format!("/records/{id}")).await;
        assert_eq!(page.status, 200, "{operation}");
    }
}
