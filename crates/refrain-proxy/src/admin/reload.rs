//! `POST /api/reload`: reads the configuration again, and puts the new policy in force.

use std::{fmt::Debug, pin::Pin, sync::Arc};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use refrain::{
    clock::wall_time,
    policy::{Policy, Warning},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Admin, refusal::Refusal};

/// Future of a call to [`Reload`].
pub type ReloadFuture = Pin<Box<dyn Future<Output = Result<ReloadReport, ReloadRejection>> + Send>>;

/// Reads the configuration of a process again, for its admin listener.
pub trait Reload: Debug + Send + Sync + 'static {
    /// Reads and checks the configuration as at start-up, and puts it in force as a whole; or changes nothing.
    ///
    /// # Cancellation
    /// If the future is dropped, either nothing or everything was put in force.
    fn reload(self: Arc<Self>) -> ReloadFuture;
}

/// What a reload changed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReloadReport {
    /// How the operations changed.
    pub operations: OperationChanges,
    /// Other settings that changed and are in force now.
    pub changed: Vec<String>,
    /// Settings that changed and are not in force, because only a new process can use them.
    pub needs_restart: Vec<String>,
    /// Settings of the new policy that are valid but probably not intended.
    pub warnings: Vec<Warning>,
}

/// The names of operations that differ between two policies.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OperationChanges {
    /// Only in the new policy.
    pub added: Vec<String>,
    /// In both, with other settings.
    pub changed: Vec<String>,
    /// Only in the old policy.
    pub removed: Vec<String>,
}

impl OperationChanges {
    /// Compares two policies.
    #[must_use]
    pub fn between(old: &Policy, new: &Policy) -> Self {
        let find = |policy: &Policy, name: &str| {
            let mut operations = policy.operations();
            operations.find(|it| it.name == name).cloned()
        };
        let mut changes = Self::default();
        for operation in new.operations() {
            let list = match find(old, &operation.name) {
                None => &mut changes.added,
                Some(old) if old != *operation => &mut changes.changed,
                Some(_) => continue,
            };
            list.push(operation.name.clone());
        }
        let removed = old.operations().filter(|it| find(new, &it.name).is_none());
        changes.removed = removed.map(|it| it.name.clone()).collect();
        changes
    }
}

/// Why the old configuration stays in force.
#[derive(Debug, Clone)]
pub struct ReloadRejection {
    /// What is wrong, on one line.
    pub error: String,
    /// What to do.
    pub fix: String,
    /// Each mistake with its position, if the file is invalid.
    pub problems: Value,
    /// Whether the configuration itself is wrong, and not something that it needs.
    pub is_invalid: bool,
}

/// Counts the reloads of a process, and notes when the configuration was last loaded.
#[derive(Debug, Clone)]
pub struct ReloadCounts {
    results: Family<[(&'static str, &'static str); 1], Counter>,
    loaded: Gauge,
}

impl ReloadCounts {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let counts = Self {
            results: Family::default(),
            loaded: Gauge::default(),
        };
        let help = "Reloads of the configuration, by result: `rejected` kept the old one";
        registry.register("config_reloads", help, counts.results.clone());
        let help = "When the configuration in force was loaded, in seconds since 1970";
        let name = "config_loaded_timestamp_seconds";
        registry.register(name, help, counts.loaded.clone());
        for result in ["applied", "rejected"] {
            drop(counts.results.get_or_create(&[("result", result)]));
        }
        counts.note_loaded();
        counts
    }

    /// Counts a reload.
    pub fn count(&self, is_applied: bool) {
        let result = if is_applied { "applied" } else { "rejected" };
        self.results.get_or_create(&[("result", result)]).inc();
        if is_applied {
            self.note_loaded();
        }
    }

    fn note_loaded(&self) {
        let now = i64::try_from(wall_time().as_secs());
        self.loaded.set(now.unwrap_or(i64::MAX));
    }
}

pub(super) async fn reload(State(admin): State<Arc<Admin>>) -> Response {
    let Some(reload) = admin.reload.clone() else {
        let error = "this process does not reload its configuration";
        let fix = "restart it";
        return Refusal::new(StatusCode::NOT_IMPLEMENTED, error, fix).into_response();
    };
    // Goes on if the client disconnects, or the response takes too long.
    let reloaded = tokio::spawn(async move { reload.reload().await }).await;
    match reloaded {
        Ok(Ok(report)) => Json(report).into_response(),
        Ok(Err(rejection)) => rejected(rejection),
        Err(_) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Refusal::new(status, "the reload failed", "report this as a bug").into_response()
        }
    }
}

fn rejected(rejection: ReloadRejection) -> Response {
    let status = match rejection.is_invalid {
        true => StatusCode::UNPROCESSABLE_ENTITY,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({
        "error": rejection.error,
        "fix": rejection.fix,
        "problems": rejection.problems,
    });
    (status, Json(body)).into_response()
}
