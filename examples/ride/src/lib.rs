//! The service itself, apart from the program, so that tests can run it in process.

use std::path::Path;

use axum::{
    Extension, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use refrain::{
    Engine, Guarantee, Operation, Policy, RecordId, Terms,
    http::RefrainLayer,
    steps::{Opened, Opening, StepError},
    store::AnyStore,
};
use serde::{Deserialize, Serialize};

pub mod town;
use town::Town;

/// What a passenger wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Where the receipt goes.
    pub passenger: String,
    /// What it costs.
    pub fare: u64,
}

/// What the passenger gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The ride's number.
    pub ride: u64,
    /// The payment's number.
    pub charge: u64,
}

#[derive(Clone)]
struct Desk {
    engine: Engine,
    town: Town,
}

/// The guarded service, with its records in `folder`.
///
/// # Errors
/// When the folder cannot be used, for instance because another process holds it.
pub async fn app(folder: &Path, town: Town) -> anyhow::Result<Router> {
    let store = AnyStore::open(&format!("file:{}", folder.display())).await?;
    let engine = Engine::new(store);
    let mut rides = Operation::new("POST /v1/rides")?.with_terms(Terms {
        // The steps know what is done, so the handler may run again: under at-most-once a crash would be the end of it.
        guarantee: Guarantee::AtLeastOnce,
        ..Terms::default()
    });
    rides.required = true;
    let layer = RefrainLayer::new(engine.clone(), Policy::default().with(rides)?);
    Ok(Router::new()
        .route("/v1/rides", post(book))
        .with_state(Desk { engine, town })
        .layer(layer))
}

async fn book(
    State(desk): State<Desk>,
    Extension(record): Extension<RecordId>,
    Json(order): Json<Order>,
) -> Response {
    match ride(&desk, record, &order).await {
        Ok(receipt) => (StatusCode::CREATED, Json(receipt)).into_response(),
        Err(error) => answer(&error),
    }
}

/// The ride in steps. The record of the request is the same on every attempt, and so its identity is the key.
async fn ride(desk: &Desk, record: RecordId, order: &Order) -> Result<Receipt, StepError> {
    let town = &desk.town;
    let opening = Opening::new("book-ride", record).with_input(order);
    let mut steps = match opening.open(&desk.engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(receipt) => return Ok(receipt),
    };
    let ride = steps
        .step_or_undo(
            "ride",
            async |key| town.book(key, &order.passenger).await,
            async |key, ride| town.cancel(key, ride).await,
        )
        .await?;
    let charge = steps
        .step_or_undo(
            "charge",
            async |key| town.charge(key, order.fare).await,
            async |key, charge| town.refund(key, charge).await,
        )
        .await?;
    // Paid is paid: from here on the passenger gets a receipt, sooner or later.
    steps.point_of_no_return();
    steps
        .step("receipt", async |key| {
            town.mail(key, &order.passenger, charge).await
        })
        .await?;
    steps.finish(Receipt { ride, charge }).await
}

/// What the client is told.
fn answer(error: &StepError) -> Response {
    let text = error.to_string();
    if let StepError::Undone { .. } = error {
        // It stays so under this key: the layer keeps the answer.
        let keep = [("refrain-outcome", "keep")];
        return (StatusCode::PAYMENT_REQUIRED, keep, text).into_response();
    }
    let mut headers = HeaderMap::new();
    if let Some(after) = error.retry_after() {
        headers.insert(RETRY_AFTER, after.as_secs().max(1).into());
    }
    let status = match error.is_retryable() {
        true => StatusCode::SERVICE_UNAVAILABLE,
        // Somebody has to look: the error says where.
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, headers, text).into_response()
}
