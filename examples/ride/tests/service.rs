//! Runs the service in process: it resumes where it stopped, also after a restart, and cancels a ride that
//! it cannot finish.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use ride::{Receipt, app, town::Town};
use tower_service::Service as _;

async fn order(app: &Router, key: &str, fare: u64) -> (u16, String, bool) {
    let body = format!(r#"{{"passenger": "anna", "fare": {fare}}}"#);
    let request = Request::post("/v1/rides")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body))
        .unwrap();
    let response = app.clone().call(request).await.unwrap();
    let status = response.status().as_u16();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap(), is_replay)
}

/// Retries as a patient client does.
async fn order_until(app: &Router, key: &str, wanted: u16) -> String {
    for _ in 0..600 {
        let (status, body, _) = order(app, key, 20).await;
        if status == wanted {
            return body;
        }
        assert_eq!(status, 503, "{body}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("never {wanted}");
}

#[tokio::test]
async fn a_ride_is_booked_charged_and_mailed_once() {
    let folder = tempfile::tempdir().unwrap();
    let town = Town::default();
    let app = app(folder.path(), town.clone()).await.unwrap();
    let (status, first, is_replay) = order(&app, "order-7", 20).await;
    assert_eq!((status, is_replay), (201, false));
    let receipt: Receipt = serde_json::from_str(&first).unwrap();
    assert_eq!(receipt, Receipt { ride: 1, charge: 2 });
    assert_eq!(order(&app, "order-7", 20).await, (201, first, true));
    assert_eq!(order(&app, "order-7", 21).await.0, 422);
    let effects = ["ride for anna", "20 charged", "receipt 2 to anna"];
    assert_eq!(town.effects(), effects);
}

#[tokio::test]
async fn a_ride_that_is_declined_is_cancelled_and_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let town = Town::default();
    let app = app(folder.path(), town.clone()).await.unwrap();
    for round in 0..2 {
        let (status, text, is_replay) = order(&app, "order-8", 200).await;
        assert_eq!((status, is_replay), (402, round > 0));
        assert!(text.contains("the card was declined"), "{text}");
    }
    assert_eq!(town.effects(), ["ride for anna", "ride 1 cancelled"]);
}

#[tokio::test]
async fn retry_resumes_after_completed_steps_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let town = Town::default();
    town.set_mail_down(true);
    let service = app(folder.path(), town.clone()).await.unwrap();
    order_until(&service, "order-9", 503).await;
    assert_eq!(town.effects(), ["ride for anna", "20 charged"]);
    drop(service);
    town.set_mail_down(false);
    let service = reopened(&folder, &town).await;
    order_until(&service, "order-9", 201).await;
    let effects = ["ride for anna", "20 charged", "receipt 2 to anna"];
    assert_eq!(town.effects(), effects);
}

/// Opens the service again; the first instance releases the folder only when its last task ends.
async fn reopened(folder: &tempfile::TempDir, town: &Town) -> Router {
    for _ in 0..3_000 {
        match app(folder.path(), town.clone()).await {
            Ok(app) => return app,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    }
    panic!("the folder is still held");
}
