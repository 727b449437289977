//! The metrics of a running proxy: an operation without requests has no samples, so the test sends one request.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request, routing::post};
use refrain::{
    Encryption, Engine, Policy, RecordId, Result,
    consume::{self, DeadLetter, Lag},
    encryption::MasterKey,
    engine::OperatorAction,
    http::{Decision, Observed, RefrainLayer},
    policy::File,
    receipts::{Receipt, Receipts},
    store::{AnyStore, Memory, Op},
};
use refrain_proxy::{
    admin::{self, Admin, Metrics, RedriveStatus, WorkerStatus, Workers, WorkersFuture},
    telemetry::Telemetry,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tower_service::Service as _;

use super::{cell, check};

const RECEIPTS: &str = "postgres://app@db/app";

#[derive(Debug)]
struct NoReceipts;

impl Receipts for NoReceipts {
    async fn find(&self, _: RecordId) -> Result<Option<Receipt>> {
        Ok(None)
    }

    async fn seen(&self, records: &[RecordId]) -> Result<Vec<bool>> {
        Ok(vec![false; records.len()])
    }
}

#[tokio::test]
async fn metrics() {
    let text = served().await;
    let mut page = String::from(
        "# Metrics\n\n\
         The metrics that `GET /metrics` of [the admin listener](../admin.md) and of [workers](../worker.md) returns, in the OpenMetrics text format.\n\
         No key, tenant or path is ever a label.\n\n\
         | name | kind | labels | counts |\n|---|---|---|---|\n",
    );
    for (name, metric) in families(&text) {
        let Family { kind, help, labels } = metric;
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        page += &format!("| `{name}{end}` | {kind} | {labels} | {} |\n", cell(help));
    }
    page += &list(
        "`outcome` of requests",
        Decision::ALL.iter().map(|it| it.label()),
    );
    page += &list(
        "`result` of observed requests",
        Observed::ALL.iter().map(|it| it.label()),
    );
    page += &list("`op` of stores", Op::ALL.iter().map(|it| it.label()));
    page += &list(
        "`outcome` of messages",
        consume::Count::ALL.iter().map(|it| it.name()),
    );
    check("metrics.md", &page);
}

fn list<'a>(heading: &str, values: impl Iterator<Item = &'a str>) -> String {
    let values: Vec<_> = values.map(|it| format!("`{it}`")).collect();
    format!("\n## Values of {heading}\n\n{}.\n", values.join(", "))
}

struct Family<'t> {
    kind: &'t str,
    help: &'t str,
    labels: String,
}

/// Kind, help and labels of each metric in the OpenMetrics text.
fn families(text: &str) -> BTreeMap<&str, Family<'_>> {
    let mut families = BTreeMap::new();
    for line in text.lines() {
        let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let kind = format!("# TYPE {name} ");
        let kind = text
            .lines()
            .find_map(|line| line.strip_prefix(kind.as_str()))
            .unwrap();
        let is_sample = |line: &&str| line.starts_with(name) && line.contains('{');
        let sample = text.lines().find(is_sample).unwrap_or_default();
        let labels = sample
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        let labels = labels.map_or("", |(labels, _)| labels);
        let labels = labels
            .split("\",")
            .filter_map(|label| label.split_once('='));
        let labels = labels
            .filter(|(name, _)| *name != "le")
            .map(|(name, _)| format!("`{name}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        let help = help.trim_end_matches('.');
        families.insert(name, Family { kind, help, labels });
    }
    families
}

/// A worker whose broker reports everything.
#[derive(Debug)]
struct OneWorker;

impl Workers for OneWorker {
    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>> {
        let lag = Lag::waiting(1).with_unacknowledged(1);
        let status = WorkerStatus {
            name: "billing".into(),
            counts: vec![("completed", 1)],
            dead_letters: Some(1),
            ..WorkerStatus::default()
        };
        let status = status.with_lag(lag.with_oldest(Some(Duration::from_secs(1))));
        Box::pin(async { vec![status] })
    }

    fn dead_letters<'a>(
        &'a self,
        _: &'a str,
        _: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>> {
        Box::pin(async { None })
    }

    fn redrive<'a>(
        &'a self,
        _: &'a str,
        _: u32,
        _: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<RedriveStatus>>> {
        Box::pin(async { None })
    }
}

/// The metrics of a proxy with an exactly-once operation after one request.
async fn served() -> String {
    let file = format!(
        "[[operation]]\nmatch = \"POST /pay\"\nguarantee = \"exactly-once\"\nreceipts = \"{RECEIPTS}\"\n\
         [[operation]]\nmatch = \"POST /refund\"\nmode = \"observe\"\n"
    );
    let policy: Policy = File::parse(&file, "refrain.toml").unwrap().policy;
    let metrics = Metrics::new(&policy, "memory:");
    let telemetry = Telemetry::new(metrics.clone());
    let key = MasterKey::new([1; 32]);
    let store = AnyStore::new(Memory::new()).with_encryption(Encryption::new(key));
    let engine = Engine::new(store.clone().with_meter(metrics));
    let layer = RefrainLayer::new(engine, policy)
        .with_observer(telemetry.clone())
        .with_receipts(RECEIPTS, NoReceipts);
    let mut shop = Router::new()
        .route("/pay", post(async || "paid"))
        .layer(layer.clone());
    let request = Request::post("/pay")
        .header("Idempotency-Key", "k")
        .body(Body::empty());
    let answer = shop.call(request.unwrap()).await.unwrap();
    store.renew_scope_keys().await.unwrap();
    assert_eq!(answer.status(), 200);
    let admin = Admin {
        layer,
        telemetry,
        is_draining: Arc::default(),
        token: None,
        reader_token: None,
        hosts: Vec::new(),
        configuration: serde_json::Value::Null,
        workers: Some(Arc::new(OneWorker)),
        reload: None,
        tls: None,
        search_time: admin::SEARCH_TIME,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(admin::serve(listener, admin, std::future::pending()));
    let mut asked = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    asked.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    asked.read_to_string(&mut text).await.unwrap();
    serving.abort();
    text
}
