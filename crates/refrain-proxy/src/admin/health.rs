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
    match why_not_ready(&admin).await {
        None => Json(json!({ "ready": true })).into_response(),
        Some((reason, detail)) => {
            let body = json!({ "ready": false, "reason": reason, "detail": detail });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// The reason and its details, if new requests or messages cannot be guarded now.
pub(crate) async fn why_not_ready(admin: &Admin) -> Option<(&'static str, String)> {
    if admin.is_draining.load(Ordering::Acquire) {
        return Some(("draining", "it is shutting down".into()));
    }
    let engine = admin.layer.engine();
    if let Some(why) = engine.audit().and_then(AuditLog::trouble)
        && needs_audit(admin)
    {
        return Some(("audit", why));
    }
    // No record has this identity: the read takes the full path, returns nothing, and fails if the store lost its records.
    let store = engine.store();
    match timeout(STORE_MAX, store.read(RecordId::default())).await {
        Ok(Ok(_)) => match engine.claims_refused() {
            Some(why) => Some(("claims", why)),
            None => broker_troubles(admin).map(|why| ("broker", why)),
        },
        Ok(Err(error)) => Some(("store", error.to_string())),
        Err(_) => Some(("store", "the store did not respond within 2 s".into())),
    }
}

fn needs_audit(admin: &Admin) -> bool {
    let is_audited = |it: &Operation| it.audit && it.guarded;
    let mut workers = admin.workers.iter().flat_map(|it| it.settings());
    admin.layer.policy().operations().any(is_audited) || workers.any(|it| it.audit)
}

fn broker_troubles(admin: &Admin) -> Option<String> {
    let troubles = admin.workers.as_ref()?.troubles();
    (!troubles.is_empty()).then(|| troubles.join("; "))
}
