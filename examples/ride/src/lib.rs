//! The service as a library, so that tests can run it in process.

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

/// A passenger's order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Address for the receipt.
    pub passenger: String,
    /// The fare.
    pub fare: u64,
}

/// The response to the passenger.
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
/// If the folder is unusable, for example because another process holds it.
pub async fn app(folder: &Path, town: Town) -> anyhow::Result<Router> {
    let store = AnyStore::open(&format!("file:{}", folder.display())).await?;
    let engine = Engine::new(store);
    let mut rides = Operation::new("POST /v1/rides")?.with_terms(Terms {
        // The steps record what is done, so the handler may run again; under at-most-once a crash would end
        // the operation.
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

/// Books the ride in steps. The request's record id is the same in every attempt, so it is the key.
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
    // The charge is final: from here on the receipt must be delivered eventually.
    steps.point_of_no_return();
    steps
        .step("receipt", async |key| {
            town.mail(key, &order.passenger, charge).await
        })
        .await?;
    steps.finish(Receipt { ride, charge }).await
}

/// Converts an error into a response.
fn answer(error: &StepError) -> Response {
    let text = error.to_string();
    if let StepError::Undone { .. } = error {
        // Final for this key, so the layer keeps the response.
        let keep = [("refrain-outcome", "keep")];
        return (StatusCode::PAYMENT_REQUIRED, keep, text).into_response();
    }
    let mut headers = HeaderMap::new();
    if let Some(after) = error.retry_after() {
        headers.insert(RETRY_AFTER, after.as_secs().max(1).into());
    }
    let status = match error.is_retryable() {
        true => StatusCode::SERVICE_UNAVAILABLE,
        // An operator has to act; the error says where.
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, headers, text).into_response()
}
