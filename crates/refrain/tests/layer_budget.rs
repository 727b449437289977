//! Buffered bodies must not exhaust memory: their total has a limit. Requests beyond it are refused before anything
//! is claimed; responses never are.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use refrain::{
    Engine, Operation, Policy, engine::Count, http::RefrainLayer, policy::Mode, store::Memory,
};
use tokio::sync::mpsc;
use tower_service::Service as _;

const MAX: usize = 1 << 20;

/// A body that arrives chunk by chunk.
struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.0.poll_recv(context);
        polled.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

fn pieces() -> (mpsc::UnboundedSender<Bytes>, Body) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Body::new(Pieces(receiver)))
}

/// An echo service, and services that respond with half the budget and twice the budget, behind a layer that may
/// buffer `MAX` bytes.
fn stage(policy: Policy) -> (RefrainLayer, Router) {
    let engine = Engine::new(Memory::new());
    let layer = RefrainLayer::new(engine, policy).with_buffered_bytes_max(MAX);
    let app = Router::new()
        .route("/pay", post(async |body: Bytes| body))
        .route("/half", post(async || vec![7_u8; MAX / 2]))
        .route("/large", post(async || vec![7_u8; 2 * MAX]))
        .layer(layer.clone());
    (layer, app)
}

async fn call(mut app: Router, path: &str, key: &str, body: impl Into<Body>) -> Response<Body> {
    let request = Request::post(path).header("idempotency-key", key);
    let Ok(response) = app.call(request.body(body.into()).unwrap()).await;
    response
}

async fn bytes(response: Response<Body>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn check_refused(response: Response<Body>) {
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    let problem: serde_json::Value = serde_json::from_slice(&bytes(response).await).unwrap();
    assert_eq!(problem["code"], "over-budget");
    assert_eq!(problem["advice"], "wait");
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(waited.is_ok(), "timed out waiting until {what}");
}

#[tokio::test]
async fn a_request_beyond_the_budget_is_refused_before_anything_is_claimed() {
    let (layer, app) = stage(Policy::default());
    let tally = layer.engine().tally();
    let (sender, body) = pieces();
    let first = tokio::spawn({
        let app = app.clone();
        async move { call(app, "/pay", "first", body).await }
    });
    for _ in 0..7 {
        sender.send(vec![1; 100_000].into()).unwrap();
    }
    until("it is read", || layer.buffered_bytes() == 700_000).await;
    check_refused(call(app.clone(), "/pay", "second", vec![2; 300_000]).await).await;
    assert_eq!(tally.get(Count::Granted), 0);
    assert_eq!(tally.get(Count::OverBudget), 1);
    assert_eq!(layer.buffered_bytes(), 700_000);
    // A small request is served from the part of the budget that is reserved for small ones.
    let small = call(app.clone(), "/pay", "small", vec![3; 60_000]).await;
    assert_eq!(
        (small.status().as_u16(), bytes(small).await.len()),
        (200, 60_000)
    );
    drop(sender);
    let first = first.await.unwrap();
    assert_eq!(
        (first.status().as_u16(), bytes(first).await.len()),
        (200, 700_000)
    );
    until("all is given back", || layer.buffered_bytes() == 0).await;
    // The refused request left no record under its key.
    let again = call(app, "/pay", "second", vec![4; 300_000]).await;
    assert_eq!(again.status(), 200);
    assert!(!again.headers().contains_key("idempotent-replayed"));
    drop(again);
    until("all is given back", || layer.buffered_bytes() == 0).await;
}

#[tokio::test]
async fn a_body_that_never_fits_is_too_large() {
    let (layer, app) = stage(Policy::default());
    let refused = call(app, "/pay", "k", vec![1; MAX]).await;
    assert_eq!(refused.status(), 413);
    assert_eq!(layer.buffered_bytes(), 0);
}

#[tokio::test]
async fn an_answer_counts_until_it_is_sent_and_is_never_refused() {
    let (layer, app) = stage(Policy::default());
    let answer = call(app.clone(), "/large", "k", "x").await;
    assert_eq!(answer.status(), 200);
    assert!(layer.buffered_bytes() >= 2 * MAX);
    check_refused(call(app.clone(), "/pay", "other", vec![1; 100_000]).await).await;
    assert_eq!(bytes(answer).await.len(), 2 * MAX);
    until("all is given back", || layer.buffered_bytes() == 0).await;
    assert_eq!(
        call(app, "/pay", "other", vec![1; 100_000]).await.status(),
        200
    );
}

#[tokio::test]
async fn a_large_replay_counts_until_it_is_sent() {
    let (layer, app) = stage(Policy::default());
    for _ in 0..2 {
        let sent = bytes(call(app.clone(), "/half", "k", "x").await).await;
        assert_eq!(sent.len(), MAX / 2);
    }
    until("all is given back", || layer.buffered_bytes() == 0).await;
    let replay = call(app.clone(), "/half", "k", "x").await;
    assert!(replay.headers().contains_key("idempotent-replayed"));
    assert_eq!(layer.buffered_bytes(), MAX / 2);
    check_refused(call(app.clone(), "/half", "k", "x").await).await;
    let small = call(app.clone(), "/pay", "small", vec![3; 60_000]).await;
    assert_eq!(small.status(), 200);
    drop((replay, small));
    assert_eq!(layer.buffered_bytes(), 0);
    // A response that is larger than the budget is replayed anyway.
    for _ in 0..2 {
        let answer = call(app.clone(), "/large", "large", "x").await;
        assert_eq!(bytes(answer).await.len(), 2 * MAX);
    }
}

#[tokio::test]
async fn observed_requests_are_never_rejected() {
    let mut observed = Operation::new("POST /pay").unwrap();
    observed.mode = Mode::Observe;
    let (layer, app) = stage(Policy::default().with(observed).unwrap());
    let answer = call(app, "/pay", "k", vec![1; 3 * MAX / 2]).await;
    assert_eq!(bytes(answer).await.len(), 3 * MAX / 2);
    until("all is given back", || layer.buffered_bytes() == 0).await;
}
