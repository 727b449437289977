//! `/api/workers`: the message consumers of this process, their dead letters, and redrives.

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc};

use axum::{
    Json,
    extract::{Path, State, rejection::BytesRejection},
};
use bytes::Bytes;
use http::StatusCode;
use refrain::{
    Result,
    consume::{DeadLetter, Redriven},
    engine::OperatorAction,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Admin, records::parse, refusal::Refusal, resolve::action};

/// Most dead letters listed, and the default of a redrive.
const LETTERS_MAX: u32 = 100;

/// Future of a call to [`Workers`].
pub type WorkersFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The message consumers of a process, for its admin listener.
pub trait Workers: Debug + Send + Sync + 'static {
    /// The state of each worker.
    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>>;

    /// Lists dead letters of a worker without consuming them; `None` if there is no such worker.
    fn dead_letters<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>>;

    /// Publishes dead letters of a worker again; `None` if there is no such worker.
    fn redrive<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
        action: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<Redriven>>>;
}

/// The state of a worker.
#[derive(Debug, Clone, Default, Serialize)]
pub struct WorkerStatus {
    /// Its name.
    pub name: String,
    /// Address of the broker, without secrets.
    pub source: String,
    /// Queue, stream or topic.
    pub queue: String,
    /// URL that messages are delivered to.
    pub deliver: String,
    /// The guarantee, such as `at-least-once`.
    pub guarantee: String,
    /// The dead-letter queue, if one is set.
    pub dead_letter: Option<String>,
    /// Deliveries by outcome, since the start.
    pub counts: Vec<(&'static str, u64)>,
    /// Messages that wait to be delivered, if the broker tells.
    pub lag: Option<u64>,
    /// Messages that are delivered and not acknowledged, if the broker tells.
    pub unacknowledged: Option<u64>,
    /// Age of the oldest waiting message in seconds, if the broker tells.
    pub oldest_seconds: Option<u64>,
    /// Number of dead letters, if it is known.
    pub dead_letters: Option<u64>,
    /// Why no messages can be handled now.
    pub trouble: Option<String>,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let workers = match &admin.workers {
        Some(workers) => workers.list().await,
        None => Vec::new(),
    };
    Json(json!({ "workers": workers }))
}

pub(super) async fn dead_letters(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let workers = admin.workers.as_ref().ok_or_else(|| unknown(&name))?;
    let letters = workers.dead_letters(&name, LETTERS_MAX).await;
    let letters = letters.ok_or_else(|| unknown(&name))??;
    Ok(Json(json!({ "dead_letters": letters })))
}

/// Request body of a redrive.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedriveRequest {
    reason: String,
    by: Option<String>,
    at_most: Option<u32>,
}

pub(super) async fn redrive(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, Refusal> {
    let fix = r#"send {"reason":"why they are redriven","at_most":100}"#;
    let asked: RedriveRequest = parse(&body?, fix)?;
    let workers = admin.workers.as_ref().ok_or_else(|| unknown(&name))?;
    let at_most = asked.at_most.unwrap_or(LETTERS_MAX);
    let action = action(&admin, &asked.reason, asked.by.as_deref());
    let redriven = workers.redrive(&name, at_most, action).await;
    let redriven = redriven.ok_or_else(|| unknown(&name))??;
    Ok(Json(json!({
        "sent": redriven.sent,
        "skipped": redriven.skipped,
        "left": redriven.left,
    })))
}

fn unknown(name: &str) -> Refusal {
    let error = format!("no worker `{name}` runs in this process");
    let fix = "use the admin address of `refrain work`; GET /api/workers lists its workers";
    Refusal::new(StatusCode::NOT_FOUND, error, fix)
}
