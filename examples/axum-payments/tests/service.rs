//! Runs the service in process and checks what its documentation shows with curl, including restarts.

use std::path::Path;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use axum_payments::{Book, Paid, Payment, app};
use refrain::Fence;
use tower_service::Service as _;

const FORM: &str = "application/x-www-form-urlencoded";

/// Returns status, body, and whether the response is a replay.
async fn send(app: &Router, request: Request<Body>) -> (u16, String, bool) {
    let response = app.clone().call(request).await.unwrap();
    let status = response.status().as_u16();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap(), is_replay)
}

async fn pay(app: &Router, key: Option<&str>, body: &'static str) -> (u16, String, bool) {
    let mut request = Request::post("/v1/payments").header("content-type", FORM);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    send(app, request.body(body.into()).unwrap()).await
}

/// Number of payments in the book.
fn payments(folder: &Path) -> usize {
    let text = std::fs::read_to_string(folder.join("payments.jsonl")).unwrap();
    text.lines().count()
}

#[tokio::test]
async fn a_retry_pays_once_also_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let service = app(folder.path()).await.unwrap();
    let order = "amount=20&to=alice";
    let (status, paid, is_replay) = pay(&service, Some("order-7"), order).await;
    assert_eq!((status, is_replay), (201, false));
    assert_eq!(paid, r#"{"key":"order-7","amount":20,"to":"alice"}"#);
    let again = pay(&service, Some("\"order-7\""), order).await;
    assert_eq!(
        again,
        (201, paid.clone(), true),
        "quoted, it is the same key"
    );

    drop(service);
    let service = reopened(folder.path()).await;
    let later = pay(&service, Some("order-7"), order).await;
    assert_eq!(later, (201, paid, true));
    assert_eq!(payments(folder.path()), 1);
}

/// Opens the service again after the previous instance has released the folder.
async fn reopened(folder: &Path) -> Router {
    loop {
        match app(folder).await {
            Ok(service) => return service,
            Err(error) if error.to_string().contains("held by another") => {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn request_that_is_not_a_retry_is_rejected_and_pays_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let service = app(folder.path()).await.unwrap();
    pay(&service, Some("order-7"), "amount=20&to=alice").await;
    for (key, body, status, code) in [
        (Some("order-7"), "amount=99&to=alice", 422, "key-reused"),
        (Some("order-7"), "amount=20&to=bob", 422, "key-reused"),
        (None, "amount=20&to=alice", 400, "key-missing"),
        (Some("two words"), "amount=20&to=alice", 400, "key-invalid"),
    ] {
        let seen = pay(&service, key, body).await;
        assert_eq!(seen.0, status, "{seen:?}");
        assert!(seen.1.contains(code), "{seen:?}");
    }
    assert_eq!(payments(folder.path()), 1);
}

#[tokio::test]
async fn a_payment_can_be_looked_up_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let service = app(folder.path()).await.unwrap();
    let (_, paid, _) = pay(&service, Some("order/7&more"), "amount=20&to=alice").await;
    for (key, expected) in [
        ("order%2F7%26more", (200, paid, false)),
        ("order", (404, String::new(), false)),
    ] {
        let request = Request::get(format!("/v1/payments?key={key}"));
        let seen = send(&service, request.body(Body::empty()).unwrap()).await;
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_holder_that_was_overtaken_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book");
    let payment = |amount| Payment {
        key: "order-7".into(),
        amount,
        to: "alice".into(),
    };
    let fence = |counter| Fence {
        epoch: 1,
        counter,
        nonce: 0,
    };
    let cases = [
        (2, Paid::Done(payment(20))),
        (1, Paid::Overtaken),
        (2, Paid::Done(payment(20))),
        (3, Paid::Done(payment(20))),
    ];
    for (amount, (counter, expected)) in (20..).zip(cases) {
        let book = Book::open(&path).unwrap();
        let paid = book.pay(payment(amount), fence(counter)).unwrap();
        assert_eq!(paid, expected);
        assert_eq!(book.find("order-7"), Some(payment(20)));
    }
}
