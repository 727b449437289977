//! Metrics that miss or double-count a decision mislead operators: every request to a guarded operation is reported
//! once, with the right decision.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse, routing::any};
use http::{HeaderMap, Request, StatusCode};
use refrain::{
    Engine, ErrorKind, Operation, Policy,
    http::{Decision, Failure, Observer, RefrainLayer},
    policy::{Mode, OnStoreFailure},
    record::Reason,
    store::Memory,
};
use refrain_testkit::ManualClock;
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, until};

/// The decisions so far.
#[derive(Debug, Default)]
struct Book(Mutex<Vec<(String, Decision, Duration)>>);

impl Observer for Book {
    fn decided(&self, operation: &Operation, decision: Decision, took: Duration) {
        let mut book = self.0.lock().unwrap();
        book.push((operation.name.clone(), decision, took));
    }
}

impl Book {
    fn take(&self) -> Vec<Decision> {
        let book = std::mem::take(&mut *self.0.lock().unwrap());
        book.into_iter().map(|(_, decision, _)| decision).collect()
    }
}

struct Shop {
    store: Scripted,
    book: Arc<Book>,
    app: Router,
}

/// Responds as the header `do` says.
async fn pay(headers: HeaderMap) -> axum::response::Response {
    let mut response = "done".into_response();
    match headers.get("do").map(|value| value.to_str().unwrap()) {
        Some("refuse") => *response.status_mut() = StatusCode::TOO_MANY_REQUESTS,
        Some("large") => response = "x".repeat(2_000).into_response(),
        Some("unsent") => {
            response.extensions_mut().insert(Failure::NotSent);
        }
        Some("lose") => {
            let lost = Failure::Lost(Reason::Reset);
            response.extensions_mut().insert(lost);
        }
        Some("hang") => std::future::pending().await,
        _ => {}
    }
    response
}

fn shop(change: impl FnOnce(&mut Operation)) -> Shop {
    shop_on(Scripted::new(), change)
}

fn shop_on(store: Scripted, change: impl FnOnce(&mut Operation)) -> Shop {
    let mut operation = Operation::new("POST /pay").unwrap();
    operation.request_bytes_max = 1_000;
    operation.outcome_bytes_max = 1_000;
    operation.terms.wait = Duration::ZERO;
    change(&mut operation);
    let book = Arc::new(Book::default());
    let policy = Policy::new(vec![operation]).unwrap();
    let layer = RefrainLayer::new(Engine::new(store.clone()), policy).with_observer(book.clone());
    let app = Router::new().route("/pay", any(pay)).layer(layer);
    Shop { store, book, app }
}

fn request(what: &str, key: &str, user: &str, body: &str) -> Request<Body> {
    let mut request = Request::post("/pay").header("do", what);
    for (name, value) in [("idempotency-key", key), ("x-api-key", user)] {
        if !value.is_empty() {
            request = request.header(name, value);
        }
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

impl Shop {
    async fn check(&self, what: &str, key: &str, body: &str, expected: Decision) {
        self.check_as("ann", what, key, body, expected).await;
    }

    async fn check_as(&self, user: &str, what: &str, key: &str, body: &str, expected: Decision) {
        let request = request(what, key, user, body);
        let response = self.app.clone().call(request).await.unwrap();
        let told = format!("{what} {key} {user}: {}", response.status());
        assert_eq!(self.book.take(), [expected], "{told}");
        let mark = response.extensions().get::<Decision>();
        assert_eq!(mark, None, "the internal extension leaked: {told}");
    }
}

#[tokio::test]
async fn observer_sees_each_request_once_with_its_decision() {
    let shop = shop(|operation| operation.scope = vec!["route".parse().unwrap()]);
    let long = "x".repeat(1_001);
    shop.check("", "a", "1", Decision::FreshKept).await;
    shop.check("", "a", "1", Decision::Replayed).await;
    shop.check("", "a", "2", Decision::KeyReused).await;
    let other = Decision::CredentialChanged;
    shop.check_as("bob", "", "a", "1", other).await;
    shop.check("", "", "1", Decision::Passed).await;
    shop.check("", "two words", "1", Decision::KeyInvalid).await;
    shop.check("", "b", &long, Decision::RequestTooLarge).await;
    shop.check("refuse", "b", "1", Decision::FreshReleased)
        .await;
    let unsent = Decision::UpstreamUnreachable;
    shop.check("unsent", "b", "1", unsent).await;
    shop.check("lose", "b", "1", Decision::OutcomeUnknown).await;
    shop.check("", "b", "1", Decision::OutcomeUnknown).await;
    shop.check("large", "c", "1", Decision::FreshKept).await;
    shop.check("large", "c", "1", Decision::BodyNotKept).await;
    shop.store
        .set(Op::Claim, 2, Fault::Fails(ErrorKind::Unavailable));
    shop.check("", "d", "1", Decision::StoreUnavailable).await;
}

#[tokio::test]
async fn observer_distinguishes_required_observed_and_passed_requests() {
    let required = shop(|operation| operation.required = true);
    required.check("", "", "1", Decision::KeyMissing).await;
    let watched = shop(|operation| operation.mode = Mode::Observe);
    for (key, what) in [("a", ""), ("a", ""), ("", "refuse"), ("two words", "")] {
        watched.check(what, key, "1", Decision::Observed).await;
    }
    let passing = shop(|operation| operation.on_store_failure = OnStoreFailure::Pass);
    passing
        .store
        .set(Op::Claim, 2, Fault::Fails(ErrorKind::Unavailable));
    passing.check("", "a", "1", Decision::Unguarded).await;
}

#[tokio::test]
async fn observer_sees_expired_keys() {
    let clock = ManualClock::new();
    let store = Scripted::on(Memory::with_options(1 << 20, clock.shared()));
    let shop = shop_on(store, |_| ());
    shop.check("", "a", "1", Decision::FreshKept).await;
    clock.advance(Operation::default().terms.retention);
    shop.check("", "a", "1", Decision::KeyExpired).await;
}

#[tokio::test]
async fn observer_sees_disconnects_and_concurrent_duplicates() {
    let shop = shop(|_| ());
    let mut app = shop.app.clone();
    let hanging = tokio::spawn(app.call(request("hang", "a", "ann", "1")));
    until(|| shop.store.calls(Op::Claim) == 1).await;
    shop.check("", "a", "1", Decision::InFlight).await;
    hanging.abort();
    let _ = hanging.await;
    assert_eq!(shop.book.take(), [Decision::HungUp]);
}

#[tokio::test]
async fn observer_ignores_operations_outside_the_policy() {
    let shop = shop(|_| ());
    let get = Request::get("/pay").body(Body::empty()).unwrap();
    assert_eq!(shop.app.clone().call(get).await.unwrap().status(), 200);
    assert_eq!(shop.book.take(), []);
    shop.check("", "a", "1", Decision::FreshKept).await;
}

#[test]
fn labels_are_all_different() {
    let mut labels: Vec<_> = Decision::ALL.iter().map(|it| it.label()).collect();
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), Decision::ALL.len());
}
