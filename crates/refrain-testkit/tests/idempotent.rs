//! Tests [`assert_idempotent`] for missed bugs and for false alarms:
//! it must report each deliberate bug and no other, and pass a correct service.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, Response},
    routing::post,
};
use bytes::Bytes;
use http_body::Frame;
use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
use refrain_testkit::{Ledger, Report, assert_idempotent, idempotent::check};

/// Bugs of a handwritten service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Ignores the key.
    NoKey,
    /// Check-then-act: looks the key up, executes, and only then stores the key.
    CheckThenAct,
    /// Stores the response only once the client has read it.
    KeptWhenRead,
    /// Replays to any request under the key, without comparing the body.
    NotCompared,
    /// Treats the same body as a duplicate, even under another key.
    AcrossKeys,
    /// Claims the key, and refuses every duplicate for ever.
    NeverAnswered,
    /// Has no effect.
    NoEffect,
}

#[derive(Debug, Clone)]
enum Kept {
    Running,
    Answered { body: String, answer: String },
}

type Answers = Arc<Mutex<HashMap<String, Kept>>>;

fn request(key: &str) -> Request<Body> {
    Request::post("/v1/payments")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(r#"{"amount":20}"#))
        .unwrap()
}

fn hand_made(flaw: Flaw, ledger: Ledger) -> Router {
    let answers = Answers::default();
    let pay = async move |headers: HeaderMap, body: String| {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        answer(flaw, &answers, &ledger, key, body).await
    };
    Router::new().route("/v1/payments", post(pay))
}

async fn answer(
    flaw: Flaw,
    answers: &Answers,
    ledger: &Ledger,
    key: String,
    body: String,
) -> Response<Body> {
    let place = match flaw {
        Flaw::AcrossKeys => body.clone(),
        _ => key.clone(),
    };
    let known = answers.lock().unwrap().get(&place).cloned();
    match known {
        _ if flaw == Flaw::NoKey => {}
        None => {}
        Some(Kept::Running) => return plain(409, "in flight"),
        Some(_) if flaw == Flaw::NeverAnswered => return plain(409, "in flight"),
        Some(Kept::Answered { body: first, .. }) if first != body && flaw != Flaw::NotCompared => {
            return plain(422, "another request");
        }
        Some(Kept::Answered { answer, .. }) => return plain(200, answer),
    }
    if flaw != Flaw::CheckThenAct {
        answers.lock().unwrap().insert(place.clone(), Kept::Running);
    }
    if flaw != Flaw::NoEffect {
        ledger.take_effect(&key, "charged").await.unwrap();
    }
    let answer = format!("charged, {} so far", ledger.count().unwrap());
    let kept = Kept::Answered {
        body,
        answer: answer.clone(),
    };
    if flaw == Flaw::KeptWhenRead {
        let reading = Reading {
            inner: Body::from(answer),
            answers: answers.clone(),
            place,
            kept: Some(kept),
        };
        return Response::new(Body::new(reading));
    }
    answers.lock().unwrap().insert(place, kept);
    plain(200, answer)
}

fn plain(status: u16, text: impl Into<Body>) -> Response<Body> {
    let response = Response::builder().status(status);
    response.body(text.into()).unwrap()
}

/// Stores the response once its body was read to the end, and drops the claim otherwise.
struct Reading {
    inner: Body,
    answers: Answers,
    place: String,
    kept: Option<Kept>,
}

impl http_body::Body for Reading {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            let kept = self.kept.take();
            let mut answers = self.answers.lock().unwrap();
            answers.extend(kept.map(|kept| (self.place.clone(), kept)));
        }
        polled
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.kept.is_some() {
            self.answers.lock().unwrap().remove(&self.place);
        }
    }
}

fn refrained(ledger: Ledger) -> Router {
    let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default());
    hand_made(Flaw::NoKey, ledger).layer(layer)
}

async fn found(flaw: Flaw) -> Report {
    check(move |ledger| hand_made(flaw, ledger), request).await
}

#[tokio::test]
async fn guarded_naive_service_is_idempotent() {
    let report = check(refrained, request).await;
    assert!(report.holes.is_empty(), "{report}");
    assert_eq!(report.passed.len(), 7, "{report}");
    assert!(report.left_out.is_empty(), "{report}");
}

#[tokio::test]
async fn each_hole_is_found_and_nothing_else() {
    for (flaw, want) in [
        (Flaw::None, &[][..]),
        (
            Flaw::NoKey,
            &[
                "sequential-duplicate",
                "concurrent-duplicates",
                "duplicate-in-flight",
                "lost-answer",
                "other-body",
            ],
        ),
        (
            Flaw::CheckThenAct,
            &["concurrent-duplicates", "duplicate-in-flight"],
        ),
        (Flaw::KeptWhenRead, &["lost-answer"]),
        (Flaw::NotCompared, &["other-body"]),
        (Flaw::AcrossKeys, &["other-body", "same-body-other-key"]),
        (Flaw::NoEffect, &["first-request"]),
    ] {
        let report = found(flaw).await;
        assert_eq!(report.failed(), want, "{flaw:?}: {report}");
    }
}

/// Paused clock, because the check waits until its timeout for a response that never comes.
#[tokio::test(start_paused = true)]
async fn a_key_that_stays_in_flight_is_found() {
    let report = found(Flaw::NeverAnswered).await;
    let want = [
        "sequential-duplicate",
        "concurrent-duplicates",
        "duplicate-in-flight",
        "lost-answer",
    ];
    assert_eq!(report.failed(), want, "{report}");
}

#[tokio::test]
#[should_panic(expected = "fix:  Claim the key in one atomic step")]
async fn the_message_names_the_hole_and_the_fix() {
    assert_idempotent(|ledger| hand_made(Flaw::CheckThenAct, ledger), request).await;
}

#[tokio::test]
async fn report_contains_the_observation() {
    let report = found(Flaw::NoKey).await;
    let hole = &report.holes[0];
    assert_eq!(
        hole.seen,
        "after the same request again it took effect 2 times (charged, charged), not once"
    );
    assert!(
        report
            .to_string()
            .contains("hole: The service ignores or forgets the key")
    );
}

#[tokio::test]
async fn untested_cases_are_listed() {
    let bare = |key: &str| request(key).map(|_| Body::empty());
    let at_once = |ledger: Ledger| {
        let pay = async move |headers: HeaderMap| {
            let key = headers["idempotency-key"].to_str().unwrap();
            ledger.record(key, "charged").unwrap();
        };
        let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default());
        Router::new().route("/v1/payments", post(pay)).layer(layer)
    };
    let report = check(at_once, bare).await;
    assert!(report.holes.is_empty(), "{report}");
    let left_out = report.left_out.join("\n");
    assert!(
        left_out.contains("other-body: the request has no body"),
        "{report}"
    );
}
