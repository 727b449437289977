//! The admin listener of `refrain work`: liveness, readiness and metrics.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use refrain::{
    AuditLog, RecordId,
    consume::Count,
    store::{AnyStore, Store as _},
};
use refrain_proxy::admin::serve_routes;
use tokio::{sync::watch, task::AbortHandle, time::timeout};

use super::Tallies;
use crate::{
    output::say,
    proxy::{Failure, listen},
};

/// Timeout of the store check in `/readyz`; shorter than that of usual probes.
const STORE_MAX: Duration = Duration::from_secs(2);

/// The running listener, which stops on drop.
pub(super) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The state that the endpoints report.
#[derive(Clone)]
pub(super) struct AdminState {
    /// The store for claims, without which no message is handled.
    pub(super) store: AnyStore,
    pub(super) tallies: Tallies,
    pub(super) stopping: watch::Receiver<bool>,
    /// The audit log, without which audited messages are not delivered.
    pub(super) audit: Option<AuditLog>,
}

pub(super) async fn serve(address: SocketAddr, told: AdminState) -> Result<Serving, Failure> {
    let listener = listen(address).await?;
    say(format!("admin http://{}", listener.local_addr()?));
    let routes = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(told);
    let task = tokio::spawn(serve_routes(listener, routes, std::future::pending()));
    Ok(Serving(task.abort_handle()))
}

async fn ready(State(told): State<AdminState>) -> (StatusCode, String) {
    if *told.stopping.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into());
    }
    match told.troubles().await {
        troubles if troubles.is_empty() => (StatusCode::OK, "ok\n".into()),
        troubles => (StatusCode::SERVICE_UNAVAILABLE, troubles),
    }
}

impl AdminState {
    /// Every condition that keeps messages from being handled, one per line.
    async fn troubles(&self) -> String {
        let mut troubles = String::new();
        if let Some(why) = self.audit.as_ref().and_then(AuditLog::trouble) {
            troubles += &format!("audit: {why}\n");
        }
        // No record has this identity: the read exercises the whole store, returns nothing, and also fails if the store lost its data.
        match timeout(STORE_MAX, self.store.read(RecordId::default())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => troubles += &format!("store: {error}\n"),
            Err(_) => troubles += "store: no answer within 2 seconds\n",
        }
        for (name, tally) in &self.tallies {
            if let Some(why) = tally.broker_trouble() {
                troubles += &format!("broker of worker {name}: {why}\n");
            }
        }
        troubles
    }
}

async fn metrics(State(told): State<AdminState>) -> Result<impl IntoResponse, StatusCode> {
    let mut registry = Registry::with_prefix("refrain");
    let messages = Family::<[(&str, String); 2], Counter>::default();
    for (name, tally) in &told.tallies {
        for count in Count::ALL {
            let labels = [("consumer", name.clone()), ("outcome", count.name().into())];
            messages.get_or_create(&labels).inc_by(tally.get(count));
        }
    }
    registry.register("messages", "Deliveries by outcome", messages);
    if let Some(log) = &told.audit {
        let is_shut = Gauge::<i64>::default();
        is_shut.set(log.trouble().is_some().into());
        let help = "1 if the audit log cannot be written";
        registry.register("audit_log_shut", help, is_shut);
    }
    let mut text = String::new();
    text::encode(&mut text, &registry).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text))
}
