//! One client with a loop that never ends filled the store of all, and its retries were refused together with its loop.
//! A quota refuses new keys of that scope alone, before anything is claimed, and never a retry of what already has a record.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use refrain::{
    Engine, Operation, Policy, Terms,
    engine::{Count, QuotaKind},
    http::RefrainLayer,
    policy::Quota,
    store::{Query, Store as _},
};
use tokio::{
    sync::Semaphore,
    time::{advance, sleep},
};
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted};

const RETENTION: Duration = Duration::from_secs(1_000);
const REMEMBER: Duration = Duration::from_secs(9_000);

/// A service that counts its runs, with scopes from the header `x-tenant`.
struct Stage {
    engine: Engine,
    app: Router,
    ran: Arc<AtomicUsize>,
    running_max: Arc<AtomicUsize>,
    /// Handlers of `/slow` wait for a permit.
    gate: Arc<Semaphore>,
}

fn policy(quota: Quota) -> Policy {
    let mut operation = Operation::new("* *").unwrap();
    operation.scope = vec!["header:x-tenant".parse().unwrap()];
    operation.key = vec![
        "header:Idempotency-Key".parse().unwrap(),
        "body:/key".parse().unwrap(),
    ];
    operation.terms = Terms {
        retention: RETENTION,
        remember: REMEMBER,
        ..Terms::default()
    };
    let policy = Policy::new(vec![operation]).unwrap();
    policy.with_quota(quota).unwrap()
}

async fn stage(quota: Quota) -> Stage {
    stage_on(quota, Scripted::on_runtime_clock()).await
}

/// A stage whose store was counted, as the proxy does before it listens.
async fn stage_on(quota: Quota, store: Scripted) -> Stage {
    let stage = uncounted(quota, store);
    stage.engine.count_usage().await.unwrap();
    stage
}

fn uncounted(quota: Quota, store: Scripted) -> Stage {
    let engine = Engine::new(store);
    let ran = Arc::new(AtomicUsize::new(0));
    let (running, running_max) = (Arc::new(AtomicUsize::new(0)), Arc::default());
    let gate = Arc::new(Semaphore::new(0));
    let (counted, highest, gated): (_, Arc<AtomicUsize>, _) =
        (ran.clone(), Arc::clone(&running_max), gate.clone());
    let slow = async move || {
        let now = running.fetch_add(1, SeqCst) + 1;
        highest.fetch_max(now, SeqCst);
        gated.acquire().await.unwrap().forget();
        running.fetch_sub(1, SeqCst);
        "slow"
    };
    let pay = async move |headers: HeaderMap, body: Bytes| {
        counted.fetch_add(1, SeqCst);
        let want = headers.get("want").map_or("201", |it| it.to_str().unwrap());
        (
            want.parse::<u16>()
                .map(StatusCode::from_u16)
                .unwrap()
                .unwrap(),
            body,
        )
    };
    let app = Router::new()
        .route("/pay", post(pay))
        .route("/slow", post(slow))
        .layer(RefrainLayer::new(engine.clone(), policy(quota)));
    Stage {
        engine,
        app,
        ran,
        running_max,
        gate,
    }
}

impl Stage {
    async fn send(&self, request: Request<Body>) -> Response<Body> {
        let Ok(response) = self.app.clone().call(request).await;
        response
    }

    async fn pay(&self, tenant: &str, key: &str) -> Response<Body> {
        self.send(request("/pay", tenant, key, "x")).await
    }

    async fn status(&self, tenant: &str, key: &str) -> u16 {
        self.pay(tenant, key).await.status().as_u16()
    }

    fn refused(&self, kind: QuotaKind) -> u64 {
        self.engine.quota_refused(kind)
    }
}

fn request(path: &str, tenant: &str, key: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path)
        .header("idempotency-key", key)
        .header("x-tenant", tenant)
        .body(body.into())
        .unwrap()
}

/// Checks a refusal, and returns its `Retry-After`.
async fn refusal(response: Response<Body>) -> Duration {
    assert_eq!(response.status(), 429);
    let after = response.headers()["retry-after"].to_str().unwrap();
    let after = Duration::from_secs(after.parse().unwrap());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["code"], "scope-over-quota");
    assert_eq!(problem["advice"], "wait");
    after
}

fn is_replay(response: &Response<Body>) -> bool {
    response.status() == 201 && response.headers().contains_key("idempotent-replayed")
}

fn rate(keys_per_second: usize) -> Quota {
    Quota {
        keys_per_second: Some(keys_per_second),
        ..Quota::default()
    }
}

fn in_flight(in_flight_max: usize) -> Quota {
    Quota {
        in_flight_max: Some(in_flight_max),
        ..Quota::default()
    }
}

fn records(records_max: usize) -> Quota {
    Quota {
        records_max: Some(records_max),
        ..Quota::default()
    }
}

#[tokio::test(start_paused = true)]
async fn new_keys_beyond_the_rate_are_refused_and_replays_are_not() {
    let stage = stage(rate(2)).await;
    assert_eq!(stage.status("a", "k1").await, 201);
    // Replays use no key of the rate.
    for _ in 0..10 {
        assert!(is_replay(&stage.pay("a", "k1").await));
    }
    assert_eq!(stage.status("a", "k2").await, 201);
    let after = refusal(stage.pay("a", "k3").await).await;
    assert_eq!(after, Duration::from_secs(1));
    assert!(is_replay(&stage.pay("a", "k1").await));
    assert_eq!(stage.status("b", "k1").await, 201, "another scope");
    assert_eq!(stage.ran.load(SeqCst), 3);
    assert_eq!(stage.refused(QuotaKind::Rate), 1);
    advance(Duration::from_millis(500)).await;
    assert_eq!(stage.status("a", "k3").await, 201);
    refusal(stage.pay("a", "k4").await).await;
    advance(after).await;
    assert_eq!(stage.status("a", "k4").await, 201);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_no_record_and_its_body_is_not_read() {
    struct Unread;
    impl HttpBody for Unread {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("the body is read");
        }
    }
    let stage = stage(rate(1)).await;
    assert_eq!(stage.status("a", "k1").await, 201);
    let unread = request("/pay", "a", "k2", Body::new(Unread));
    refusal(stage.send(unread).await).await;
    let page = stage.engine.store().list(&Query::default()).await.unwrap();
    assert_eq!(page.readings.len(), 1);
    assert_eq!(stage.engine.tally().get(Count::Granted), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_in_the_body_counts_too() {
    let stage = stage(rate(1)).await;
    let send = |key: &str| {
        let body = format!(r#"{{"key":"{key}"}}"#);
        let head = Request::post("/pay").header("x-tenant", "a");
        let head = head.header("content-type", "application/json");
        stage.send(head.body(body.into()).unwrap())
    };
    assert_eq!(send("k1").await.status(), 201);
    refusal(send("k2").await).await;
    assert!(is_replay(&send("k1").await));
    // Without a key, the request is unguarded, and no quota applies.
    let keyless = Request::post("/pay").header("x-tenant", "a");
    let keyless = stage.send(keyless.body("{}".into()).unwrap()).await;
    assert_eq!(keyless.status(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_new_keys_at_once_no_more_run_than_allowed() {
    const MAX: usize = 7;
    let stage = Arc::new(stage(in_flight(MAX)).await);
    for round in 0..20_u64 {
        let sent = (0..50).map(|number| {
            let stage = stage.clone();
            tokio::spawn(async move {
                let key = format!("{round}-{number}");
                let response = stage.send(request("/slow", "a", &key, "x")).await;
                response.status().as_u16()
            })
        });
        let sent: Vec<_> = sent.collect();
        let before = round * 43;
        let is_decided = || stage.refused(QuotaKind::InFlight) == before + 43;
        scripted::until(is_decided).await;
        assert_eq!(stage.engine.running(), MAX);
        stage.gate.add_permits(MAX);
        let statuses: Vec<_> = join_all(sent)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let count = |status| statuses.iter().filter(|it| **it == status).count();
        assert_eq!((count(200), count(429)), (MAX, 50 - MAX));
    }
    assert_eq!(stage.running_max.load(SeqCst), MAX);
}

#[tokio::test(start_paused = true)]
async fn duplicates_that_wait_use_no_place() {
    let stage = Arc::new(stage(in_flight(2)).await);
    let spawn = |key: &'static str| {
        let stage = stage.clone();
        tokio::spawn(async move { stage.send(request("/slow", "a", key, "x")).await })
    };
    let first: Vec<_> = (0..5).map(|_| spawn("k1")).collect();
    scripted::until(|| stage.engine.tally().waiting_now() == 4).await;
    let second = spawn("k2");
    scripted::until(|| stage.engine.running() == 2).await;
    assert_eq!(refusal(stage.pay("a", "k3").await).await.as_secs(), 1);
    assert_eq!(stage.status("b", "k3").await, 201);
    // A duplicate of a running request is not refused, although the scope is at its limit.
    let late = spawn("k1");
    scripted::until(|| stage.engine.tally().waiting_now() == 5).await;
    stage.gate.add_permits(2);
    for sent in first.into_iter().chain([second, late]) {
        assert_eq!(sent.await.unwrap().status(), 200);
    }
    assert_eq!(stage.status("a", "k3").await, 201);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_its_place_back() {
    let stage = Arc::new(stage(in_flight(1)).await);
    // The body never arrives.
    let body = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let unfinished = request("/pay", "a", "k1", body);
    let sending = stage.clone();
    let unfinished = tokio::spawn(async move { sending.send(unfinished).await });
    scripted::until(|| stage.engine.quota_scopes() == 1).await;
    refusal(stage.pay("a", "k2").await).await;
    unfinished.abort();
    assert!(unfinished.await.unwrap_err().is_cancelled());
    assert_eq!(stage.status("a", "k2").await, 201);
}

#[tokio::test(start_paused = true)]
async fn records_count_until_they_end_and_retry_after_says_when() {
    let stage = stage(records(3)).await;
    for key in ["k1", "k2", "k3"] {
        assert_eq!(stage.status("a", key).await, 201);
        advance(Duration::from_secs(300)).await;
    }
    let after = refusal(stage.pay("a", "k4").await).await;
    let exact = RETENTION + REMEMBER - Duration::from_secs(900);
    assert!(
        after >= exact && after <= exact + (RETENTION + REMEMBER) / 64,
        "{after:?}"
    );
    assert!(is_replay(&stage.pay("a", "k2").await));
    assert_eq!(stage.status("b", "k4").await, 201);
    // The tombstones count, too, and answer as before.
    advance(RETENTION).await;
    assert_eq!(stage.status("a", "k1").await, 410);
    refusal(stage.pay("a", "k4").await).await;
    // The store was counted again meanwhile, which makes the end more exact; it is never earlier than the record's.
    let margin = Duration::from_secs(2);
    advance(exact - RETENTION - margin).await;
    refusal(stage.pay("a", "k4").await).await;
    advance(after - exact + margin).await;
    assert_eq!(stage.status("a", "k4").await, 201);
    refusal(stage.pay("a", "k5").await).await;
    assert_eq!(stage.refused(QuotaKind::Records), 4);
}

#[tokio::test(start_paused = true)]
async fn released_keys_leave_no_record_to_count() {
    let stage = stage(records(1)).await;
    for number in 0..5 {
        let mut refused = request("/pay", "a", &format!("k{number}"), "x");
        refused.headers_mut().insert("want", "429".parse().unwrap());
        let response = stage.send(refused).await;
        assert!(!response.headers().contains_key("retry-after"), "{number}");
    }
    assert_eq!(stage.ran.load(SeqCst), 5);
    assert_eq!(stage.status("a", "k").await, 201);
    refusal(stage.pay("a", "k0").await).await;
}

#[tokio::test(start_paused = true)]
async fn stored_bytes_count_until_retention_ends() {
    let quota = Quota {
        bytes_max: Some(1_000),
        ..Quota::default()
    };
    let stage = stage(quota).await;
    let large = |key: &str| stage.send(request("/pay", "a", key, vec![7; 600]));
    assert_eq!(large("k1").await.status(), 201);
    advance(Duration::from_secs(10)).await;
    assert_eq!(
        large("k2").await.status(),
        201,
        "600 bytes are below the limit"
    );
    let after = refusal(large("k3").await).await;
    assert!(is_replay(&large("k1").await));
    assert!(after >= RETENTION - Duration::from_secs(10), "{after:?}");
    assert!(after <= RETENTION + RETENTION / 64, "{after:?}");
    advance(after).await;
    assert_eq!(large("k3").await.status(), 201);
    assert_eq!(stage.refused(QuotaKind::Bytes), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_process_counts_what_the_store_holds() {
    let store = Scripted::on_runtime_clock();
    let first = stage_on(records(2), store.clone()).await;
    assert_eq!(first.status("a", "k1").await, 201);
    assert_eq!(first.status("a", "k2").await, 201);
    let second = uncounted(records(2), store);
    second.engine.count_usage().await.unwrap();
    let after = refusal(second.pay("a", "k3").await).await;
    assert!(
        after > RETENTION + REMEMBER - Duration::from_secs(1),
        "{after:?}"
    );
    assert!(is_replay(&second.pay("a", "k1").await));
    assert_eq!(second.engine.quota_uncounted(), 0);
    advance(after).await;
    assert_eq!(second.status("a", "k3").await, 201);
}

#[tokio::test(start_paused = true)]
async fn requests_before_the_first_count_are_admitted_and_counted_as_such() {
    let store = Scripted::on_runtime_clock();
    store.set(Op::Usage, 1, Fault::Fails(refrain::ErrorKind::Unavailable));
    let stage = uncounted(records(1), store);
    assert!(stage.engine.count_usage().await.is_err());
    assert_eq!(stage.status("a", "k1").await, 201);
    assert_eq!(stage.engine.quota_uncounted(), 1);
    // What this process adds counts also without the store.
    refusal(stage.pay("a", "k2").await).await;
    // The background task counts later.
    sleep(Duration::from_secs(31)).await;
    let uncounted = stage.engine.quota_uncounted();
    refusal(stage.pay("a", "k2").await).await;
    assert_eq!(stage.engine.quota_uncounted(), uncounted);
}

#[tokio::test(start_paused = true)]
async fn two_nodes_on_one_store_learn_of_each_other() {
    let store = Scripted::on_runtime_clock().with_watches();
    let one = stage_on(records(4), store.clone()).await;
    let other = stage_on(records(4), store).await;
    for key in ["k1", "k2"] {
        assert_eq!(one.status("a", key).await, 201);
        assert_eq!(other.status("a", &format!("o{key}")).await, 201);
    }
    // Each knows its own two, until the next count.
    assert_eq!(one.status("a", "k3").await, 201);
    sleep(Duration::from_secs(31)).await;
    refusal(one.pay("a", "k4").await).await;
    refusal(other.pay("a", "k4").await).await;
    assert!(is_replay(&other.pay("a", "k3").await));
}

#[tokio::test(start_paused = true)]
async fn a_count_under_way_loses_no_change() {
    let store = Scripted::on_runtime_clock().with_watches();
    let stage = stage_on(records(3), store.clone()).await;
    assert_eq!(stage.status("a", "k1").await, 201);
    let late = Duration::from_secs(5);
    store.set(Op::Usage, 1, Fault::AnswersLate(late));
    sleep(Duration::from_secs(31)).await;
    assert_eq!(store.calls(Op::Usage), 2);
    // The count has read the store, and its answer is on the way.
    assert_eq!(stage.status("a", "k2").await, 201);
    sleep(late).await;
    assert_eq!(stage.status("a", "k3").await, 201);
    refusal(stage.pay("a", "k4").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_looked_up_is_not_run() {
    let store = Scripted::on_runtime_clock();
    let stage = stage_on(rate(1), store.clone()).await;
    assert_eq!(stage.status("a", "k1").await, 201);
    store.set(Op::Read, 1, Fault::Fails(refrain::ErrorKind::Unavailable));
    assert_eq!(stage.status("a", "k1").await, 503);
    assert!(is_replay(&stage.pay("a", "k1").await));
    assert_eq!(stage.ran.load(SeqCst), 1);
}

/// A flood must not become a flood of look-ups: a shared store answers only a few of a scope at a time.
#[tokio::test(start_paused = true)]
async fn look_ups_in_a_shared_store_are_limited_for_each_scope() {
    let store = Scripted::on_runtime_clock().with_watches();
    let stage = Arc::new(stage_on(rate(1), store.clone()).await);
    assert_eq!(stage.status("a", "k1").await, 201);
    store.set(Op::Read, 1_000, Fault::Hangs);
    let sent: Vec<_> = (0..100)
        .map(|number| {
            let stage = stage.clone();
            tokio::spawn(async move { stage.status("a", &format!("n{number}")).await })
        })
        .collect();
    scripted::until(|| stage.refused(QuotaKind::Rate) == 84).await;
    assert_eq!(store.calls(Op::Read), 16);
    sent.iter().for_each(tokio::task::JoinHandle::abort);
    scripted::until(|| sent.iter().all(tokio::task::JoinHandle::is_finished)).await;
    store.mend(Op::Read);
    assert!(is_replay(&stage.pay("a", "k1").await));
}

#[tokio::test(start_paused = true)]
async fn scopes_beyond_the_limit_are_not_limited_and_counted() {
    let quota = Quota {
        scopes_max: 16,
        ..rate(1)
    };
    let stage = stage(quota).await;
    for tenant in 0..200 {
        assert_eq!(stage.status(&tenant.to_string(), "k1").await, 201);
    }
    let counted = stage.engine.quota_scopes();
    assert!((1..=16).contains(&counted), "{counted}");
    assert!(stage.engine.quota_uncounted() >= 184);
    // Idle scopes are forgotten, and make room.
    advance(Duration::from_secs(2)).await;
    let before = stage.engine.quota_uncounted();
    assert_eq!(stage.status("new", "k1").await, 201);
    refusal(stage.pay("new", "k2").await).await;
    assert_eq!(stage.engine.quota_uncounted(), before);
}

#[tokio::test(start_paused = true)]
async fn without_a_quota_nothing_is_counted() {
    let stage = stage(Quota::default()).await;
    for key in 0..100 {
        assert_eq!(stage.status("a", &key.to_string()).await, 201);
    }
    assert_eq!(stage.engine.quota_scopes(), 0);
}
