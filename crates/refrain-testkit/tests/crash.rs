//! Most homemade deduplication breaks on a crash: it leaves a mark without an effect, or an effect without a mark.
//! The harness must detect both, and must report nothing where the guarantee is kept.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request},
    routing::post,
};
use refrain::{
    Engine, Guarantee, Operation, Outcome, Policy, Terms,
    consume::{Backoff, Consumer, Job},
    http::RefrainLayer,
    store::Memory,
};
use refrain_testkit::{
    Ledger, Report, assert_consumer, assert_crash_safe,
    crash::{DEAD_LETTERS, Stand, check_consumer, check_service},
};

/// The shortest lease that a policy accepts.
const LEASE: Duration = Duration::from_secs(1);

fn request(key: &str) -> Request<Body> {
    Request::post("/pay")
        .header("idempotency-key", key)
        .body(Body::empty())
        .unwrap()
}

fn key_of(headers: &HeaderMap) -> String {
    headers["idempotency-key"].to_str().unwrap().to_owned()
}

fn terms(guarantee: Guarantee) -> Terms {
    Terms {
        guarantee,
        lease: LEASE,
        ..Terms::default()
    }
}

/// A naive service behind the layer; the store survives the simulated crashes.
fn refrained(guarantee: Guarantee) -> impl Fn(Ledger) -> Router {
    let store = Memory::new();
    move |ledger| {
        let pay = async move |headers: HeaderMap| {
            ledger
                .take_effect(&key_of(&headers), "charged")
                .await
                .unwrap();
            ledger.point("before the answer").await;
            "charged"
        };
        let operation = Operation::new("POST /pay").unwrap();
        let policy = Policy::new(vec![operation.with_terms(terms(guarantee))]).unwrap();
        let layer = RefrainLayer::new(Engine::new(store.clone()), policy);
        Router::new().route("/pay", post(pay)).layer(layer)
    }
}

#[tokio::test]
async fn guarded_service_keeps_its_guarantee() {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        let report = check_service(guarantee, refrained(guarantee), request).await;
        assert!(report.holes.is_empty(), "{guarantee:?}: {report}");
        assert_eq!(report.passed.len(), 4, "{report}");
        assert!(report.left_out.is_empty(), "{report}");
    }
}

#[tokio::test]
async fn a_guarantee_that_is_not_kept_is_found() {
    // At-least-once executes again after a crash that followed the effect: that is not exactly-once.
    let loose = refrained(Guarantee::AtLeastOnce);
    let report = check_service(Guarantee::ExactlyOnce, loose, request).await;
    assert_eq!(
        report.failed(),
        ["process-dies", "handler-panics"],
        "{report}"
    );
    // At-most-once leaves an unknown outcome although nothing happened: that is not at-least-once.
    let strict = refrained(Guarantee::AtMostOnce);
    let report = check_service(Guarantee::AtLeastOnce, strict, request).await;
    assert_eq!(
        report.failed(),
        ["process-dies", "handler-panics"],
        "{report}"
    );
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Sets the mark after the effect.
    EffectThenMark,
    /// Sets the mark before the effect and never removes it.
    MarkThenEffect,
}

/// A service that keeps its marks in a table that survives the simulated crashes.
fn marked(flaw: Flaw) -> impl Fn(Ledger) -> Router {
    let marks = Arc::new(Mutex::new(HashMap::new()));
    move |ledger| {
        let marks = marks.clone();
        let pay = async move |headers: HeaderMap| {
            let key = key_of(&headers);
            match marks.lock().unwrap().get(&key) {
                Some(true) => return (axum::http::StatusCode::OK, "charged"),
                Some(false) => return (axum::http::StatusCode::CONFLICT, "in flight"),
                None => {}
            }
            if flaw == Flaw::MarkThenEffect {
                marks.lock().unwrap().insert(key.clone(), false);
            }
            ledger.take_effect(&key, "charged").await.unwrap();
            marks.lock().unwrap().insert(key, true);
            (axum::http::StatusCode::OK, "charged")
        };
        Router::new().route("/pay", post(pay))
    }
}

/// Paused clock, because the harness waits until its timeout for a mark that stays.
#[tokio::test(start_paused = true)]
async fn marks_beside_the_effect_are_found_wanting() {
    let crashes = ["client-hangs-up", "process-dies", "handler-panics"];
    for (flaw, said) in [
        (Flaw::EffectThenMark, "it took effect 2 times"),
        (Flaw::MarkThenEffect, "still in flight after 30s"),
    ] {
        let report = check_service(Guarantee::AtMostOnce, marked(flaw), request).await;
        assert_eq!(report.failed(), crashes, "{flaw:?}: {report}");
        let seen = &report.holes[0].seen;
        assert!(seen.contains(said), "{flaw:?}: {seen}");
    }
}

#[tokio::test]
#[should_panic(expected = "fix:  Commit effect and record in one transaction")]
async fn the_message_names_the_hole_and_the_fix() {
    assert_crash_safe(Guarantee::AtMostOnce, marked(Flaw::EffectThenMark), request).await;
}

fn consumer(
    guarantee: Guarantee,
) -> impl Fn(Stand) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let store = Memory::new();
    move |stand: Stand| {
        let consumer = Consumer::new(stand.broker, Engine::new(store.clone()), stand.name)
            .with_terms(Terms {
                lease: LEASE / 10,
                ..terms(guarantee)
            })
            .with_backoff(Backoff::new(
                Duration::from_millis(5),
                Duration::from_millis(20),
            ))
            .with_dead_letter(DEAD_LETTERS);
        let ledger = stand.ledger;
        let handle = move |job: Job| {
            let ledger = ledger.clone();
            async move {
                ledger.take_effect(job.key.as_str(), job.fence).await?;
                Ok(Outcome::new(0, "done"))
            }
        };
        Box::pin(async { drop(consumer.run(handle, std::future::pending()).await) })
    }
}

#[tokio::test]
async fn refrains_consumer_keeps_its_guarantee() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let report = check_consumer(guarantee, consumer(guarantee)).await;
        assert!(report.holes.is_empty(), "{guarantee:?}: {report}");
        assert_eq!(report.passed.len(), 7, "{report}");
    }
}

/// Bugs of a handwritten consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// No deduplication at all.
    NoDedup,
    /// Marks an id as done before handling the message.
    MarkFirst,
    /// Acknowledges before handling the message.
    AckFirst,
    /// All consumers share their marks.
    NoName,
    /// Remembers only the last id.
    LastOnly,
}

fn hand_made(wrong: Wrong) -> impl Fn(Stand) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let marks = Arc::new(Mutex::new(HashSet::new()));
    move |stand: Stand| {
        let marks = marks.clone();
        Box::pin(async move {
            loop {
                let pulled = stand.broker.pull(1, Duration::from_secs(1)).await;
                for delivery in pulled.unwrap() {
                    one(wrong, &marks, &stand, delivery).await;
                }
            }
        })
    }
}

/// Handles messages one after the other, so that there are no races.
async fn one(
    wrong: Wrong,
    marks: &Mutex<HashSet<String>>,
    stand: &Stand,
    delivery: refrain::consume::Delivery,
) {
    let id = delivery.message.id.clone().unwrap();
    let mark = match wrong {
        Wrong::NoName => id.clone(),
        _ => format!("{} {id}", stand.name),
    };
    let mut ticket = Some(delivery.ticket);
    if wrong != Wrong::NoDedup && marks.lock().unwrap().contains(&mark) {
        return ticket.take().unwrap().ack().await.unwrap();
    }
    if wrong == Wrong::MarkFirst {
        marks.lock().unwrap().insert(mark.clone());
    }
    if wrong == Wrong::AckFirst {
        ticket.take().unwrap().ack().await.unwrap();
    }
    stand.ledger.take_effect(&id, "handled").await.unwrap();
    if wrong == Wrong::LastOnly {
        let others = |kept: &String| !kept.starts_with(&stand.name);
        marks.lock().unwrap().retain(others);
    }
    marks.lock().unwrap().insert(mark);
    if let Some(ticket) = ticket {
        ticket.ack().await.unwrap();
    }
}

async fn found(wrong: Wrong) -> Report {
    check_consumer(Guarantee::AtLeastOnce, hand_made(wrong)).await
}

#[tokio::test]
async fn each_consumers_hole_is_found_and_nothing_else() {
    for (wrong, want) in [
        (
            Wrong::NoDedup,
            &["duplicate-message", "duplicates-at-once", "out-of-order"][..],
        ),
        (Wrong::MarkFirst, &["process-dies", "handler-panics"]),
        (Wrong::AckFirst, &["process-dies", "handler-panics"]),
        (Wrong::NoName, &["two-consumers"]),
        (Wrong::LastOnly, &["out-of-order"]),
    ] {
        let report = found(wrong).await;
        assert_eq!(report.failed(), want, "{wrong:?}: {report}");
    }
}

#[tokio::test]
#[should_panic(expected = "fix:  Mark and acknowledge only after successful handling")]
async fn the_consumers_message_names_the_hole_and_the_fix() {
    assert_consumer(Guarantee::AtLeastOnce, hand_made(Wrong::MarkFirst)).await;
}
