//! Exactly-once behind the layer: an operation commits its effect and its receipt together, and its answer gets lost in every way there is.
//! What committed is answered from its receipt, what did not is run again, and a forgotten receipt never turns into a second effect.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use refrain::{
    Engine, Error, ErrorKind, Guarantee, Operation, Policy, RecordId, Result,
    engine::Count,
    http::{Failure, RefrainLayer},
    policy::Address,
    receipts::{Receipt, Receipts, Standing},
    record::Reason,
    store::StateName,
};
use tokio::{sync::Semaphore, time::sleep};
use tower_service::Service;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Scripted, states, until};

const SECOND: Duration = Duration::from_secs(1);
const ADDRESS: &str = "postgres://shop";

/// The operation's own database: effects and receipts, committed together.
#[derive(Debug, Clone, Default)]
struct Database {
    rows: Arc<Mutex<HashMap<String, Receipt>>>,
    effects: Arc<Mutex<Vec<String>>>,
    is_down: Arc<AtomicBool>,
}

impl Database {
    /// One transaction: the effect, and its receipt under a unique record.
    fn commit(&self, key: &str, headers: &HeaderMap) -> Option<Receipt> {
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        let mut rows = self.rows.lock().unwrap();
        let (record, fence) = (text("refrain-record"), text("refrain-fence"));
        if rows.contains_key(&record) {
            return None;
        }
        let receipt = receipt(&fence, &format!("paid {key} under {fence}"));
        rows.insert(record, receipt.clone());
        self.effects.lock().unwrap().push(key.into());
        Some(receipt)
    }

    fn effects_of(&self, key: &str) -> usize {
        let effects = self.effects.lock().unwrap();
        effects.iter().filter(|effect| *effect == key).count()
    }

    fn check(&self) -> Result<()> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the database is down")),
            false => Ok(()),
        }
    }
}

impl Receipts for Database {
    async fn find(&self, record: RecordId) -> Result<Option<Receipt>> {
        self.check()?;
        Ok(self.rows.lock().unwrap().get(&record.to_string()).cloned())
    }

    async fn seen(&self, records: &[RecordId]) -> Result<Vec<bool>> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let seen = records.iter().map(|it| rows.contains_key(&it.to_string()));
        Ok(seen.collect())
    }
}

fn receipt(fence: &str, body: &str) -> Receipt {
    Receipt {
        fence: fence.into(),
        status: 201,
        content_type: Some("text/plain".into()),
        location: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
        age: Duration::ZERO,
    }
}

/// What the operation does with a request is in its header `do`.
#[derive(Clone)]
struct Shop {
    store: Scripted,
    engine: Engine,
    database: Database,
    layer: RefrainLayer,
    app: Router,
    gate: Arc<Semaphore>,
    /// The heads that arrived.
    heads: Arc<Mutex<Vec<HeaderMap>>>,
}

impl Shop {
    fn new() -> Self {
        Self::open(Scripted::on_runtime_clock(), Database::default())
    }

    /// The same store and database with nothing else left, as after a restart.
    fn restarted(&self) -> Self {
        Self::open(self.store.clone(), self.database.clone())
    }

    fn open(store: Scripted, database: Database) -> Self {
        let mut operation = Operation::new("POST /pay").unwrap();
        operation.terms.guarantee = Guarantee::ExactlyOnce;
        operation.receipts = Some(Address::new(ADDRESS));
        operation.terms.lease = SECOND * 3;
        operation.terms.timeout = SECOND * 5;
        operation.terms.settle_after = SECOND * 8;
        let policy = Policy::new(vec![operation]).unwrap();
        let engine = Engine::new(store.clone());
        let layer = RefrainLayer::new(engine.clone(), policy);
        let layer = layer.with_receipts(ADDRESS, database.clone());
        let (gate, heads) = (
            Arc::new(Semaphore::new(0)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let pay = {
            let (database, gate, heads) = (database.clone(), gate.clone(), heads.clone());
            async move |request: Request| {
                heads.lock().unwrap().push(request.headers().clone());
                pay(&database, &gate, request.headers()).await
            }
        };
        let app = Router::new()
            .route("/pay", post(pay.clone()))
            .route("/other", post(pay))
            .layer(layer.clone());
        Self {
            store,
            engine,
            database,
            layer,
            app,
            gate,
            heads,
        }
    }

    async fn proven() -> Self {
        let shop = Self::new();
        assert_eq!(shop.pay("first", "commit").await.status, 201);
        shop.until_standing(Standing::Proven).await;
        shop
    }

    async fn until_standing(&self, standing: Standing) {
        until(|| self.standing() == standing).await;
    }

    fn standing(&self) -> Standing {
        self.layer.witnesses().next().unwrap().standing()
    }

    async fn pay(&self, key: &str, what: &str) -> Seen {
        self.send("/pay", key, what, &[]).await
    }

    async fn send(&self, path: &str, key: &str, what: &str, more: &[(&str, &str)]) -> Seen {
        let mut request = Request::post(path)
            .header("idempotency-key", key)
            .header("do", what);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let is_replay = response.headers().contains_key("idempotent-replayed");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Seen {
            status,
            body,
            is_replay,
        }
    }

    fn calls(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    fn attempt(&self) -> String {
        let heads = self.heads.lock().unwrap();
        let attempt = &heads.last().unwrap()["refrain-attempt"];
        attempt.to_str().unwrap().into()
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    status: u16,
    body: Bytes,
    is_replay: bool,
}

impl Seen {
    fn problem(&self) -> (u16, String, String) {
        let json: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        (self.status, text("code"), text("advice"))
    }

    #[track_caller]
    fn check_problem(&self, status: u16, code: &str, advice: &str) {
        assert_eq!(self.problem(), (status, code.into(), advice.into()));
    }
}

async fn pay(database: &Database, gate: &Semaphore, headers: &HeaderMap) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let what = headers["do"].to_str().unwrap();
    let lost = |failure| {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(failure);
        response
    };
    let (first, then) = what.split_once('-').unwrap_or((what, ""));
    if first == "wait" {
        gate.acquire().await.unwrap().forget();
    }
    let committed = match first {
        "commit" | "wait" => database.commit(&key, headers),
        // Takes effect, and forgets the receipt.
        "forget" => {
            database.effects.lock().unwrap().push(key.clone());
            Some(receipt("", "paid"))
        }
        _ => None,
    };
    let word = if committed.is_some() { then } else { what };
    match word {
        "" => {
            let committed = committed.unwrap();
            (StatusCode::CREATED, committed.body).into_response()
        }
        "lost" => lost(Failure::Lost(Reason::Reset)),
        "unsent" => lost(Failure::NotSent),
        "hang" => std::future::pending().await,
        // The receipt collides: rolled back.
        "commit" | "wait" => (StatusCode::INTERNAL_SERVER_ERROR, "collision").into_response(),
        status => {
            let status = status.parse().unwrap_or_else(|_| panic!("do {status}"));
            let status = StatusCode::from_u16(status).unwrap();
            (status, "refused").into_response()
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_operation_is_told_record_and_fence_and_nobody_can_make_them_up() {
    let shop = Shop::new();
    let lie = [("refrain-record", "mine"), ("refrain-fence", "9.9.9")];
    shop.send("/pay", "k", "commit", &lie).await;
    shop.send("/other", "k", "200", &lie).await;
    let heads = shop.heads.lock().unwrap().clone();
    let (record, fence) = (&heads[0]["refrain-record"], &heads[0]["refrain-fence"]);
    assert_eq!(heads[0].get_all("refrain-record").iter().count(), 1);
    let record = record.to_str().unwrap();
    assert!(record.len() == 32 && record.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let fence = fence.to_str().unwrap();
    assert_eq!(fence.parse::<refrain::Fence>().unwrap().to_string(), fence);
    for name in ["refrain-record", "refrain-fence"] {
        assert!(!heads[1].contains_key(name), "{name} of an unguarded one");
    }
}

/// What committed is the outcome, however its answer was lost; the first caller gets it, and every retry.
#[tokio::test(start_paused = true)]
async fn a_receipt_is_the_outcome() {
    // Also before any receipt was seen: what is there is there.
    for shop in [Shop::new(), Shop::proven().await] {
        let before = shop.calls();
        let cases = ["commit-lost", "commit-hang", "commit-500", "commit-409"];
        for (key, what) in cases.map(|what| (format!("k-{what}"), what)) {
            let first = shop.pay(&key, what).await;
            assert_eq!((first.status, first.is_replay), (201, false), "{what}");
            assert!(first.body.starts_with(b"paid "), "{what}");
            let retry = shop.pay(&key, "commit").await;
            assert_eq!((retry.status, retry.is_replay), (201, true), "{what}");
            assert_eq!(shop.database.effects_of(&key), 1, "{what}");
        }
        assert_eq!(shop.calls() - before, cases.len());
        assert_eq!(shop.standing(), Standing::Proven);
    }
}

/// What did not commit runs again under the next fence, as soon as a retry comes.
#[tokio::test(start_paused = true)]
async fn without_a_receipt_a_retry_runs() {
    let shop = Shop::proven().await;
    for what in ["lost", "hang", "500", "503"] {
        let first = shop.pay(what, what).await;
        match what {
            "lost" => first.check_problem(502, "outcome-unknown", "wait"),
            "hang" => first.check_problem(504, "outcome-unknown", "wait"),
            _ => assert_eq!(
                (first.status, &first.body[..]),
                (what.parse().unwrap(), &b"refused"[..])
            ),
        }
        let retry = shop.pay(what, "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, false), "{what}");
        assert_eq!(shop.attempt(), "2", "{what}");
        assert!(shop.pay(what, "commit").await.is_replay, "{what}");
        assert_eq!(shop.database.effects_of(what), 1, "{what}");
    }
}

/// Of a first attempt, refusals count as under at-most-once.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_only_attempt_counts() {
    let shop = Shop::proven().await;
    for (what, is_kept) in [("422", true), ("404", true), ("429", false), ("401", false)] {
        let status: u16 = what.parse().unwrap();
        assert_eq!(shop.pay(what, what).await.status, status);
        let retry = shop.pay(what, "commit").await;
        let expected = if is_kept {
            (status, true)
        } else {
            (201, false)
        };
        assert_eq!((retry.status, retry.is_replay), expected, "{what}");
    }
}

/// Of a later attempt they do not: the one before it may still commit.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_later_attempt_is_not_final() {
    let shop = Shop::proven().await;
    for what in ["422", "429", "unsent", "500"] {
        shop.pay(what, "lost").await;
        let second = shop.pay(what, what).await;
        assert!(!second.is_replay, "{what}");
        let third = shop.pay(what, "commit").await;
        assert_eq!((third.status, third.is_replay), (201, false), "{what}");
        let other = shop.send("/pay?other", what, "commit", &[]).await;
        other.check_problem(422, "key-reused", "new-key");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_were_sent_are_limited_and_others_are_not_counted() {
    let shop = Shop::proven().await;
    shop.pay("k", "lost").await;
    for _ in 0..20 {
        let unsent = shop.pay("k", "unsent").await;
        unsent.check_problem(502, "upstream-unreachable", "reuse-key");
        assert_eq!(shop.attempt(), "2");
    }
    for attempt in 2..=10 {
        let lost = shop.pay("k", "lost").await;
        lost.check_problem(502, "outcome-unknown", "wait");
        assert_eq!(shop.attempt(), attempt.to_string());
    }
    let calls = shop.calls();
    let used_up = shop.pay("k", "commit").await;
    used_up.check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.calls(), calls);
}

/// The first attempt is given up on and commits all the same: the second one's receipt collides, and both answers are the first one's.
#[tokio::test(start_paused = true)]
async fn of_two_attempts_one_commits() {
    let shop = Shop::proven().await;
    let slow = shop.pay("k", "wait").await;
    slow.check_problem(504, "outcome-unknown", "wait");
    let second = {
        let shop = shop.clone();
        tokio::spawn(async move { shop.pay("k", "wait").await })
    };
    until(|| shop.calls() == 3).await;
    // Both go on, the older one first.
    shop.gate.add_permits(2);
    let second = second.await.unwrap();
    assert_eq!(
        (second.status, second.is_replay),
        (201, false),
        "{second:?}"
    );
    let replay = shop.pay("k", "commit").await;
    assert_eq!((replay.is_replay, replay.body), (true, second.body));
    assert_eq!(shop.database.effects_of("k"), 1);
}

/// Nothing proves yet that receipts are written: a missing one says nothing, now and later.
#[tokio::test(start_paused = true)]
async fn before_the_first_receipt_it_is_at_most_once() {
    let shop = Shop::new();
    shop.pay("k", "forget-lost")
        .await
        .check_problem(502, "outcome-unknown", "ask");
    shop.pay("k", "commit")
        .await
        .check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.pay("broken", "500").await.status, 500);
    assert!(shop.pay("broken", "commit").await.is_replay);
    shop.pay("other", "commit").await;
    shop.until_standing(Standing::Proven).await;
    sleep(SECOND * 60).await;
    shop.pay("k", "commit")
        .await
        .check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.database.effects_of("k"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_receipt_is_reported_and_is_never_a_second_effect() {
    let shop = Shop::proven().await;
    // Dispatched while receipts were relied on.
    shop.pay("earlier", "lost").await;
    assert_eq!(shop.pay("k", "forget").await.status, 201);
    shop.until_standing(Standing::Missing).await;
    assert_eq!(shop.engine.tally().get(Count::ReceiptsMissing), 1);
    assert_eq!(shop.layer.witnesses().next().unwrap().missing(), 1);
    assert!(shop.pay("k", "forget").await.is_replay);
    shop.pay("lost", "forget-lost")
        .await
        .check_problem(502, "outcome-unknown", "ask");
    for key in ["lost", "earlier"] {
        sleep(SECOND * 60).await;
        shop.pay(key, "forget")
            .await
            .check_problem(409, "outcome-unknown", "ask");
    }
    // Mended: what was sent in between stays in doubt, what was sent before runs.
    shop.pay("other", "commit").await;
    shop.until_standing(Standing::Proven).await;
    shop.pay("lost", "commit")
        .await
        .check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.pay("earlier", "commit").await.status, 201);
    for key in ["k", "lost", "earlier"] {
        assert_eq!(shop.database.effects_of(key), 1, "{key}");
    }
}

/// After a restart nothing is proven, but the record says that it was when the attempt was sent:
/// it runs again once the old attempt is over, whether what runs now writes a receipt or not.
#[tokio::test(start_paused = true)]
async fn after_a_restart_the_old_attempt_has_to_be_over() {
    let shop = Shop::proven().await;
    shop.pay("k", "lost").await;
    let shop = shop.restarted();
    shop.pay("k", "commit")
        .await
        .check_problem(409, "outcome-unknown", "ask");
    sleep(SECOND * 8).await;
    let retry = shop.pay("k", "commit").await;
    assert_eq!((retry.status, shop.attempt().as_str()), (201, "2"));
    // One that committed is found at once, and proves the rest.
    let shop = shop.restarted();
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("lost", "commit-lost")
        .await
        .check_problem(502, "outcome-unknown", "ask");
    shop.database.is_down.store(false, Ordering::SeqCst);
    let shop = shop.restarted();
    assert!(shop.pay("lost", "commit").await.is_replay);
    assert_eq!(shop.standing(), Standing::Proven);
}

#[tokio::test(start_paused = true)]
async fn while_receipts_cannot_be_read_nothing_is_decided() {
    let shop = Shop::proven().await;
    shop.pay("not", "lost").await;
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("done", "commit-lost")
        .await
        .check_problem(502, "outcome-unknown", "wait");
    shop.pay("told", "commit-500")
        .await
        .check_problem(503, "outcome-unknown", "wait");
    let calls = shop.calls();
    for key in ["not", "done", "told"] {
        shop.pay(key, "commit")
            .await
            .check_problem(503, "store-unavailable", "reuse-key");
    }
    assert_eq!(shop.calls(), calls);
    shop.database.is_down.store(false, Ordering::SeqCst);
    for (key, is_replay) in [("not", false), ("done", true), ("told", true)] {
        let retry = shop.pay(key, "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, is_replay), "{key}");
        assert_eq!(shop.database.effects_of(key), 1, "{key}");
    }
}

/// Nobody retries: the receipt is found in the background.
#[tokio::test(start_paused = true)]
async fn a_receipt_settles_without_a_retry() {
    let shop = Shop::proven().await;
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("k", "commit-lost").await;
    shop.pay("never", "lost").await;
    sleep(SECOND * 10).await;
    shop.database.is_down.store(false, Ordering::SeqCst);
    sleep(SECOND * 30).await;
    let mut states = states(&shop.store).await;
    states.sort_by_key(|state| *state as u8);
    let expected = [
        StateName::Completed,
        StateName::Completed,
        StateName::Indeterminate,
    ];
    assert_eq!(states, expected);
    assert_eq!(shop.engine.tally().get(Count::Resolved), 1);
}

/// A success whose check has to wait is checked once the receipts can be read again.
#[tokio::test(start_paused = true)]
async fn a_success_is_checked_when_it_can_be() {
    let shop = Shop::new();
    shop.database.is_down.store(true, Ordering::SeqCst);
    assert_eq!(shop.pay("k", "commit").await.status, 201);
    sleep(SECOND * 5).await;
    assert_eq!(shop.standing(), Standing::Unproven);
    shop.database.is_down.store(false, Ordering::SeqCst);
    sleep(SECOND * 20).await;
    assert_eq!(shop.standing(), Standing::Proven);
}

/// A receipt that outlived its key by far is not this request's; it is in the way, and the operator is told.
#[tokio::test(start_paused = true)]
async fn a_receipt_of_an_earlier_life_of_the_key_answers_nobody() {
    let shop = Shop::proven().await;
    shop.pay("k", "429").await;
    let record = shop.heads.lock().unwrap().last().unwrap()["refrain-record"].clone();
    let old = Receipt {
        age: Duration::from_secs(400 * 86_400),
        ..receipt("1.1.00000001", "paid long ago")
    };
    let record = record.to_str().unwrap().to_owned();
    shop.database.rows.lock().unwrap().insert(record, old);
    for _ in 0..2 {
        let seen = shop.pay("k", "commit").await;
        assert_eq!((seen.status, &seen.body[..]), (500, &b"collision"[..]));
    }
    assert_eq!(shop.database.effects_of("k"), 0);
}
