//! An operator gets a customer's error message at night and has to find the record behind it.
//! So every response to a request with a key names its record, in `Refrain-Record` and in the problem.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    response::Response,
    routing::post,
};
use http::{Request, StatusCode};
use refrain::{
    Engine, ErrorKind, Operation, Policy,
    http::{REFRAIN_RECORD, RefrainLayer},
    store::{Query, Store as _},
};
use serde_json::Value;
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted};

struct Shop {
    store: Scripted,
    app: Router,
}

impl Shop {
    fn new() -> Self {
        let store = Scripted::new();
        let mut operation = Operation::new("POST /*").unwrap();
        operation.terms.wait = Duration::ZERO;
        let policy = Policy::new(vec![operation]).unwrap();
        let app = Router::new()
            .route("/pay", post(async || (StatusCode::CREATED, "paid")))
            .route("/busy", post(async || StatusCode::TOO_MANY_REQUESTS))
            .route("/panic", post(async || -> &'static str { panic!("no") }))
            .route(
                "/hang",
                post(async || -> () { std::future::pending().await }),
            )
            .layer(RefrainLayer::new(Engine::new(store.clone()), policy));
        Self { store, app }
    }

    fn call(&self, path: &str, fields: &[(&str, &str)]) -> impl Future<Output = Response> + use<> {
        let mut request = Request::post(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let calling = self.app.clone().call(request.body(Body::empty()).unwrap());
        async { calling.await.unwrap() }
    }

    /// The only record of the store.
    async fn record(&self) -> String {
        let page = self.store.list(&Query::default()).await.unwrap();
        assert_eq!(page.readings.len(), 1);
        page.readings[0].id.to_string()
    }
}

fn named(response: &Response) -> Option<&str> {
    let record = response.headers().get(REFRAIN_RECORD)?;
    Some(record.to_str().unwrap())
}

/// Checks that a problem with this code names `record` in its header and its body.
async fn check(response: Response, code: &str, record: Option<&str>) {
    assert_eq!(named(&response), record, "{code}");
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["code"], code);
    assert_eq!(problem["record"].as_str(), record, "{code}");
}

const KEY: (&str, &str) = ("idempotency-key", "order-7");

#[tokio::test]
async fn first_response_replay_and_refusals_name_the_same_record() {
    let shop = Shop::new();
    let first = shop.call("/pay", &[KEY]).await;
    let record = shop.record().await;
    assert_eq!(named(&first), Some(&*record));
    let replay = shop.call("/pay", &[KEY]).await;
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(named(&replay), Some(&*record));
    let other = shop.call("/pay?amount=2", &[KEY]).await;
    check(other, "key-reused", Some(&record)).await;
}

#[tokio::test]
async fn unknown_outcome_and_request_in_flight_name_their_record() {
    let shop = Shop::new();
    let unknown = shop.call("/panic", &[KEY]).await;
    let record = shop.record().await;
    check(unknown, "outcome-unknown", Some(&record)).await;
    let again = shop.call("/panic", &[KEY]).await;
    check(again, "outcome-unknown", Some(&record)).await;

    let shop = Shop::new();
    let _first = tokio::spawn(shop.call("/hang", &[KEY]));
    while shop.store.census().await.unwrap().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    let record = shop.record().await;
    check(shop.call("/hang", &[KEY]).await, "in-flight", Some(&record)).await;
}

#[tokio::test]
async fn released_response_and_failed_claim_name_the_record_they_would_have() {
    let shop = Shop::new();
    let released = shop.call("/busy", &[KEY]).await;
    let record = named(&released).unwrap().to_owned();
    shop.store
        .set(Op::Claim, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    let refused = shop.call("/busy", &[KEY]).await;
    check(refused, "store-unavailable", Some(&record)).await;
}

#[tokio::test]
async fn request_without_a_valid_key_has_no_record() {
    let shop = Shop::new();
    assert_eq!(named(&shop.call("/pay", &[]).await), None);
    let invalid = shop.call("/pay", &[("idempotency-key", "")]).await;
    check(invalid, "key-invalid", None).await;
}
