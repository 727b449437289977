//! `/api/overview` and `/api/requests`: what the proxy does now, and how it did in the last hour.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use refrain::{Store as _, store::Census};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Admin, BucketCounts, census::COUNT_MAX, health, quantile, refusal::Refusal,
    unknown::UnknownOutcomes,
};
use crate::telemetry::{RequestOutcome, Totals};

const LIMIT_DEFAULT: usize = 100;

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let trouble = health::why_not_ready(&admin).await;
    let (reason, detail) = trouble.unzip();
    let totals = admin.telemetry.metrics().totals();
    let census = census(&admin).await;
    let mut shown = json!({
        "ready": reason.is_none(),
        "reason": reason,
        "detail": detail,
        "version": env!("CARGO_PKG_VERSION"),
        "store": admin.configuration["store"],
        "started": admin.telemetry.started_at().rfc3339(),
        "uptime_seconds": admin.telemetry.started().elapsed().as_secs(),
        "requests": by_outcome(&totals),
        "waited": totals.waited,
        "waiting_now": admin.layer.engine().tally().waiting_now(),
        "left_out": admin.telemetry.recent().left_out(),
        "records": census.map(counts),
        "unknown": unknown(&admin, census).await,
        "operations": operations(&admin),
        "samples": admin.telemetry.rates().samples(),
    });
    let warnings = admin.layer.policy().warnings();
    shown["warnings"] = json!(warnings.collect::<Vec<_>>());
    Json(shown)
}

/// The number of records in each state; `None` if the store does not tell in time.
pub(crate) async fn census(admin: &Admin) -> Option<Census> {
    let cache = admin.telemetry.metrics().census();
    let store = admin.layer.engine().store();
    cache.get(store.census(), Instant::now() + COUNT_MAX).await
}

fn by_outcome(totals: &Totals) -> BTreeMap<&'static str, u64> {
    let outcomes = RequestOutcome::ALL.map(|it| (it.label(), totals.outcomes[it as usize]));
    outcomes.into()
}

/// Counts and latencies of each guarded operation since the start.
fn operations(admin: &Admin) -> Vec<Value> {
    let policy = admin.layer.policy();
    let is_guarded = |name: &str| policy.operations().any(|it| it.guarded && it.name == name);
    let totals = admin.telemetry.metrics().operation_totals();
    let describe = |(name, totals): (String, Totals)| {
        let micros = |counts, part| quantile(&BucketCounts::default(), counts, part);
        json!({
            "operation": name,
            "requests": by_outcome(&totals),
            "waited": totals.waited,
            "executed_p50_us": micros(&totals.executed, 0.5),
            "executed_p99_us": micros(&totals.executed, 0.99),
            "replayed_p99_us": micros(&totals.replayed, 0.99),
        })
    };
    let guarded = totals.into_iter().filter(|(name, _)| is_guarded(name));
    guarded.map(describe).collect()
}

/// Age and operations of the unknown outcomes; null if the store does not tell in time.
async fn unknown(admin: &Admin, census: Option<Census>) -> Value {
    match unknown_outcomes(admin, census).await {
        Some(found) => {
            json!({ "oldest_seconds": found.oldest.as_secs(), "by_operation": found.by_operation })
        }
        None => Value::Null,
    }
}

/// The unknown outcomes; `None` if the store does not tell in time.
pub(crate) async fn unknown_outcomes(
    admin: &Admin,
    census: Option<Census>,
) -> Option<Arc<UnknownOutcomes>> {
    let (store, policy) = (admin.layer.engine().store(), admin.layer.policy());
    let cache = admin.telemetry.metrics().unknown();
    let deadline = Instant::now() + COUNT_MAX;
    cache.get(store, policy, &census?, deadline).await
}

fn counts(census: Census) -> Value {
    json!({
        "in-flight": census.in_flight,
        "completed": census.completed,
        "indeterminate": census.indeterminate,
        "tombstone": census.tombstones,
        "unreadable": census.unreadable,
    })
}

/// Query parameters of the recent requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestsQuery {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

pub(super) async fn requests(
    State(admin): State<Arc<Admin>>,
    wanted: Result<Query<RequestsQuery>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let Query(wanted) = wanted.map_err(|rejection| {
        Refusal::bad(rejection.body_text(), "?after=NUMBER and ?limit=NUMBER")
    })?;
    let limit = wanted.limit.unwrap_or(LIMIT_DEFAULT);
    let requests = admin.telemetry.recent().after(wanted.after, limit);
    let next = requests.last().map_or(wanted.after, |it| it.seq);
    Ok(Json(json!({ "requests": requests, "next": next })))
}
