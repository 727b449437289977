//! The layer among faults: a store that fails before, after or during the operation, holders that are overtaken,
//! unknown outcomes that a probe resolves, services that must be ready before they are called, and the observe mode,
//! which must not affect requests.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use refrain::{
    Engine, ErrorKind, Guarantee, Operation, Policy,
    engine::Count,
    http::{Failure, RefrainLayer},
    policy::{Mode, OnStoreFailure},
    record::Reason,
    store::StateName,
};
use tokio::sync::Semaphore;
use tower_layer::Layer as _;
use tower_service::Service;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, states, until};

/// What the handler does with a request; the header `do` selects it.
#[derive(Debug, Clone)]
struct Shop {
    store: Scripted,
    engine: Engine,
    app: Router,
    calls: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    /// The request heads that arrived at `/lookup`.
    lookups: Arc<Mutex<Vec<http::request::Parts>>>,
}

fn shop(change: impl FnOnce(&mut Operation)) -> Shop {
    shop_on(Scripted::on_runtime_clock(), change)
}

fn shop_on(store: Scripted, change: impl FnOnce(&mut Operation)) -> Shop {
    let mut operation = Operation::default();
    operation.terms.lease = Duration::from_secs(3);
    change(&mut operation);
    let policy = Policy::new(vec![operation]).unwrap();
    let engine = Engine::new(store.clone());
    let calls = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let lookups = Arc::new(Mutex::new(Vec::new()));
    let pay = {
        let (calls, gate) = (calls.clone(), gate.clone());
        async move |request: Request| {
            let number = calls.fetch_add(1, Ordering::SeqCst) + 1;
            pay(number, &gate, request).await
        }
    };
    let lookup = {
        let lookups = lookups.clone();
        async move |request: Request| {
            let head = request.into_parts().0;
            let status = match head.headers.get("find") {
                Some(_) => StatusCode::OK,
                None => StatusCode::NOT_FOUND,
            };
            lookups.lock().unwrap().push(head);
            (status, "found")
        }
    };
    let routes = Router::new()
        .route("/pay", any(pay))
        .route("/lookup", any(lookup));
    let layer = RefrainLayer::new(engine.clone(), policy).with_probes(routes.clone());
    let app = routes.layer(layer);
    Shop {
        store,
        engine,
        app,
        calls,
        gate,
        lookups,
    }
}

async fn pay(number: usize, gate: &Semaphore, request: Request) -> Response {
    let what = request.headers().get("do").cloned();
    let (mut body, mut sum) = (request.into_body(), String::new());
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.unwrap();
        len += frame.data_ref().map_or(0, Bytes::len);
        if let Some(trailers) = frame.trailers_ref() {
            sum = format!(" sum {}", trailers["x-sum"].to_str().unwrap());
        }
    }
    let mut response = format!("{number}: {len}{sum}").into_response();
    match what.as_ref().map(|it| it.as_bytes()) {
        Some(b"wait") => gate.acquire().await.unwrap().forget(),
        Some(b"refuse") => *response.status_mut() = StatusCode::TOO_MANY_REQUESTS,
        Some(b"wait-not-sent") => {
            gate.acquire().await.unwrap().forget();
            response.extensions_mut().insert(Failure::NotSent);
        }
        Some(b"reset") => {
            let lost = Failure::Lost(Reason::Reset);
            response.extensions_mut().insert(lost);
        }
        Some(b"overrule") => {
            let headers = response.headers_mut();
            headers.insert("refrain-outcome", "keep".parse().unwrap());
        }
        _ => {}
    }
    response
}

struct Seen {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Seen {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    #[track_caller]
    fn check(&self, status: u16, part: &str) {
        let seen = (self.status, &self.body);
        assert!(
            self.status == status && self.body.contains(part),
            "{seen:?}"
        );
    }
}

impl Shop {
    async fn send(&self, headers: &[(&str, &str)], body: impl Into<Body>) -> Seen {
        let mut request = Request::builder().method("POST").uri("/pay");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Seen {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Sends the request in a background task.
    fn start(&self, what: &'static str) -> tokio::task::JoinHandle<Seen> {
        let shop = self.clone();
        tokio::spawn(async move { shop.send(&[KEY, ("do", what)], "x").await })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

const KEY: (&str, &str) = ("idempotency-key", "k-1");

/// The client disconnects while the store processes the claim: nothing ran, so the retry must run.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_before_the_claim_is_answered_blocks_nothing() {
    let shop = shop(|_| {});
    let late = Fault::DoneLate(Duration::from_millis(100));
    shop.store.set(Op::Claim, 1, late);
    let gone = tokio::time::timeout(Duration::from_millis(50), shop.send(&[KEY], "x")).await;
    assert!(gone.is_err());
    tokio::time::sleep(Duration::from_millis(100)).await;
    shop.send(&[KEY], "x").await.check(200, "1: 1");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_cannot_be_stored_is_not_shown_until_it_is() {
    let shop = shop(|_| {});
    let down = Fault::Fails(ErrorKind::Unavailable);
    shop.store.set(Op::Settle, 5, down);
    shop.send(&[KEY], "x").await.check(503, "outcome-unknown");
    assert_eq!(shop.engine.tally().held_now(), 1);
    let again = shop.send(&[KEY], "x").await;
    again.check(200, "1: 1");
    assert_eq!((again.is_replay(), shop.calls()), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_runs_nothing_unless_told_to_pass() {
    let down = Fault::Fails(ErrorKind::Unavailable);
    let strict = shop(|_| {});
    strict.store.set(Op::Claim, 4, down);
    for _ in 0..2 {
        let seen = strict.send(&[KEY], "x").await;
        seen.check(503, "store-unavailable");
        assert!(seen.headers.contains_key("retry-after"));
    }
    assert_eq!(strict.calls(), 0);
    strict.send(&[KEY], "x").await.check(200, "1: 1");

    let lax = shop(|it| it.on_store_failure = OnStoreFailure::Pass);
    lax.store.set(Op::Claim, 2, down);
    let seen = lax.send(&[KEY, ("do", "overrule")], "x").await;
    seen.check(200, "1: 1");
    assert!(!seen.headers.contains_key("refrain-outcome"));
    assert_eq!(lax.engine.tally().get(Count::Unguarded), 1);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_is_not_absent() {
    let shop = shop(|_| {});
    let damaged = Fault::Fails(ErrorKind::Corrupt);
    shop.store.set(Op::Claim, 1, damaged);
    shop.send(&[KEY], "x").await.check(503, "store-unavailable");
    assert_eq!(shop.calls(), 0);
}

/// Two processes on one store; the first is cut off from it until the second has taken over.
async fn overtaken(
    on_store_failure: OnStoreFailure,
) -> (Shop, Shop, tokio::task::JoinHandle<Seen>) {
    let change = |it: &mut Operation| {
        it.terms.guarantee = Guarantee::AtLeastOnce;
        it.terms.wait = Duration::from_secs(1);
        it.on_store_failure = on_store_failure;
    };
    let store = Scripted::on_runtime_clock();
    let (loser, winner) = (shop_on(store.clone(), change), shop_on(store, change));
    let down = Fault::Fails(ErrorKind::Unavailable);
    loser.store.set(Op::Renew, usize::MAX, down);
    let first = loser.start("wait");
    tokio::time::sleep(Duration::from_secs(4)).await;
    (loser, winner, first)
}

#[tokio::test(start_paused = true)]
async fn an_overtaken_run_answers_what_the_winner_made_of_it() {
    let (loser, winner, first) = overtaken(OnStoreFailure::Refuse).await;
    let second = winner.send(&[KEY], "x").await;
    second.check(200, "1: 1");
    assert_eq!(winner.engine.tally().get(Count::PossibleDuplicate), 1);
    // One permit more than needed: a second execution would not block, but be counted.
    loser.gate.add_permits(2);
    let first = first.await.unwrap();
    assert!(first.is_replay());
    assert_eq!((first.body, loser.calls()), (second.body, 1));
    assert_eq!(loser.engine.tally().get(Count::Overtaken), 1);
}

/// The winner was rejected and released the key. The loser's run took effect: its outcome counts, and nothing runs a
/// third time.
#[tokio::test(start_paused = true)]
async fn an_overtaken_run_is_not_run_again() {
    let (loser, winner, first) = overtaken(OnStoreFailure::Refuse).await;
    winner
        .send(&[KEY, ("do", "refuse")], "x")
        .await
        .check(429, "");
    // One permit more than needed: a second execution would not block, but be counted.
    loser.gate.add_permits(2);
    first.await.unwrap().check(200, "1: 1");
    assert_eq!((loser.calls(), winner.calls()), (1, 1));
    assert!(winner.send(&[KEY], "x").await.is_replay());
}

/// "Pass" applies only to requests that have not run.
#[tokio::test(start_paused = true)]
async fn an_overtaken_run_does_not_pass_when_the_store_fails() {
    let (loser, winner, first) = overtaken(OnStoreFailure::Pass).await;
    winner.send(&[KEY], "x").await.check(200, "1: 1");
    let down = Fault::Fails(ErrorKind::Unavailable);
    loser.store.set(Op::Claim, 2, down);
    // One permit more than needed: a second execution would not block, but be counted.
    loser.gate.add_permits(2);
    first.await.unwrap().check(503, "outcome-unknown");
    assert_eq!(loser.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_could_not_be_sent_is_tried_once() {
    let shop = shop(|_| {});
    let tasks: Vec<_> = (0..20).map(|_| shop.start("wait-not-sent")).collect();
    until(|| shop.engine.tally().waiting_now() == 19).await;
    shop.gate.add_permits(20);
    for task in tasks {
        let seen = task.await.unwrap();
        seen.check(502, "upstream-unreachable");
        assert!(!seen.is_replay());
        assert_eq!(seen.headers["content-type"], "application/problem+json");
    }
    assert_eq!((shop.calls(), states(&shop.store).await), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_policys_probe_asks_as_the_caller_and_decides() {
    for find in [true, false] {
        let shop = shop(|it| it.probe = Some("GET /lookup?key={key}".parse().unwrap()));
        let mut headers = vec![KEY, ("authorization", "Bearer a"), ("do", "reset")];
        // Headers that belong to this one request must not be copied to the probe.
        headers.extend([
            ("range", "bytes=0-1"),
            ("if-none-match", "*"),
            ("content-type", "text/plain"),
            ("content-length", "1"),
            ("te", "trailers"),
            ("connection", "close"),
        ]);
        if find {
            headers.push(("find", "it"));
        }
        shop.send(&headers, "x").await.check(502, "outcome-unknown");
        shop.send(&headers, "x").await.check(409, "outcome-unknown");
        assert_eq!(shop.lookups.lock().unwrap().len(), 0, "too early");
        tokio::time::sleep(Duration::from_secs(120)).await;
        let after = shop.send(&headers, "x").await;
        match find {
            true => {
                after.check(200, "found");
                assert!(after.is_replay());
                assert!(shop.send(&headers, "x").await.is_replay());
            }
            false => after.check(502, "outcome-unknown"),
        }
        assert_eq!(shop.calls(), if find { 1 } else { 2 });
        let lookups = shop.lookups.lock().unwrap();
        assert_eq!(lookups.len(), 1);
        assert_eq!(lookups[0].uri, "/lookup?key=k-1");
        let asked = &lookups[0].headers;
        assert_eq!(asked["authorization"], "Bearer a");
        for name in [
            "range",
            "if-none-match",
            "content-type",
            "content-length",
            "te",
            "connection",
        ] {
            assert!(!asked.contains_key(name), "{name}");
        }
    }
}

/// The record is settled even if no client retries.
#[tokio::test(start_paused = true)]
async fn the_policys_probe_asks_in_the_background() {
    let shop = shop(|it| it.probe = Some("GET /lookup?key={key}".parse().unwrap()));
    let headers = [KEY, ("do", "reset"), ("find", "it")];
    shop.send(&headers, "x").await.check(502, "outcome-unknown");
    tokio::time::sleep(Duration::from_secs(89)).await;
    assert_eq!(shop.lookups.lock().unwrap().len(), 0, "too early");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(shop.lookups.lock().unwrap().len(), 1);
    assert_eq!(states(&shop.store).await, [StateName::Completed]);
    assert_eq!(shop.engine.tally().get(Count::Resolved), 1);
    shop.send(&headers, "x").await.check(200, "found");
}

/// Like services with a concurrency limit: each clone has to be ready before it is called.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<B> Service<http::Request<B>> for Strict {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<B>) -> Self::Future {
        assert!(self.is_ready, "called before it was ready");
        self.is_ready = false;
        ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let mut observed = Operation::new("POST /observed").unwrap();
    observed.mode = Mode::Observe;
    let policy = Policy::default().with(observed).unwrap();
    let layer = RefrainLayer::new(Engine::new(Scripted::new()), policy);
    let mut service = layer.layer(Strict::default());
    for (path, key) in [("/", "1"), ("/", "2"), ("/", ""), ("/observed", "3")] {
        std::future::poll_fn(|context| Service::<Request>::poll_ready(&mut service, context))
            .await
            .unwrap();
        let mut request = Request::builder().method("POST").uri(path);
        if !key.is_empty() {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from("x")).unwrap();
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), 200, "{path} {key}");
    }
}

#[tokio::test]
async fn a_service_that_panics_when_it_is_called_leaves_doubt() {
    let store = Scripted::new();
    let layer = RefrainLayer::new(Engine::new(store.clone()), Policy::default());
    let mut service = layer.layer(Strict::default());
    let request = Request::post("/").header("idempotency-key", "1");
    // It was not polled ready, so it panics.
    let response = service.call(request.body(Body::from("x")).unwrap());
    assert_eq!(response.await.unwrap().status(), 502);
    assert_eq!(states(&store).await, [StateName::Indeterminate]);
}

fn with_trailers() -> Body {
    let trailers = async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        Some(Ok(trailers))
    };
    Body::new(Full::new(Bytes::from_static(b"12345")).with_trailers(trailers))
}

#[tokio::test]
async fn request_trailers_reach_the_operation() {
    for (mode, headers) in [
        (Mode::Enforce, &[KEY][..]),
        (Mode::Enforce, &[]),
        (Mode::Observe, &[KEY]),
    ] {
        let shop = shop(|it| it.mode = mode);
        let seen = shop.send(headers, with_trailers()).await;
        seen.check(200, "1: 5 sum 42");
    }
}

#[tokio::test]
async fn reserved_response_headers_reach_no_client() {
    for (mode, headers) in [
        (Mode::Enforce, &[KEY][..]),
        (Mode::Enforce, &[]),
        (Mode::Observe, &[KEY]),
        (Mode::Observe, &[]),
    ] {
        let shop = shop(|it| it.mode = mode);
        let overruled = [headers, &[("do", "overrule")]].concat();
        let seen = shop.send(&overruled, "x").await;
        assert!(!seen.headers.contains_key("refrain-outcome"), "{mode:?}");
    }
}

/// Invalid keys, bodies over the limit, and a failing or hanging store have no effect on responses.
#[tokio::test(start_paused = true)]
async fn observe_mode_does_not_change_responses() {
    let faults = [
        None,
        Some(Fault::Fails(ErrorKind::Unavailable)),
        Some(Fault::Hangs),
    ];
    let headers: [&[(&str, &str)]; 4] = [
        &[KEY],
        &[],
        &[("idempotency-key", "two words")],
        &[KEY, ("idempotency-key", "twice")],
    ];
    for fault in faults {
        let shop = shop(|it| {
            it.mode = Mode::Observe;
            it.required = true;
            it.request_bytes_max = 1_000;
        });
        if let Some(fault) = fault {
            shop.store.set(Op::Claim, usize::MAX, fault);
        }
        let start = tokio::time::Instant::now();
        let mut calls = 0;
        for headers in headers {
            for len in [0, 1, 1_000, 5_000, 5_000] {
                calls += 1;
                let sent = shop.send(headers, vec![7; len]);
                let seen = tokio::time::timeout(Duration::from_secs(5), sent).await;
                let seen = seen.expect("a response in spite of the store");
                seen.check(200, &format!("{calls}: {len}"));
                assert!(!seen.is_replay());
            }
        }
        assert!(start.elapsed() < Duration::from_millis(500), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn observing_counts_what_would_have_happened() {
    let shop = shop(|it| it.mode = Mode::Observe);
    let tally = shop.engine.tally();
    let seen = |count: Count, expected: u64| until(move || tally.get(count) == expected);
    let first = shop.start("wait");
    seen(Count::Granted, 1).await;
    // A duplicate in flight would have waited for the first; in observe mode it runs as well.
    let second = shop.start("wait");
    until(|| shop.calls() == 2).await;
    shop.gate.add_permits(2);
    first.await.unwrap().check(200, "1: 1");
    second.await.unwrap().check(200, "2: 1");
    seen(Count::Replayed, 1).await;
    shop.send(&[KEY], "other").await.check(200, "3: 5");
    seen(Count::Mismatch, 1).await;
    // A client that disconnects cancels the operation, as it does without Refrain.
    let cut = [("idempotency-key", "k-2"), ("do", "wait")];
    let gone = tokio::time::timeout(Duration::from_millis(50), shop.send(&cut, "x")).await;
    assert!(gone.is_err());
    seen(Count::Doubted, 1).await;
    let states = states(&shop.store).await;
    assert!(states.contains(&StateName::Indeterminate), "{states:?}");
    assert_eq!(shop.calls(), 4);
}
