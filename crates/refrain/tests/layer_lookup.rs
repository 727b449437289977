//! A client that lost a response has to know whether its request ran, without running it. Nobody else may learn that the
//! key exists, and a look-up must never claim, execute or change anything.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    routing::any,
};
use http::{HeaderMap, StatusCode};
use refrain::{
    Claim, Engine, Guarantee, Operation, Policy, Store as _,
    http::{Failure, RefrainLayer},
    policy::{Mode, ReplayTo, Signature},
    record::Reason,
    store::Query,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, states, until};

struct Shop {
    store: Scripted,
    engine: Engine,
    app: Router,
    gate: Arc<Semaphore>,
}

struct Seen {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Seen {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    #[track_caller]
    fn check(&self, status: u16, state: &str, advice: &str) {
        let json = self.json();
        let told = (self.status, json["state"].as_str(), json["advice"].as_str());
        assert_eq!(told, (status, Some(state), Some(advice)), "{json}");
        assert_eq!(self.headers["content-type"], "application/json");
        assert_eq!(self.headers["cache-control"], "no-store");
    }
}

fn operation(pattern: &str) -> Operation {
    let mut operation = Operation::new(pattern).unwrap();
    operation.lookup = true;
    operation
}

/// A shop with these operations; its handler does what the header `do` says.
fn shop(operations: Vec<Operation>) -> Shop {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let gate = Arc::new(Semaphore::new(0));
    let waiting = gate.clone();
    let handler = async move |request: Request| {
        let what = request.headers().get("do").cloned();
        let mut response = http::Response::new(Body::from("the service's own"));
        match what.as_ref().map(|it| it.as_bytes()) {
            Some(b"wait") => waiting.acquire().await.unwrap().forget(),
            Some(b"reset") => {
                let lost = Failure::Lost(Reason::Reset);
                response.extensions_mut().insert(lost);
            }
            _ => *response.status_mut() = StatusCode::CREATED,
        }
        response
    };
    let layer = RefrainLayer::new(engine.clone(), Policy::new(operations).unwrap());
    let app = Router::new().fallback_service(any(handler)).layer(layer);
    Shop {
        store,
        engine,
        app,
        gate,
    }
}

impl Shop {
    async fn send(&self, start: &str, headers: &[(&str, &str)]) -> Seen {
        let (method, uri) = start.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Seen {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Sends a guarded request with this key.
    async fn post(&self, path: &str, key: &str, headers: &[(&str, &str)]) -> Seen {
        let mut all = vec![("idempotency-key", key)];
        all.extend(headers);
        self.send(&format!("POST {path}"), &all).await
    }

    async fn look_up(&self, key: &str, headers: &[(&str, &str)]) -> Seen {
        let start = format!("GET /.well-known/idempotency/{key}");
        self.send(&start, headers).await
    }
}

const ANNA: &[(&str, &str)] = &[("authorization", "Bearer anna")];
const BERT: &[(&str, &str)] = &[("authorization", "Bearer bert")];

#[tokio::test(start_paused = true)]
async fn a_client_learns_the_state_of_its_key_and_nothing_changes() {
    let mut pay = operation("POST /pay");
    pay.terms.retention = Duration::from_secs(3_600);
    pay.terms.remember = Duration::from_secs(3_600);
    let shop = shop(vec![pay]);
    shop.look_up("k", ANNA)
        .await
        .check(404, "absent", "reuse-key");
    let running = {
        let (app, gate) = (shop.app.clone(), shop.gate.clone());
        let shop = Shop {
            store: shop.store.clone(),
            engine: shop.engine.clone(),
            app,
            gate,
        };
        tokio::spawn(async move { shop.post("/pay", "k", &[ANNA[0], ("do", "wait")]).await })
    };
    until(|| shop.engine.running() == 1).await;
    shop.look_up("k", ANNA)
        .await
        .check(200, "in-flight", "wait");
    shop.gate.add_permits(1);
    let answer = running.await.unwrap();
    let seen = shop.look_up("k", ANNA).await;
    seen.check(200, "completed", "reuse-key");
    let json = seen.json();
    assert_eq!(json["status"], 200);
    assert_eq!(json["operation"], "POST /pay");
    assert_eq!(
        json["record"],
        answer.headers["refrain-record"].to_str().unwrap()
    );
    assert_eq!(
        seen.headers["refrain-record"],
        answer.headers["refrain-record"]
    );
    assert!(!seen.body.contains("the service's own"));
    shop.post("/pay", "d", &[ANNA[0], ("do", "reset")]).await;
    shop.look_up("d", ANNA).await.check(200, "unknown", "ask");
    let settled = shop.store.calls(Op::Settle);
    let claimed = shop.store.calls(Op::Claim);
    let before = states(&shop.store).await;
    for _ in 0..3 {
        shop.look_up("k", ANNA).await;
        shop.look_up("d", ANNA).await;
        shop.look_up("none", ANNA).await;
    }
    assert_eq!(states(&shop.store).await, before);
    let calls = (shop.store.calls(Op::Settle), shop.store.calls(Op::Claim));
    assert_eq!(calls, (settled, claimed));
    tokio::time::sleep(Duration::from_secs(3_601)).await;
    shop.look_up("k", ANNA).await.check(200, "expired", "ask");
}

/// The answers about another caller's key and about an absent one are equal to the byte.
#[tokio::test(start_paused = true)]
async fn the_key_of_another_caller_is_like_an_absent_one() {
    let by_route = || {
        let mut operation = operation("POST /pay");
        operation.scope = vec!["route".parse().unwrap()];
        operation
    };
    for operation in [operation("POST /pay"), by_route()] {
        let shop = shop(vec![operation]);
        shop.post("/pay", "k", ANNA).await;
        shop.look_up("k", ANNA)
            .await
            .check(200, "completed", "reuse-key");
        let absent = shop.look_up("never", BERT).await;
        for caller in [BERT, &[]] {
            let other = shop.look_up("k", caller).await;
            other.check(404, "absent", "reuse-key");
            assert_eq!(
                (other.body, other.headers),
                (absent.body.clone(), absent.headers.clone())
            );
        }
    }
    let mut shared = by_route();
    shared.replay_to = ReplayTo::SameScope;
    let shop = shop(vec![shared]);
    shop.post("/pay", "k", ANNA).await;
    let seen = shop.look_up("k", BERT).await;
    seen.check(200, "completed", "reuse-key");
}

/// Past its retention a record keeps no credential, so the scope alone tells whose it is.
#[tokio::test(start_paused = true)]
async fn the_expired_key_of_another_caller_is_like_an_absent_one() {
    const BERT_OF_ONE: &[(&str, &str)] = &[BERT[0], ("x-tenant", "one")];
    for scope in [
        "route",
        "none",
        "header:x-tenant",
        "path:shop",
        "credential",
    ] {
        let mut operation = operation("POST /shops/{shop}/pay");
        operation.scope = vec![scope.parse().unwrap()];
        operation.terms.retention = Duration::from_hours(1);
        operation.terms.remember = Duration::from_hours(1);
        let shop = shop(vec![operation]);
        let anna = [ANNA[0], ("x-tenant", "one")];
        shop.post("/shops/7/pay", "k", &anna).await;
        let named = |key: &str| format!("{key}?method=POST&path=/shops/7/pay");
        let seen = shop.look_up(&named("k"), &anna).await;
        seen.check(200, "completed", "reuse-key");
        tokio::time::sleep(Duration::from_secs(3_601)).await;
        let absent = shop.look_up(&named("never"), BERT_OF_ONE).await;
        absent.check(404, "absent", "reuse-key");
        let other = shop.look_up(&named("k"), BERT_OF_ONE).await;
        assert_eq!(
            (other.status, other.body, other.headers),
            (absent.status, absent.body, absent.headers),
            "{scope}"
        );
        let own = shop.look_up(&named("k"), &anna).await;
        match scope {
            "credential" => own.check(200, "expired", "ask"),
            _ => own.check(404, "absent", "reuse-key"),
        }
    }
}

/// Only a retry ends the claim of a process that died: a client that is told to wait would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_lapsed_claim_under_at_least_once_is_unknown_until_a_retry() {
    let mut operation = operation("POST /pay");
    operation.terms.guarantee = Guarantee::AtLeastOnce;
    operation.scope = vec!["none".parse().unwrap()];
    operation.replay_to = ReplayTo::SameScope;
    let shop = shop(vec![operation]);
    // Its fingerprint is that of the retry.
    shop.post("/pay", "k", &[]).await;
    let page = shop.store.list(&Query::default()).await.unwrap();
    let reading = &page.readings[0];
    let _ = shop.store.erase(reading.id).await.unwrap();
    let claim = Claim {
        guarantee: Guarantee::AtLeastOnce,
        attempts_max: 5,
        ..Claim::new(reading.id, reading.record.fingerprint)
    };
    let lease = claim.lease;
    let _ = shop.store.claim(claim).await.unwrap();
    shop.look_up("k", &[]).await.check(200, "in-flight", "wait");
    tokio::time::sleep(lease).await;
    let seen = shop.look_up("k", &[]).await;
    seen.check(200, "unknown", "reuse-key");
    assert_eq!(shop.post("/pay", "k", &[]).await.status, 201);
    let seen = shop.look_up("k", &[]).await;
    seen.check(200, "completed", "reuse-key");
}

#[tokio::test(start_paused = true)]
async fn head_has_the_headers_alone() {
    let shop = shop(vec![operation("POST /pay")]);
    shop.post("/pay", "k", ANNA).await;
    for (key, status) in [("k", 200), ("never", 404), ("a%20b", 400)] {
        let get = shop.look_up(key, ANNA).await;
        let head = shop
            .send(&format!("HEAD /.well-known/idempotency/{key}"), ANNA)
            .await;
        assert_eq!((get.status, head.status), (status, status));
        assert_eq!(head.body, "");
        assert_eq!(
            head.headers["content-length"],
            get.body.len().to_string()[..]
        );
        assert_eq!(head.headers["content-type"], get.headers["content-type"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_scope_by_route_or_path_needs_the_request_to_be_named() {
    let mut by_path = operation("POST /shops/{shop}/pay");
    by_path.scope = vec!["path:shop".parse().unwrap()];
    let shop = shop(vec![operation("POST /pay"), by_path]);
    shop.post("/shops/7/pay", "k", ANNA).await;
    shop.look_up("k", ANNA)
        .await
        .check(404, "absent", "reuse-key");
    let named = shop.look_up("k?method=POST&path=/shops/7/pay", ANNA).await;
    named.check(200, "completed", "reuse-key");
    assert_eq!(named.json()["operation"], "POST /shops/{shop}/pay");
    for query in [
        "method=POST&path=/shops/8/pay",
        "method=POST&path=/pay",
        "method=GET&path=/x",
    ] {
        let other = shop.look_up(&format!("k?{query}"), ANNA).await;
        other.check(404, "absent", "reuse-key");
    }
    let half = shop.look_up("k?path=/shops/7/pay", ANNA).await;
    assert_eq!(
        (half.status, &half.json()["code"]),
        (400, &"request-malformed".into())
    );
}

#[tokio::test(start_paused = true)]
async fn one_look_up_reads_a_bounded_number_of_records() {
    let operations = (0..100).map(|at| {
        let mut operation = operation(&format!("POST /pay/{at}"));
        operation.scope = vec!["route".parse().unwrap()];
        operation
    });
    let shop = shop(operations.collect());
    shop.post("/pay/99", "k", ANNA).await;
    let before = shop.store.calls(Op::Read);
    let all = shop.look_up("k", ANNA).await;
    assert_eq!(
        (all.status, &all.json()["code"]),
        (400, &"request-malformed".into())
    );
    assert!(all.body.contains("?method=POST&path="), "{}", all.body);
    let named = shop.look_up("k?method=POST&path=/pay/99", ANNA).await;
    named.check(200, "completed", "reuse-key");
    assert_eq!(shop.store.calls(Op::Read) - before, 1);
}

/// A record is read with its whole outcome, which may have megabytes.
#[tokio::test(start_paused = true)]
async fn a_bounded_number_of_look_ups_reads_the_store_at_the_same_time() {
    let shop = Arc::new(shop(vec![operation("POST /pay")]));
    shop.post("/pay", "k", ANNA).await;
    let before = shop.store.calls(Op::Read);
    let slow = Fault::AnswersLate(Duration::from_secs(10));
    shop.store.set(Op::Read, usize::MAX, slow);
    let look_ups = (0..50).map(|_| {
        let shop = shop.clone();
        tokio::spawn(async move { shop.look_up("k", ANNA).await.status })
    });
    let look_ups: Vec<_> = look_ups.collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(shop.store.calls(Op::Read) - before, 16);
    for look_up in look_ups {
        assert_eq!(look_up.await.unwrap(), 200);
    }
}

/// Operations often share a scope: their keys are told apart by the operation in the record.
#[tokio::test(start_paused = true)]
async fn operations_without_look_up_stay_hidden() {
    let mut hidden = operation("POST /hidden");
    hidden.lookup = false;
    let mut observed = operation("POST /observed");
    observed.mode = Mode::Observe;
    let mut signed = operation("POST /signed");
    let signature = Signature::new(refrain::key::Sender::Github);
    signed.signature = Some(signature.with_secret("s").unwrap());
    let shop = shop(vec![operation("POST /pay"), hidden, observed, signed]);
    for path in ["/hidden", "/observed", "/signed"] {
        shop.post(path, "k", ANNA).await;
        for query in [String::new(), format!("?method=POST&path={path}")] {
            let seen = shop.look_up(&format!("k{query}"), ANNA).await;
            seen.check(404, "absent", "reuse-key");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_the_service_answers() {
    let shop = shop(vec![Operation::new("POST /pay").unwrap()]);
    shop.post("/pay", "k", ANNA).await;
    let seen = shop.look_up("k", ANNA).await;
    assert_eq!((seen.status, &seen.body[..]), (201, "the service's own"));
    assert_eq!(shop.store.calls(Op::Read), 0);
    // With it, other methods and paths are the service's own, too.
    let shop = self::shop(vec![operation("POST /pay")]);
    for start in [
        "POST /.well-known/idempotency/k",
        "GET /.well-known/other",
        "GET /pay",
    ] {
        let seen = shop.send(start, ANNA).await;
        assert_eq!(
            (seen.status, &seen.body[..]),
            (201, "the service's own"),
            "{start}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_and_a_malformed_key_are_problems() {
    let shop = shop(vec![operation("POST /pay")]);
    for key in ["", "a%20b", "%zz", "%FF", &"k".repeat(256)] {
        let seen = shop.look_up(key, ANNA).await;
        assert_eq!(
            (seen.status, &seen.json()["code"]),
            (400, &"key-invalid".into()),
            "{key}"
        );
    }
    let down = Fault::Fails(refrain::ErrorKind::Unavailable);
    shop.store.set(Op::Read, 1, down);
    let seen = shop.look_up("k", ANNA).await;
    assert_eq!(
        (seen.status, &seen.json()["code"]),
        (503, &"store-unavailable".into())
    );
    assert_eq!(seen.headers["retry-after"], "1");
    shop.look_up("k", ANNA)
        .await
        .check(404, "absent", "reuse-key");
}
