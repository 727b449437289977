//! The API about workers: an operator who redrives twice, mistypes a name or asks a broker that is away must be told so.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use http::Method;
use refrain::{
    Error, ErrorKind, Result,
    consume::{DeadLetter, Lag, Message},
    engine::OperatorAction,
};
use refrain_proxy::admin::{RedriveStatus, WorkerStatus, Workers, WorkersFuture};
use serde_json::{Value, json};

use crate::stage::{self, Stage};

/// Workers with scripted responses, by their names.
#[derive(Debug, Default)]
struct Scripted {
    /// Redrives that were ordered.
    redrives: AtomicU32,
    /// How often dead letters were listed.
    listings: AtomicU32,
}

impl Workers for Scripted {
    fn troubles(&self) -> Vec<String> {
        vec!["worker away: the broker has gone away".into()]
    }

    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>> {
        let status = |name: &str| WorkerStatus {
            name: name.into(),
            counts: vec![("completed", 7), ("retried", 2)],
            in_flight: 3,
            ..WorkerStatus::default()
        };
        let lag = Lag::waiting(12).with_unacknowledged(5);
        Box::pin(async move { vec![status("billing").with_lag(lag), status("away")] })
    }

    fn dead_letters<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>> {
        self.listings.fetch_add(1, Relaxed);
        let letter = DeadLetter::of(&Message::new("secret"), None);
        let letters = match worker {
            "billing" => Some(Ok(vec![letter; 5.min(at_most as usize)])),
            "away" => Some(Err(gone())),
            _ => None,
        };
        Box::pin(async { letters })
    }

    fn redrive<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
        _: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<RedriveStatus>>> {
        self.redrives.fetch_add(1, Relaxed);
        let sent = RedriveStatus {
            sent: at_most.into(),
            ..RedriveStatus::default()
        };
        let running = RedriveStatus {
            is_running: true,
            ..RedriveStatus::default()
        };
        let redriven = match worker {
            "billing" => Some(Ok(sent)),
            "slow" => Some(Ok(running)),
            "busy" => Some(Err(Error::new(ErrorKind::Held, "another redrive runs"))),
            "away" => Some(Err(gone())),
            _ => None,
        };
        Box::pin(async { redriven })
    }
}

/// Workers whose broker never responds.
#[derive(Debug)]
pub(crate) struct Silent;

impl Workers for Silent {
    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>> {
        Box::pin(std::future::pending())
    }

    fn dead_letters<'a>(
        &'a self,
        _: &'a str,
        _: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>> {
        Box::pin(std::future::pending())
    }

    fn redrive<'a>(
        &'a self,
        _: &'a str,
        _: u32,
        _: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<RedriveStatus>>> {
        Box::pin(std::future::pending())
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the broker has gone away")
}

async fn open() -> Stage {
    stage::open_with_workers(Arc::new(Scripted::default())).await
}

#[tokio::test]
async fn workers_are_listed_and_counted() {
    let stage = open().await;
    let listed = stage.get("/api/workers").await.json;
    let billing = &listed["workers"][0];
    assert_eq!(billing["lag"], 12, "{listed}");
    assert_eq!(billing["unacknowledged"], 5, "{listed}");
    assert_eq!(billing["counts"], json!([["completed", 7], ["retried", 2]]));
    assert_eq!(listed["workers"][1]["lag"], Value::Null, "{listed}");
    let metrics = stage.get("/metrics").await.text;
    for line in [
        "refrain_messages_total{consumer=\"billing\",outcome=\"retried\"} 2",
        "refrain_worker_lag{consumer=\"billing\"} 12",
        "refrain_worker_unacknowledged{consumer=\"billing\"} 5",
        "refrain_worker_in_flight{consumer=\"away\"} 3",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} in {metrics}");
    }
    // What a broker does not tell is absent, not 0.
    assert!(!metrics.contains("refrain_worker_lag{consumer=\"away\"}"));
}

#[tokio::test]
async fn dead_letters_are_listed_without_their_payload() {
    let stage = open().await;
    let path = "/api/workers/billing/dead-letters";
    let all = stage.get(path).await;
    assert_eq!(all.json["dead_letters"].as_array().unwrap().len(), 5);
    assert_eq!(all.json["are_all"], true);
    assert!(!all.text.contains("secret"), "{}", all.text);
    let some = stage.get(&format!("{path}?limit=4")).await.json;
    assert_eq!(some["dead_letters"].as_array().unwrap().len(), 4);
    assert_eq!(some["are_all"], false);
    for (path, status) in [
        ("/api/workers/billing/dead-letters?limit=0", 400),
        ("/api/workers/billing/dead-letters?limit=1001", 400),
        ("/api/workers/billing/dead-letters?limt=1", 400),
        ("/api/workers/unknown/dead-letters", 404),
        ("/api/workers/away/dead-letters", 503),
    ] {
        let refused = stage.get(path).await;
        assert_eq!(refused.status, status, "{path}: {}", refused.text);
        assert!(refused.json["fix"].is_string(), "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn a_redrive_says_what_it_did_or_why_not() {
    let stage = open().await;
    let because = json!({ "reason": "fixed", "by": "anna" });
    for (worker, body, status) in [
        ("billing", because.clone(), 200),
        ("slow", because.clone(), 202),
        ("busy", because.clone(), 409),
        ("away", because.clone(), 503),
        ("unknown", because, 404),
        (
            "billing",
            json!({ "reason": "fixed", "at_most": 1_001 }),
            400,
        ),
        ("billing", json!({ "reason": " " }), 400),
        ("billing", json!({}), 400),
    ] {
        let path = format!("/api/workers/{worker}/redrive");
        let redriven = stage.ask(Method::POST, &path, &body.to_string()).await;
        assert_eq!(
            redriven.status, status,
            "{worker} {body}: {}",
            redriven.text
        );
        match status {
            200 => assert_eq!(redriven.json["sent"], 100, "the default"),
            202 => assert_eq!(redriven.json["is_running"], true),
            _ => assert!(redriven.json["fix"].is_string(), "{}", redriven.text),
        }
    }
}

#[tokio::test]
async fn it_is_not_ready_while_a_worker_gets_no_messages() {
    let stage = open().await;
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json["reason"], "broker");
    let detail = ready.json["detail"].as_str().unwrap();
    assert!(detail.contains("worker away"), "{detail}");
}

#[tokio::test]
async fn a_process_without_workers_has_none() {
    let stage = stage::open().await;
    assert_eq!(stage.get("/api/workers").await.json["workers"], json!([]));
    let letters = stage.get("/api/workers/billing/dead-letters").await;
    assert_eq!(letters.status, 404);
}

#[tokio::test]
async fn a_form_that_is_sent_again_redrives_nothing_more() {
    let workers = Arc::new(Scripted::default());
    let stage = stage::open_with_workers(workers.clone()).await;
    let page = stage.get("/workers/billing").await;
    let field = |name: &str| {
        let (_, rest) = page
            .text
            .split_once(&format!("name=\"{name}\" value=\""))
            .unwrap();
        rest.split_once('"').unwrap().0
    };
    let set = page.headers["set-cookie"].to_str().unwrap();
    let headers = [
        ("cookie", set.split(';').next().unwrap()),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let form = format!(
        "form_token={}&once={}&sure=yes&at_most=7&reason=fixed",
        field("form_token"),
        field("once")
    );
    let path = "/workers/billing/redrive";
    let listed = workers.listings.load(Relaxed);
    for _ in 0..2 {
        let answer = stage.ask_with(Method::POST, path, &headers, &form).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        let result = stage
            .get(answer.headers["location"].to_str().unwrap())
            .await;
        assert!(result.text.contains("7 published again"), "{}", result.text);
    }
    assert_eq!(workers.redrives.load(Relaxed), 1, "redriven twice");
    assert_eq!(
        workers.listings.load(Relaxed),
        listed,
        "the result waits for the broker"
    );
    let unsure = form
        .replace("sure=yes", "sure=no")
        .replace(field("once"), "");
    let answer = stage.ask_with(Method::POST, path, &headers, &unsure).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(
        answer.text.contains("value=\"fixed\""),
        "the entries are lost"
    );
    assert_eq!(workers.listings.load(Relaxed), listed);
}
