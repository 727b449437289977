//! A payment has an unknown outcome: an operator must find its record, resolve it, and delete old records.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "records/access.rs"]
mod access;
#[path = "records/bulk.rs"]
mod bulk;
#[path = "records/search.rs"]
mod search;

use std::{
    future::pending,
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Request, StatusCode};
use refrain::{
    Engine, Intent, Key, Operation, Outcome, Policy, RecordId, Scope, Verdict,
    http::RefrainLayer,
    policy::KeysKept,
    record::{OriginFields, Reason},
    store::{AnyStore, Memory},
};
use refrain_proxy::{
    admin::{self, Admin, Metrics},
    telemetry::Telemetry,
};
use serde_json::Value;
use tokio::net::TcpListener;
use tower_service::Service as _;

/// An admin listener without a proxy.
struct Stage {
    engine: Engine,
    layer: RefrainLayer,
    url: String,
}

async fn open(token: Option<&str>) -> Stage {
    open_with(Operation::new("POST /v1/payments").unwrap(), token).await
}

async fn open_with(operation: Operation, token: Option<&str>) -> Stage {
    open_searching(operation, token, admin::SEARCH_TIME).await
}

/// Opens a stage whose searches end after `search_time`.
async fn open_searching(operation: Operation, token: Option<&str>, search_time: Duration) -> Stage {
    let policy = Policy::new(vec![operation]).unwrap();
    let engine = Engine::new(AnyStore::new(Memory::new()));
    let layer = RefrainLayer::new(engine.clone(), policy.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let admin = Admin {
        layer: layer.clone(),
        telemetry: Telemetry::new(Metrics::new(&policy, "memory:")),
        is_draining: Arc::new(AtomicBool::new(false)),
        token: token.map(Into::into),
        reader_token: None,
        hosts: Vec::new(),
        configuration: Value::Null,
        workers: None,
        reload: None,
        tls: None,
        search_time,
    };
    tokio::spawn(admin::serve(listener, admin, pending()));
    Stage { engine, layer, url }
}

impl Stage {
    /// Creates a record, completed with `body` or with an unknown outcome.
    async fn record(&self, key: &str, body: Option<&str>) -> String {
        self.record_settling(key, body, Duration::ZERO).await
    }

    /// As `record`; "it never happened" is accepted `settle_after` after its attempt.
    async fn record_settling(
        &self,
        key: &str,
        body: Option<&str>,
        settle_after: Duration,
    ) -> String {
        let key = Key::new(key).unwrap();
        let mut intent = Intent::new(Scope::none(), key.clone());
        intent.terms.settle_after = settle_after;
        let Verdict::Granted(guard) = self.engine.claim(&intent).await.unwrap() else {
            panic!("the key is not free");
        };
        let mut running = guard.start();
        let _ = match body {
            Some(body) => running.complete(Outcome::new(201, body)).await.unwrap(),
            None => running.doubt(Reason::Reset).await.unwrap(),
        };
        RecordId::derive(self.engine.secret(), &Scope::none(), &key).to_string()
    }

    /// Runs the command; returns exit code, stdout and stderr.
    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        run(&[args, &["--admin", &self.url]].concat(), &[]).await
    }

    async fn json(&self, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(&[args, &["--json"]].concat()).await;
        assert_eq!(code, 0, "{args:?} {stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
}

async fn run(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("records").args(args).stdin(Stdio::null());
    for name in ["ADMIN", "ADMIN_TOKEN", "ADMIN_TOKEN_FILE"] {
        command.env_remove(format!("REFRAIN_{name}"));
    }
    command.envs(variables.iter().copied());
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = ran.await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn records_are_listed_and_shown() {
    let stage = open(None).await;
    let (code, stdout, stderr) = stage.run(&["list"]).await;
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("No matching records"), "{stderr}");
    let done = stage.record("done", Some("charged \u{1b}[2J")).await;
    let doubted = stage.record("doubted", None).await;

    let (code, stdout, _) = stage.run(&["list"]).await;
    assert_eq!(code, 0);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[0].starts_with("ID"), "{stdout}");
    let line = |id: &str| lines.iter().find(|line| line.starts_with(id)).unwrap();
    assert!(line(&done).contains("completed") && line(&done).contains("201"));
    assert!(line(&doubted).contains("indeterminate") && line(&doubted).contains("reset"));

    let listed = stage.json(&["list", "--state", "indeterminate"]).await;
    assert_eq!(listed["records"][0]["id"], doubted.as_str());
    assert_eq!(listed["records"].as_array().unwrap().len(), 1);
    let (_, stdout, stderr) = stage.run(&["list", "--limit", "1"]).await;
    assert_eq!(stdout.lines().count(), 2);
    let first = stdout.lines().nth(1).unwrap().split(' ').next().unwrap();
    assert!(stderr.contains(&format!("--after {first}")), "{stderr}");
    let rest = stage.json(&["list", "--after", first]).await;
    assert_eq!(rest["records"].as_array().unwrap().len(), 1);
    assert_ne!(rest["records"][0]["id"], first);

    let (code, stdout, _) = stage.run(&["show", &done]).await;
    assert_eq!(code, 0);
    assert!(
        stdout.contains("charged \\u{1b}[2J"),
        "control characters in the output: {stdout}"
    );
    assert!(stdout.contains("retention left"), "{stdout}");
    assert_eq!(stage.json(&["show", &doubted]).await["reason"], "reset");
}

#[tokio::test]
async fn a_long_list_comes_whole() {
    let stage = open(None).await;
    for number in 0..620 {
        stage.record(&number.to_string(), Some("x")).await;
    }
    let (_, stdout, stderr) = stage.run(&["list", "--limit", "10000"]).await;
    assert_eq!((stdout.lines().count(), stderr.as_str()), (621, ""));
    let listed = stage.json(&["list", "--limit", "600"]).await;
    assert_eq!(listed["records"].as_array().unwrap().len(), 600);
    assert!(listed["next"].is_string());
}

#[tokio::test]
async fn a_record_is_found_by_its_request() {
    let stage = open(None).await;
    let answer = async || "charged";
    let shop = Router::new().route("/v1/payments", post(answer));
    let request = Request::post("/v1/payments")
        .header("authorization", "Bearer ann")
        .header("idempotency-key", "order-7")
        .body(Body::empty())
        .unwrap();
    let answered = shop.layer(stage.layer.clone()).call(request).await.unwrap();
    assert_eq!(answered.status(), 200);
    let sought = ["show", "--request", "POST /v1/payments", "--key", "order-7"];
    let by_ann = ["--header", "Authorization: Bearer ann"];
    let shown = stage.json(&[&sought[..], &by_ann].concat()).await;
    assert_eq!(
        (&shown["body"], &shown["status"]),
        (&"charged".into(), &200.into())
    );
    let (code, _, stderr) = stage.run(&sought).await;
    assert_eq!(code, 1, "found the record of another caller: {stderr}");
    for words in [
        "no record of this request without the header authorization",
        "add --header 'authorization: …'",
        "refrain records find --key",
    ] {
        assert!(stderr.contains(words), "no {words} in {stderr}");
    }
    // With the header of another caller, nothing is missing.
    let by_bob = ["--header", "Authorization: Bearer bob"];
    let (code, _, stderr) = stage.run(&[&sought[..], &by_bob].concat()).await;
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("there is no record"), "{stderr}");
    assert!(!stderr.contains("header"), "{stderr}");
    let (code, _, stderr) = stage.run(&["show", "--request", "POST"]).await;
    assert_eq!(code, 2, "{stderr}");
}

/// A customer says "order-7, about nine": the operator knows neither the credential nor the path.
#[tokio::test]
async fn records_of_a_key_are_found_without_the_credential() {
    let stage = open(None).await;
    let mut shop = Router::new()
        .route("/v1/payments", post(async || "charged"))
        .layer(stage.layer.clone());
    for (user, key) in [("ann", "order-7"), ("bob", "order-7"), ("ann", "order-8")] {
        let user = BASE64_STANDARD.encode(format!("{user}:secret"));
        let request = Request::post("/v1/payments?card=4711")
            .header("authorization", format!("Basic {user}"))
            .header("idempotency-key", format!("\"{key}\""))
            .header(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            );
        let request = request.body(Body::empty()).unwrap();
        assert_eq!(shop.call(request).await.unwrap().status(), 200);
    }
    let found = stage.json(&["find", "--key", "order-7"]).await;
    let found = found["records"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    for record in found {
        assert_eq!(record["operation"], "POST /v1/payments");
        assert_eq!(record["target"], "POST /v1/payments", "the query is kept");
        assert_eq!(record["key"], Value::Null, "the key is kept readable");
        assert!(record["first_seen"].as_str().unwrap().ends_with('Z'));
        let id = record["id"].as_str().unwrap();
        let shown = stage.json(&["show", id]).await;
        let attempt = &shown["history"][0];
        assert_eq!(attempt["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(attempt["fence"], shown["fence"]);
        assert_eq!(attempt["ends"][0]["end"], "completed");
        let (_, stdout, _) = stage.run(&["show", id]).await;
        assert!(stdout.contains("attempt 1"), "{stdout}");
    }
    let by_ann = [
        "find",
        "--key",
        "order-7",
        "--scope",
        "credential:basic=ann",
    ];
    let one = stage.json(&by_ann).await;
    assert_eq!(one["records"].as_array().unwrap().len(), 1);
    let ids: Vec<_> = found.iter().map(|record| &record["id"]).collect();
    assert!(ids.contains(&&one["records"][0]["id"]));

    let (code, stdout, _) = stage.run(&["find", "--key", "order-7"]).await;
    assert_eq!((code, stdout.lines().count()), (0, 3), "{stdout}");
    for (args, expected, words) in [
        (&["find", "--key", "order-9"][..], 1, "no record"),
        (&["find", "--key", "two words"], 2, "visible ASCII"),
        (
            &["find", "--key", "order-7", "--scope", "ann"],
            2,
            "NAME=VALUE",
        ),
        (
            &[
                "find",
                "--key",
                "order-7",
                "--scope",
                "credential:basic=eve",
            ],
            1,
            "without --scope",
        ),
        (&["find"], 2, "--key"),
    ] {
        let (code, _, stderr) = stage.run(args).await;
        assert_eq!(code, expected, "{args:?} {stderr}");
        assert!(stderr.contains(words), "{args:?}: no {words} in {stderr}");
    }
}

#[tokio::test]
async fn key_and_query_are_kept_only_if_the_policy_says_so() {
    let settings = [
        (KeysKept::Digest, false, Value::Null, "POST /v1/payments"),
        (
            KeysKept::Clear,
            false,
            "order-7".into(),
            "POST /v1/payments",
        ),
        (
            KeysKept::Digest,
            true,
            Value::Null,
            "POST /v1/payments?card=4711",
        ),
    ];
    for (records_keys, records_query, key, target) in settings {
        let mut operation = Operation::new("POST /v1/payments").unwrap();
        operation.records_keys = records_keys;
        operation.records_query = records_query;
        let stage = open_with(operation, None).await;
        let mut shop = Router::new()
            .route("/v1/payments", post(async || "charged"))
            .layer(stage.layer.clone());
        let request = Request::post("/v1/payments?card=4711")
            .header("idempotency-key", "order-7")
            // Too short, so it is no trace id.
            .header("traceparent", "00-0af7-b7ad-01")
            .body(Body::empty())
            .unwrap();
        assert_eq!(shop.call(request).await.unwrap().status(), 200);
        let found = stage.json(&["find", "--key", "order-7"]).await;
        let record = &found["records"][0];
        assert_eq!((&record["key"], &record["target"]), (&key, &target.into()));
        let shown = stage.json(&["show", record["id"].as_str().unwrap()]).await;
        assert_eq!(shown["history"][0]["trace_id"], Value::Null);
        let key = key.as_str().map(|key| format!(" key {key}"));
        search::assert_table_ends(&stage, &format!("{target}{}", key.unwrap_or_default())).await;
    }
}

#[tokio::test]
async fn records_are_selected_by_operation_scope_and_age_and_exported() {
    let stage = open(None).await;
    let origin = OriginFields {
        operation: "=pay \"now\", daily",
        ..OriginFields::default()
    };
    let key = Key::new("strange").unwrap();
    let scope = Scope::none()
        .with("header:x-tenant", "acme")
        .with("route", "pay");
    let mut intent = Intent::new(scope, key.clone());
    intent.origin = Some(stage.engine.origin(&intent.scope, &key, &origin));
    let done = stage
        .engine
        .run(&intent, async |_| Outcome::new(201, "x"))
        .await;
    assert!(matches!(done, Ok(Verdict::Granted(_))));
    stage.record("other", None).await;

    let counts = [
        (&["--operation", "=pay \"now\", daily"][..], 1),
        (&["--operation", "pay"], 0),
        (
            &["--scope", "header:x-tenant=acme", "--scope", "route=pay"],
            1,
        ),
        (&["--scope", "header:x-tenant=acme"], 0),
        (&["--newer-than", "1h"], 2),
        (&["--older-than", "1h"], 0),
        (&["--older-than", "1h", "--state", "completed"], 0),
        (&["--newer-than", "1h", "--state", "completed"], 1),
    ];
    for (filter, expected) in counts {
        let listed = stage.json(&[&["list"], filter].concat()).await;
        let count = listed["records"].as_array().unwrap().len();
        assert_eq!(count, expected, "{filter:?}");
    }
    let (code, _, stderr) = stage.run(&["list", "--scope", "acme"]).await;
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("expected NAME=VALUE"), "{stderr}");
    let (code, _, stderr) = stage.run(&["list", "--older-than", "soon"]).await;
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("older_than"), "{stderr}");

    let (_, stdout, _) = stage.run(&["list", "--csv"]).await;
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[0].starts_with("id,state,operation,"), "{stdout}");
    let row = lines.iter().find(|line| line.contains("completed"));
    let cell = r#","'=pay ""now"", daily","#;
    assert!(row.is_some_and(|row| row.contains(cell)), "{stdout}");
}

#[tokio::test]
async fn unknown_outcome_of_a_request_is_resolved_without_its_id() {
    let stage = open(None).await;
    let lost = async || -> (StatusCode, &str) { panic!("on purpose") };
    let mut shop = Router::new()
        .route("/v1/payments", post(lost))
        .layer(stage.layer.clone());
    let request = Request::post("/v1/payments")
        .header("authorization", "Bearer ann")
        .header("idempotency-key", "order-7")
        .body(Body::empty())
        .unwrap();
    let answered = shop.call(request).await.unwrap();
    assert_eq!(answered.status(), 502);
    let of_request = [
        "resolve",
        "--request",
        "POST /v1/payments",
        "--key",
        "order-7",
    ];
    let found = [
        "--status",
        "201",
        "--body",
        "charged",
        "--reason",
        "in the ledger",
    ];
    let by_ann = ["--request-header", "Authorization: Bearer ann"];
    let (code, _, stderr) = stage.run(&[&of_request[..], &found].concat()).await;
    assert_eq!(code, 1, "resolved without the credential: {stderr}");
    let resolved = stage
        .json(&[&of_request[..], &by_ann, &found].concat())
        .await;
    let shown = stage
        .json(&["show", resolved["id"].as_str().unwrap()])
        .await;
    assert_eq!(
        (&shown["body"], &shown["status"]),
        (&"charged".into(), &201.into())
    );
    let ends = shown["history"][0]["ends"].as_array().unwrap();
    let ends: Vec<_> = ends
        .iter()
        .map(|end| end["end"].as_str().unwrap())
        .collect();
    assert_eq!(ends, ["unknown", "completed"]);
}

#[tokio::test]
async fn unknown_outcome_is_resolved_as_done_or_never_happened() {
    let stage = open(None).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answer");
    std::fs::write(&file, b"\xff charged").unwrap();
    let body = format!("@{}", file.display());
    let happened = stage.record("happened", None).await;
    let never = stage.record("never", None).await;
    let reason = ["--reason", "looked it up"];

    let found = ["resolve", &happened, "--status", "201", "--body", &body];
    let header = ["--header", "Content-Type: text/plain"];
    let (code, stdout, stderr) = stage.run(&[&found[..], &header, &reason].concat()).await;
    assert_eq!(
        (code, stdout.as_str()),
        (0, "Resolved as completed.\n"),
        "{stderr}"
    );
    let shown = stage.json(&["show", &happened]).await;
    assert_eq!(shown["body_base64"], "/yBjaGFyZ2Vk");
    assert_eq!(shown["headers"][0][0], "content-type");

    let found = ["resolve", &never, "--never-happened"];
    let done = stage.json(&[&found[..], &reason].concat()).await;
    assert_eq!(done["resolved"], "never-happened");
    assert_eq!(
        stage.run(&["show", &never]).await.0,
        1,
        "the record still exists"
    );

    let cases: [(&[&str], i32, &str); 6] = [
        (
            &["resolve", &happened, "--never-happened", "--reason", "r"],
            1,
            "completed",
        ),
        (
            &["resolve", &never, "--never-happened", "--reason", "r"],
            1,
            "no record",
        ),
        (&["resolve", &never, "--never-happened"], 2, "--reason"),
        (&["resolve", &never, "--reason", "r"], 2, "--never-happened"),
        (
            &["resolve", &never, "--status", "700", "--reason", "r"],
            2,
            "between 200 and 599",
        ),
        (
            &["resolve", "7", "--never-happened", "--reason", "r"],
            2,
            "32 hexadecimal digits",
        ),
    ];
    for (args, expected, words) in cases {
        let (code, _, stderr) = stage.run(args).await;
        assert_eq!(code, expected, "{args:?} {stderr}");
        assert!(stderr.contains(words), "{args:?}: no {words} in {stderr}");
    }
}

#[tokio::test]
async fn a_record_is_erased_only_on_purpose() {
    let stage = open(None).await;
    let done = stage.record("done", Some("x")).await;
    let doubted = stage.record("doubted", None).await;
    let erase = ["erase", &done, "--reason", "test data"];
    let (code, _, stderr) = stage.run(&erase).await;
    assert_eq!(code, 2, "deleted without confirmation");
    assert!(stderr.contains("--yes"), "{stderr}");
    assert_eq!(stage.run(&["show", &done]).await.0, 0, "the record is gone");
    let (code, stdout, stderr) = stage.run(&[&erase[..], &["--yes"]].concat()).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("Erased"), "{stdout}");
    assert_eq!(
        stage.run(&["show", &done]).await.0,
        1,
        "the record still exists"
    );
    let refused = ["erase", &doubted, "--reason", "r", "--yes", "--json"];
    let (code, stdout, _) = stage.run(&refused).await;
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 1);
    assert!(json["fix"].as_str().unwrap().contains("resolve"), "{json}");
}
