//! `/api/workers`: the message consumers of this process, their dead letters, and redrives.

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{
        Path, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::StatusCode;
use refrain::{
    Error, ErrorKind, Result,
    consume::{DeadLetter, Lag},
    engine::OperatorAction,
    policy::WorkerSettings,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Admin, records::parse, refusal::Refusal, resolve::action};

/// Default number of dead letters, of a list and of a redrive.
pub(crate) const LETTERS_DEFAULT: u32 = 100;
/// Most dead letters of a list, and of a redrive.
const LETTERS_MAX: u32 = 1_000;
/// Longest time for a list; shorter than that of any response.
const LIST_MAX: Duration = Duration::from_secs(20);

/// Future of a call to [`Workers`].
pub type WorkersFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The message consumers of a process, for its admin listener.
pub trait Workers: Debug + Send + Sync + 'static {
    /// The settings of each worker. By default none are known.
    fn settings(&self) -> &[WorkerSettings] {
        &[]
    }

    /// Why workers cannot get messages now, with the name of each such worker. By default no reason is known.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// The state of each worker.
    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>>;

    /// Lists dead letters of a worker without consuming them; `None` if there is no such worker.
    fn dead_letters<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>>;

    /// Publishes dead letters of a worker again; `None` if there is no such worker. Returns before the end if the redrive
    /// takes long: it continues, and [`list`](Self::list) shows its state.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while another redrive of the worker runs.
    fn redrive<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
        action: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<RedriveStatus>>>;
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
    /// Messages that are being handled now.
    pub in_flight: u64,
    /// Messages that wait to be delivered, if the broker tells.
    pub lag: Option<u64>,
    /// Messages that are delivered and not acknowledged, if the broker tells.
    pub unacknowledged: Option<u64>,
    /// Age of the oldest message that is not acknowledged in seconds, if the broker tells.
    pub oldest_seconds: Option<u64>,
    /// Whether the numbers of the broker are estimates or bounds.
    pub is_approximate: bool,
    /// Number of dead letters, if it is known.
    pub dead_letters: Option<u64>,
    /// The redrive that runs, or the last one.
    pub redrive: Option<RedriveStatus>,
    /// Why no messages can be handled now.
    pub trouble: Option<String>,
}

impl WorkerStatus {
    /// Adds what the broker reports about the worker's queue.
    #[must_use]
    pub fn with_lag(self, lag: Lag) -> Self {
        Self {
            lag: lag.waiting,
            unacknowledged: lag.unacknowledged,
            oldest_seconds: lag.oldest.map(|age| age.as_secs()),
            is_approximate: lag.is_approximate,
            ..self
        }
    }
}

/// The state of a redrive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RedriveStatus {
    /// Whether it still runs; then the counts are not known yet.
    pub is_running: bool,
    /// Published again.
    pub sent: u64,
    /// Removed, because the effect has happened.
    pub skipped: u64,
    /// Left in the dead-letter queue: they name no source, or were redriven too often.
    pub left: u64,
    /// Why it ended early.
    pub error: Option<String>,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let workers = match &admin.workers {
        Some(workers) => workers.list().await,
        None => Vec::new(),
    };
    Json(json!({ "workers": workers }))
}

/// Query parameters of the dead letters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LettersQuery {
    limit: Option<u32>,
}

pub(super) async fn dead_letters(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    wanted: Result<Query<LettersQuery>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let Query(wanted) =
        wanted.map_err(|rejection| Refusal::bad(rejection.body_text(), "?limit=NUMBER"))?;
    let limit = check_count("limit", wanted.limit)?;
    let (letters, are_all) = letters_of(&admin, &name, limit).await?;
    Ok(Json(json!({ "dead_letters": letters, "are_all": are_all })))
}

/// The dead letters of a worker, and whether these are all.
pub(crate) async fn letters_of(
    admin: &Admin,
    name: &str,
    limit: u32,
) -> Result<(Vec<DeadLetter>, bool), Refusal> {
    let workers = admin.workers.as_ref().ok_or_else(|| unknown(name))?;
    // One more than listed shows whether there are more.
    let listing = timeout(LIST_MAX, workers.dead_letters(name, limit + 1));
    let letters = listing.await.map_err(|_| too_slow())?;
    let letters = letters.ok_or_else(|| unknown(name))?;
    let mut letters = letters.map_err(refusal)?;
    let are_all = letters.len() <= limit as usize;
    letters.truncate(limit as usize);
    Ok((letters, are_all))
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
) -> Result<Response, Refusal> {
    let fix = r#"send {"reason":"why they are redriven","at_most":100}"#;
    let asked: RedriveRequest = parse(&body?, fix)?;
    let action = action(&admin, &asked.reason, asked.by.as_deref());
    let redriven = redrive_letters(&admin, &name, asked.at_most, action).await?;
    let status = match redriven.is_running {
        true => StatusCode::ACCEPTED,
        false => StatusCode::OK,
    };
    Ok((status, Json(redriven)).into_response())
}

/// Publishes dead letters of a worker again.
pub(crate) async fn redrive_letters(
    admin: &Admin,
    name: &str,
    at_most: Option<u32>,
    action: OperatorAction<'_>,
) -> Result<RedriveStatus, Refusal> {
    let at_most = check_count("at_most", at_most)?;
    let workers = admin.workers.as_ref().ok_or_else(|| unknown(name))?;
    let redriven = workers.redrive(name, at_most, action).await;
    redriven.ok_or_else(|| unknown(name))?.map_err(refusal)
}

fn check_count(name: &str, count: Option<u32>) -> Result<u32, Refusal> {
    let count = count.unwrap_or(LETTERS_DEFAULT);
    if (1..=LETTERS_MAX).contains(&count) {
        return Ok(count);
    }
    let error = format!("{name}: {count} is not between 1 and {LETTERS_MAX}");
    Err(Refusal::bad(error, "repeat the request for the rest"))
}

fn unknown(name: &str) -> Refusal {
    let error = format!("no worker `{name}` runs in this process");
    let fix = "use the admin address of `refrain work`; GET /api/workers lists its workers";
    Refusal::new(StatusCode::NOT_FOUND, error, fix)
}

fn too_slow() -> Refusal {
    let error = "the broker did not respond in time";
    let fix = "check that the broker is reachable, and retry; or list fewer with ?limit=";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, fix)
}

/// The refusal for an error of the broker or the store.
fn refusal(error: Error) -> Refusal {
    let fix = "wait until it ends; GET /api/workers shows its state";
    match error.kind() {
        ErrorKind::Held => Refusal::conflict(error.to_string(), fix),
        ErrorKind::Unavailable => {
            let fix = "check that the broker and the store are reachable, and retry";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), fix)
        }
        _ => error.into(),
    }
}
