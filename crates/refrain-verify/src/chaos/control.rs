//! Control API: adds and removes rules while the proxy runs.

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Chaos, rule::Rule};

/// Maximum size of a request body, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Routes of the control API: `GET|POST|DELETE /rules`, `DELETE /rules/{number}`, `GET /log?after=N`, `GET /`.
pub fn router(chaos: Chaos) -> Router {
    Router::new()
        .route("/", get(overview))
        .route("/rules", get(list).post(add).delete(clear))
        .route("/rules/{number}", delete(remove))
        .route("/log", get(log))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(chaos)
}

#[derive(Debug, Deserialize)]
struct Adding {
    rule: String,
}

#[derive(Debug, Deserialize)]
struct Since {
    #[serde(default)]
    after: u64,
}

async fn overview(State(chaos): State<Chaos>) -> Json<Value> {
    Json(json!({
        "upstream": chaos.0.upstream.address,
        "seed": chaos.rules().seed(),
        "passed": chaos.passed(),
        "rules": chaos.rules().list(),
    }))
}

async fn list(State(chaos): State<Chaos>) -> Json<Value> {
    Json(json!({ "rules": chaos.rules().list() }))
}

async fn add(State(chaos): State<Chaos>, Json(adding): Json<Adding>) -> Response {
    let added = adding.rule.parse::<Rule>().and_then(|rule| {
        let text = rule.to_string();
        chaos.rules().add(rule).map(|number| (number, text))
    });
    match added {
        Ok((number, rule)) => {
            let told = json!({ "number": number, "rule": rule });
            (StatusCode::CREATED, Json(told)).into_response()
        }
        Err(error) => {
            let told = json!({ "error": error.to_string() });
            (StatusCode::BAD_REQUEST, Json(told)).into_response()
        }
    }
}

async fn clear(State(chaos): State<Chaos>) -> Json<Value> {
    Json(json!({ "removed": chaos.rules().clear() }))
}

async fn remove(State(chaos): State<Chaos>, Path(number): Path<u64>) -> Response {
    match chaos.rules().remove(number) {
        true => Json(json!({ "removed": 1 })).into_response(),
        false => {
            let told =
                json!({ "error": format!("rule {number} does not exist; list the rules first") });
            (StatusCode::NOT_FOUND, Json(told)).into_response()
        }
    }
}

async fn log(State(chaos): State<Chaos>, Query(since): Query<Since>) -> Json<Value> {
    Json(json!({ "events": chaos.journal().after(since.after) }))
}
