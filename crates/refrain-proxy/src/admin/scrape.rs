//! `/metrics`: counters, and the current state.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{StatusCode, header};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{counter::ConstCounter, family::Family, gauge::Gauge},
    registry::Registry,
};
use refrain::{
    AuditLog, Engine, Store as _,
    engine::Count,
    http::RefrainLayer,
    receipts::Standing,
    store::{Census, ScopeKeyCounts},
};
use tokio::time::Instant;

use super::{Admin, census::COUNT_MAX, refusal::Refusal, unknown::UnknownOutcomes, worker_metrics};

/// What the metrics say about the records of the store; `None` if the store did not respond.
#[derive(Default)]
struct StoreState {
    census: Option<Census>,
    unknown: Option<Arc<UnknownOutcomes>>,
}

pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let state = StoreState::read(&admin).await;
    let mut current = current_metrics(&admin.layer, &state);
    if let Some(workers) = &admin.workers {
        worker_metrics::register(&mut current, &workers.list().await);
    }
    let mut out = String::new();
    let written = admin
        .telemetry
        .metrics()
        .encode(&mut out)
        .and_then(|()| text::encode_registry(&mut out, &current))
        .and_then(|()| text::encode_eof(&mut out));
    match written {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], out).into_response()
        }
        Err(_) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Refusal::new(status, "cannot encode the metrics", "report this as a bug")
                .into_response()
        }
    }
}

impl StoreState {
    async fn read(admin: &Admin) -> Self {
        let deadline = Instant::now() + COUNT_MAX;
        let (store, policy) = (admin.layer.engine().store(), admin.layer.policy());
        let metrics = admin.telemetry.metrics();
        let Some(census) = metrics.census().get(store.census(), deadline).await else {
            return Self::default();
        };
        let unknown = metrics.unknown();
        let unknown = unknown.get(store, policy, &census, deadline).await;
        Self {
            census: Some(census),
            unknown,
        }
    }
}

/// The metrics of the current state.
fn current_metrics(layer: &RefrainLayer, state: &StoreState) -> Registry {
    let engine = layer.engine();
    let mut registry = Registry::with_prefix("refrain");
    registry.register_collector(Box::new(Counted(engine.clone())));
    let tally = engine.tally();
    let gauges = [
        (
            "waiting_duplicates",
            "Duplicates that currently wait for an outcome",
            tally.waiting_now(),
        ),
        (
            "held_ends",
            "Completed requests not yet persisted, because the store did not respond",
            tally.held_now(),
        ),
        (
            "buffered_body_bytes",
            "Bytes of request bodies and captured responses currently in memory",
            layer.buffered_bytes(),
        ),
        (
            "buffered_body_bytes_max",
            "Maximum of these bytes: `buffered_bytes_max`; requests beyond it are rejected",
            layer.buffered_bytes_max(),
        ),
        (
            "lost_claims",
            "Claims whose response from the store was lost, and whose state is not known yet",
            tally.lost_now(),
        ),
        (
            "late_responses_awaited",
            "Timed-out requests whose late response is still awaited, after `settle_after`",
            tally.listening_now(),
        ),
    ];
    let help = "1 if the store accepts no new claims, such as on a full disk; replays continue";
    let is_refusing = engine.claims_refused().is_some();
    registry.register("claims_refused", help, gauge(is_refusing.into()));
    let log = engine.audit();
    let is_shut = log.is_some_and(|log| log.trouble().is_some());
    let help = "1 if the audit log cannot be written; audited requests are rejected";
    registry.register("audit_log_shut", help, gauge(is_shut.into()));
    let help = "Audit log entries made durable by this process";
    let entries = log.map_or(0, AuditLog::entries);
    registry.register("audit_entries", help, ConstCounter::new(entries));
    for (name, help, value) in gauges {
        registry.register(name, help, gauge(value as u64));
    }
    let help =
        "1 if a receipt of the exactly-once operation was seen, and its last success had one";
    registry.register("receipts_proven", help, proven_receipts(layer));
    if let Some(counts) = engine.store().scope_key_counts() {
        register_scope_keys(&mut registry, &counts);
    }
    if let Some(census) = state.census {
        let help =
            "Records by state; an outcome past retention may count as completed until it is swept";
        registry.register("records", help, records(census));
    }
    if let Some(unknown) = &state.unknown {
        register_unknown(&mut registry, unknown);
    }
    registry
}

fn register_scope_keys(registry: &mut Registry, counts: &ScopeKeyCounts) {
    let scopes = Family::<[(&str, String); 1], Gauge>::default();
    for (key, count) in &counts.scopes {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        scopes.get_or_create(&[("key", key.to_string())]).set(count);
    }
    let help = "Scopes with a data key, by the id of the key in [encryption] that encrypts it; counted at start and \
        every hour";
    registry.register("scope_keys", help, scopes);
}

fn register_unknown(registry: &mut Registry, unknown: &UnknownOutcomes) {
    let help = "Time since the oldest unresolved record with an unknown outcome was first seen, 0 without any; \
        reads 1,000 records at most, so that with more of them an older one may be missing";
    let name = "unknown_outcome_oldest_seconds";
    let oldest = Gauge::<f64, AtomicU64>::default();
    oldest.set(unknown.oldest.as_secs_f64());
    registry.register(name, help, oldest);
    let by_operation = Family::<[(&str, String); 1], Gauge>::default();
    for (operation, count) in &unknown.by_operation {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        let labels = [("operation", operation.clone())];
        by_operation.get_or_create(&labels).set(count);
    }
    let help = "Unresolved records with an unknown outcome by operation, `other` for those of other policies, \
        among the first 1,000; `refrain_records` counts all";
    registry.register("unknown_outcome_records", help, by_operation);
}

fn gauge(value: u64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn proven_receipts(layer: &RefrainLayer) -> Family<[(&'static str, String); 1], Gauge> {
    let family = Family::<[(&str, String); 1], Gauge>::default();
    for witness in layer.witnesses() {
        let is_proven = witness.standing() == Standing::Proven;
        let labels = [("operation", witness.operation().to_owned())];
        family.get_or_create(&labels).set(is_proven.into());
    }
    family
}

fn records(census: Census) -> Family<[(&'static str, &'static str); 1], Gauge> {
    let states = [
        ("in-flight", census.in_flight),
        ("completed", census.completed),
        ("indeterminate", census.indeterminate),
        ("tombstone", census.tombstones),
        ("unreadable", census.unreadable),
    ];
    let family = Family::<[(&str, &str); 1], Gauge>::default();
    for (state, count) in states {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        family.get_or_create(&[("state", state)]).set(count);
    }
    family
}

/// The engine's own counters.
#[derive(Debug)]
struct Counted(Engine);

impl Collector for Counted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for count in Count::ALL {
            let (name, help) = count.metric();
            let counter = ConstCounter::new(self.0.tally().get(count));
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
