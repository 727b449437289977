//! Health probes and metrics.

use std::time::Duration;

use bytes::Bytes;
use refrain::{
    Claim, Error, ErrorKind, Fence, RecordId, Result, Secret, Settled, Settlement, Store, Verdict,
    record::{Erased, ScopeDigest},
    store::{AnyStore, Census, Guarantees, Memory, Page, Query, Reading, ScopeKeyPage, Watch},
};
use refrain_testkit::ManualClock;

use crate::stage::{self, Stage};

/// A store that is unavailable.
#[derive(Debug)]
struct Gone(Memory);

fn gone<T>() -> Result<T> {
    Err(Error::new(
        ErrorKind::Unavailable,
        "the store has gone away",
    ))
}

impl Store for Gone {
    async fn claim(&self, _: Claim) -> Result<Verdict> {
        gone()
    }
    async fn settle(&self, _: RecordId, _: Fence, _: Settlement) -> Result<Settled> {
        gone()
    }
    async fn renew(&self, _: RecordId, _: Fence, _: Duration) -> Result<Settled> {
        gone()
    }
    async fn read(&self, _: RecordId) -> Result<Option<Reading>> {
        gone()
    }
    async fn list(&self, _: &Query) -> Result<Page> {
        gone()
    }
    async fn erase(&self, _: RecordId) -> Result<Erased> {
        gone()
    }
    async fn census(&self) -> Result<Census> {
        gone()
    }
    async fn sweep(&self, _: u32) -> Result<u32> {
        gone()
    }
    async fn scope_key(&self, _: ScopeDigest) -> Result<Option<Bytes>> {
        gone()
    }
    async fn replace_scope_key(
        &self,
        _: ScopeDigest,
        _: Option<Bytes>,
        _: Bytes,
    ) -> Result<Option<Bytes>> {
        gone()
    }
    async fn scope_keys(&self, _: Option<u64>) -> Result<ScopeKeyPage> {
        gone()
    }
    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }
    fn watch(&self, _: RecordId) -> Option<Watch> {
        None
    }
    fn secret(&self) -> &Secret {
        self.0.secret()
    }
}

async fn without_store() -> Stage {
    let store = AnyStore::new(Gone(Memory::new()));
    stage::open_on(store, ManualClock::new(), "127.0.0.1:0", None).await
}

#[tokio::test]
async fn it_is_ready_until_it_drains() {
    let stage = stage::open().await;
    assert_eq!(stage.get("/livez").await.status, 200);
    let ready = stage.get("/readyz").await;
    assert_eq!((ready.status, &ready.json["ready"]), (200, &true.into()));
    stage.drain();
    let draining = stage.get("/readyz").await;
    assert_eq!(draining.status, 503);
    assert_eq!(draining.json["reason"], "draining");
    assert_eq!(
        stage.get("/livez").await.status,
        200,
        "a draining proxy is alive"
    );
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_ready_and_still_lives() {
    let stage = without_store().await;
    assert_eq!(stage.get("/livez").await.status, 200);
    let ready = stage.get("/readyz").await;
    assert_eq!(
        (ready.status, &ready.json["reason"]),
        (503, &"store".into())
    );
    let detail = ready.json["detail"].as_str().unwrap();
    assert!(detail.contains("has gone away"), "{detail}");
    for path in [
        "/api/records",
        "/api/records/00000000000000000000000000000000",
    ] {
        let answer = stage.get(path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.json["fix"].is_string(), "{path}");
    }
    let refused = stage.pay(Some("a"), "Bearer ann", "amount=1").await;
    assert_eq!(refused.status(), 503);
    let text = stage.get("/metrics").await.text;
    let lines = [
        r#"refrain_requests_total{operation="POST /v1/payments",outcome="store-unavailable"} 1"#,
        r#"refrain_store_errors_total{store="memory",op="census"} 1"#,
    ];
    for line in lines {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    assert!(
        !text.contains("refrain_records{"),
        "record counts without a store"
    );
}

/// The disk is full: a balancer must send new payments elsewhere, and retries still get their outcomes.
#[tokio::test]
async fn a_store_that_refuses_claims_is_not_ready_and_replays_continue() {
    let clock = ManualClock::new();
    let store = AnyStore::new(Memory::with_options(600, clock.shared()));
    let stage = stage::open_on(store, clock, "127.0.0.1:0", None).await;
    assert_eq!(stage.get("/readyz").await.status, 200);
    let mut accepted = Vec::new();
    let refused = loop {
        let key = format!("key-{}", accepted.len());
        let answer = stage.pay(Some(&key), "Bearer ann", "amount=1").await;
        if answer.status() != 201 {
            break answer.status();
        }
        accepted.push(key);
        assert!(accepted.len() < 100, "the store is never full");
    };
    assert_eq!(refused, 503);
    let ready = stage.get("/readyz").await;
    assert_eq!(
        (ready.status, &ready.json["reason"]),
        (503, &"claims".into())
    );
    let detail = ready.json["detail"].as_str().unwrap();
    assert!(detail.contains("store is full"), "{detail}");
    let text = stage.get("/metrics").await.text;
    assert!(text.contains("\nrefrain_claims_refused 1\n"), "{text}");
    let key = accepted.first().expect("one claim fits");
    let replayed = stage.pay(Some(key), "Bearer ann", "amount=1").await;
    assert_eq!(replayed.status(), 201);
    assert_eq!(replayed.headers()["idempotent-replayed"], "true");
}

#[tokio::test]
async fn requests_are_counted_by_operation_and_outcome() {
    let stage = stage::open().await;
    assert_eq!(
        stage
            .pay(Some("a"), "Bearer ann", "amount=1")
            .await
            .status(),
        201
    );
    assert_eq!(
        stage
            .pay(Some("a"), "Bearer ann", "amount=1")
            .await
            .status(),
        201
    );
    assert_eq!(
        stage
            .pay(Some("a"), "Bearer ann", "amount=2")
            .await
            .status(),
        422
    );
    assert_eq!(
        stage
            .pay(Some("two words"), "Bearer ann", "")
            .await
            .status(),
        400
    );
    assert_eq!(
        stage.pay(None, "Bearer ann", "amount=1").await.status(),
        201
    );
    stage.doubt("b").await;
    let answer = stage.get("/metrics").await;
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let requests = |outcome: &str, count: u32| {
        format!(
            r#"refrain_requests_total{{operation="POST /v1/payments",outcome="{outcome}"}} {count}"#
        )
    };
    let lines = [
        requests("fresh-kept", 1),
        requests("replayed", 1),
        requests("key-reused", 1),
        requests("key-invalid", 1),
        requests("passed", 1),
        r#"refrain_request_duration_seconds_count{operation="POST /v1/payments",outcome="replayed"} 1"#.into(),
        r#"refrain_store_duration_seconds_count{store="memory",op="claim"} 4"#.into(),
        r#"refrain_store_duration_seconds_count{store="memory",op="settle"} 2"#.into(),
        r#"refrain_store_errors_total{store="memory",op="claim"} 0"#.into(),
        r#"refrain_records{state="completed"} 1"#.into(),
        r#"refrain_records{state="indeterminate"} 1"#.into(),
        r#"refrain_records{state="in-flight"} 0"#.into(),
        "refrain_claims_granted_total 2".into(),
        "refrain_possible_duplicates_total 0".into(),
        "refrain_doubts_total 1".into(),
        "refrain_waiting_duplicates 0".into(),
    ];
    for line in lines {
        let is_there = answer.text.lines().any(|it| it == line);
        assert!(is_there, "no {line} in\n{}", answer.text);
    }
    for count in refrain::engine::Count::ALL {
        let name = format!("\nrefrain_{}_total ", count.metric().0);
        assert!(answer.text.contains(&name), "{name:?} is not exported");
    }
    assert!(answer.text.ends_with("# EOF\n"));
    let mut words = answer.text.split(|it: char| !it.is_alphanumeric());
    assert!(words.all(|word| word != "ann"), "a label names a caller");
}

#[tokio::test]
async fn waiting_requests_are_counted() {
    let stage = stage::open().await;
    let running = stage.start("slow").await;
    let engine = stage.engine.clone();
    let waiting = tokio::spawn(async move {
        let key = refrain::Key::new("slow").unwrap();
        let intent = refrain::Intent::new(refrain::Scope::none(), key);
        engine.claim(&intent).await
    });
    let is_waiting = || stage.engine.tally().waiting_now() == 1;
    refrain_testkit::wait::until_true("one waits", is_waiting).await;
    let text = stage.get("/metrics").await.text;
    assert!(text.contains("refrain_waiting_duplicates 1\n"), "{text}");
    assert!(
        text.contains(r#"refrain_records{state="in-flight"} 1"#),
        "{text}"
    );
    let outcome = refrain::Outcome::new(200, "done");
    let _ = running.complete(outcome).await.unwrap();
    let _ = waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn it_ends_with_its_idle_connections() {
    let stage = stage::open().await;
    let _idle = tokio::net::TcpStream::connect(stage.address).await.unwrap();
    assert_eq!(stage.get("/livez").await.status, 200);
    stage.close().await.unwrap();
}

#[tokio::test]
async fn overview_and_recent_requests_show_what_happened() {
    let stage = stage::open().await;
    for (key, amount) in [("order-7", "10"), ("order-7", "10"), ("order-7", "20")] {
        drop(stage.pay(Some(key), "Bearer anna", amount).await);
    }
    let overview = stage.get("/api/overview").await.json;
    assert_eq!(overview["ready"], true);
    let requests = &overview["requests"];
    let counted = ["executed", "replayed", "refused", "unknown"].map(|it| requests[it].as_u64());
    assert_eq!(counted, [Some(1), Some(1), Some(1), Some(0)]);
    assert_eq!(overview["records"]["completed"], 1);

    let shown = stage.get("/api/requests").await.json;
    let requests = shown["requests"].as_array().unwrap();
    let outcomes: Vec<_> = requests.iter().map(|it| it["outcome"].clone()).collect();
    assert_eq!(outcomes, ["executed", "replayed", "refused"]);
    assert_eq!(requests[2]["code"], "key-reused");
    assert_eq!(requests[2]["status"], 422);
    assert_eq!(requests[0]["operation"], "POST /v1/payments");
    assert_eq!(requests[0]["record"], requests[1]["record"]);
    assert!(!shown.to_string().contains("order-7"), "{shown}");

    let path = format!("/api/requests?after={}", shown["next"]);
    let later = stage.get(&path).await.json;
    assert_eq!(later["requests"], serde_json::json!([]));
    let wrong = stage.get("/api/requests?after=last").await;
    assert_eq!(wrong.status, 400);
}

/// A busy proxy must not pay for a list that nobody reads.
#[tokio::test]
async fn few_ordinary_requests_are_kept_until_somebody_reads_more() {
    let stage = stage::open().await;
    for _ in 0..200 {
        drop(stage.pay(Some("order-7"), "Bearer anna", "10").await);
    }
    let kept = |shown: &serde_json::Value| shown["requests"].as_array().unwrap().len();
    let first = stage.get("/api/requests?limit=500").await.json;
    assert!((1..200).contains(&kept(&first)), "{}", kept(&first));
    assert!(stage.get("/api/overview").await.json["left_out"].as_u64() > Some(0));
    drop(stage.pay(Some("order-7"), "Bearer anna", "10").await);
    let path = format!("/api/requests?after={}", first["next"]);
    assert_eq!(kept(&stage.get(&path).await.json), 1);
}
