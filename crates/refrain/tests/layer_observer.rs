//! Metrics that miss or double-count a decision mislead operators: every request to a guarded operation is reported
//! once, with the right decision.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    response::IntoResponse,
    routing::any,
};
use http::{HeaderMap, Request, StatusCode};
use refrain::{
    Engine, ErrorKind, Operation, Policy,
    http::{DecidedRequest, Decision, Failure, Observed, Observer, RefrainLayer},
    policy::{Mode, OnStoreFailure},
    record::Reason,
    store::Memory,
};
use refrain_testkit::ManualClock;
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, until};

/// The requests and findings so far.
#[derive(Debug, Default)]
struct Book {
    requests: Mutex<Vec<Entry>>,
    findings: Mutex<Vec<Observed>>,
}

#[derive(Debug)]
struct Entry {
    operation: Option<String>,
    decision: Decision,
    line: String,
    status: Option<u16>,
    record: Option<String>,
    trace_id: Option<[u8; 16]>,
    took: Duration,
    served: Option<Duration>,
    waited: bool,
}

impl Observer for Book {
    fn decided(&self, request: &DecidedRequest<'_>) {
        self.requests.lock().unwrap().push(Entry {
            operation: request.operation.map(|it| it.name.clone()),
            decision: request.decision,
            line: format!("{} {}", request.method, request.target),
            status: request.response.map(|(status, _)| status.as_u16()),
            record: request.record().map(str::to_owned),
            trace_id: request.trace_id(),
            took: request.took,
            served: request.served,
            waited: request.waited,
        });
    }

    fn observed(&self, operation: &Operation, finding: Observed) {
        assert_eq!(operation.name, "POST /pay");
        self.findings.lock().unwrap().push(finding);
    }
}

impl Book {
    fn entries(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    fn take(&self) -> Vec<Decision> {
        self.entries().iter().map(|it| it.decision).collect()
    }

    async fn findings(&self, expected: &[Observed]) {
        until(|| self.findings.lock().unwrap().len() >= expected.len()).await;
        assert_eq!(
            std::mem::take(&mut *self.findings.lock().unwrap()),
            expected
        );
    }
}

struct Shop {
    store: Scripted,
    book: Arc<Book>,
    app: Router,
}

/// Opens for the request that is told to wait for it.
static GATE: tokio::sync::Notify = tokio::sync::Notify::const_new();

/// Responds as the header `do` says.
async fn pay(headers: HeaderMap, _: Bytes) -> axum::response::Response {
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
        Some("gate") => GATE.notified().await,
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
    let watched = shop(|operation| {
        operation.mode = Mode::Observe;
        // The outcome of the first request is stored in the background.
        operation.terms.wait = Duration::from_secs(60);
    });
    for (key, body, finding) in [
        ("a", "1", Observed::WouldExecute),
        ("a", "1", Observed::WouldReplay),
        ("a", "2", Observed::WouldRefuse),
        ("b", &"x".repeat(1_001)[..], Observed::WouldRefuse),
        ("", "1", Observed::KeyMissing),
        ("two words", "1", Observed::KeyInvalid),
    ] {
        watched.check("", key, body, Decision::Observed).await;
        watched.book.findings(&[finding]).await;
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
async fn observer_sees_requests_outside_the_policy_without_an_operation() {
    let shop = shop(|_| ());
    let get = Request::get("/pay?q=1").body(Body::empty()).unwrap();
    assert_eq!(shop.app.clone().call(get).await.unwrap().status(), 200);
    let [entry] = &shop.book.entries()[..] else {
        panic!("not one entry")
    };
    assert_eq!(entry.operation, None);
    assert_eq!(entry.decision, Decision::Passed);
    assert_eq!((&entry.line[..], entry.status), ("GET /pay?q=1", Some(200)));
    assert_eq!(entry.record, None);
    shop.check("", "a", "1", Decision::FreshKept).await;
}

#[tokio::test]
async fn observer_learns_record_trace_and_times() {
    let shop = shop(|_| ());
    let mut traced = request("", "a", "ann", "1");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    traced
        .headers_mut()
        .insert("traceparent", trace.parse().unwrap());
    for is_first in [true, false] {
        let response = shop.app.clone().call(clone(&traced)).await.unwrap();
        let [entry] = &shop.book.entries()[..] else {
            panic!("not one entry")
        };
        let named = response.headers()["refrain-record"].to_str().unwrap();
        assert_eq!(entry.record.as_deref(), Some(named));
        assert_eq!(entry.operation.as_deref(), Some("POST /pay"));
        let id = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128;
        assert_eq!(entry.trace_id, Some(id.to_be_bytes()));
        assert_eq!(entry.served.is_some(), is_first, "{entry:?}");
        assert!(entry.served.unwrap_or_default() <= entry.took);
        assert!(!entry.waited);
    }
}

fn clone(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::from("1"));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[tokio::test]
async fn observer_learns_that_a_duplicate_waited() {
    let shop = shop(|operation| operation.terms.wait = Duration::from_secs(60));
    let mut app = shop.app.clone();
    let first = tokio::spawn(app.call(request("gate", "a", "ann", "1")));
    until(|| shop.store.calls(Op::Claim) == 1).await;
    let second = tokio::spawn(app.call(request("gate", "a", "ann", "1")));
    until(|| shop.store.calls(Op::Claim) == 2).await;
    GATE.notify_one();
    let responses = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(responses.0.unwrap().status(), 200);
    assert_eq!(responses.1.unwrap().status(), 200);
    let mut seen: Vec<_> = shop.book.entries();
    seen.sort_by_key(|it| it.waited);
    let seen: Vec<_> = seen.iter().map(|it| (it.decision, it.waited)).collect();
    let expected = [(Decision::FreshKept, false), (Decision::Replayed, true)];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn observer_sees_pages_of_problems() {
    let shop = shop(|_| ());
    for page in ["", "in-flight"] {
        let path = format!("/.well-known/refrain/problems/{page}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = shop.app.clone().call(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(shop.book.take(), [Decision::PageServed]);
    }
}

/// Its report once said that it had not waited, because it never got a reply.
#[tokio::test]
async fn observer_learns_that_a_duplicate_waited_before_it_disconnected() {
    let shop = shop(|operation| operation.terms.wait = Duration::from_secs(60));
    let mut app = shop.app.clone();
    let first = tokio::spawn(app.call(request("hang", "w", "ann", "1")));
    until(|| shop.store.calls(Op::Claim) == 1).await;
    let second = tokio::spawn(app.call(request("hang", "w", "ann", "1")));
    until(|| shop.store.calls(Op::Claim) == 2).await;
    // Its task is polled before this one goes on.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    second.abort();
    let _ = second.await;
    first.abort();
    let _ = first.await;
    let seen = shop.book.entries();
    let seen: Vec<_> = seen.iter().map(|it| (it.decision, it.waited)).collect();
    assert_eq!(seen, [(Decision::HungUp, true), (Decision::HungUp, false)]);
}

#[test]
fn labels_are_all_different() {
    let mut labels: Vec<_> = Decision::ALL.iter().map(|it| it.label()).collect();
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), Decision::ALL.len());
}
