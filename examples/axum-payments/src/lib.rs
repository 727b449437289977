//! The service as a library, so that tests can run it in process.

use std::{path::Path, sync::Arc};

use axum::{
    Extension, Form, Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use refrain::{
    AuditLog, Engine, Fence, Operation, Policy,
    http::RefrainLayer,
    key::{KEY_HEADER, ScopePart, Syntax},
    policy::Class,
    store::AnyStore,
};
use serde::Deserialize;

mod book;
pub use book::{Book, Paid, Payment};

/// The guarded service, with its records, its audit log and its payments file in `folder`.
///
/// # Errors
/// If the folder is unusable, for example because another process holds it.
pub async fn app(folder: &Path) -> anyhow::Result<Router> {
    let store = AnyStore::open(&format!("file:{}", folder.join("records").display())).await?;
    let book = Arc::new(Book::open(&folder.join("payments.jsonl"))?);
    let payments = Router::new()
        .route("/v1/payments", get(look_up).post(pay))
        .with_state(book);
    // Probes ask the service without its guard whether an indeterminate payment took effect.
    let engine = Engine::new(store).with_audit(AuditLog::open(folder.join("audit"))?);
    let layer = RefrainLayer::new(engine, policy()?).with_probes(payments.clone());
    layer.check()?;
    Ok(payments.layer(layer))
}

/// The policy. It could also be in `refrain.toml`.
fn policy() -> refrain::Result<Policy> {
    let mut payments = Operation::new("POST /v1/payments")?.with_class(Class::Monetary);
    payments.probe = Some("GET /v1/payments?key={key}".parse()?);
    // The book holds one payment per key, for all callers, so keys are unique in the whole service.
    payments.scope = vec![ScopePart::None];
    Policy::default().with(payments)
}

/// The body of a payment request.
#[derive(Debug, Deserialize)]
struct Order {
    amount: u64,
    to: String,
}

async fn pay(
    State(book): State<Arc<Book>>,
    Extension(fence): Extension<Fence>,
    headers: HeaderMap,
    Form(order): Form<Order>,
) -> Response {
    // The layer has already rejected requests without a valid key.
    let value = headers.get(KEY_HEADER).map_or(&[][..], |it| it.as_bytes());
    let Ok(key) = Syntax::default().read(value) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let payment = Payment {
        key: key.as_str().into(),
        amount: order.amount,
        to: order.to,
    };
    // A real service calls its database here, which may block, and passes the fence on.
    match tokio::task::spawn_blocking(move || book.pay(payment, fence)).await {
        Ok(Ok(Paid::Done(payment))) => (StatusCode::CREATED, Json(payment)).into_response(),
        Ok(Ok(Paid::Overtaken)) => StatusCode::CONFLICT.into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> Response {
    eprintln!("cannot write a payment: {error}");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[derive(Debug, Deserialize)]
struct Wanted {
    key: String,
}

async fn look_up(State(book): State<Arc<Book>>, Query(wanted): Query<Wanted>) -> Response {
    match book.find(&wanted.key) {
        Some(payment) => Json(payment).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
