//! Liveness and readiness probes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use refrain::{AuditLog, Operation, RecordId, Store as _};
use serde_json::json;
use tokio::time::timeout;

use super::Admin;

/// Longest wait for the store; a slower one is not ready, and probes give up soon after.
const STORE_MAX: Duration = Duration::from_secs(2);

/// Responds 200 as long as the process runs, even if the store is unavailable.
pub(super) async fn livez() -> Response {
    Json(json!({ "live": true })).into_response()
}

/// Responds 200 if the store responds and accepts new claims, a required audit log can be written, and new work is accepted.
/// While it does not, replays continue.
pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    if admin.is_draining.load(Ordering::Acquire) {
        return not_ready("draining", "the proxy is shutting down");
    }
    let engine = admin.layer.engine();
    let is_audited = |it: &Operation| it.audit && it.guarded;
    if let Some(why) = engine.audit().and_then(AuditLog::trouble)
        && admin.layer.policy().operations().any(is_audited)
    {
        return not_ready("audit", &why);
    }
    // No record has this identity: the read takes the full path, returns nothing, and fails if the store lost its records.
    let store = engine.store();
    match timeout(STORE_MAX, store.read(RecordId::default())).await {
        Ok(Ok(_)) => match engine.claims_refused() {
            Some(why) => not_ready("claims", &why),
            None => Json(json!({ "ready": true })).into_response(),
        },
        Ok(Err(error)) => not_ready("store", &error.to_string()),
        Err(_) => not_ready("store", "the store did not respond within 2 s"),
    }
}

fn not_ready(reason: &str, detail: &str) -> Response {
    let body = json!({ "ready": false, "reason": reason, "detail": detail });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}
