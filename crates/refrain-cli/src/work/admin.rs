//! What a worker tells about itself: whether it lives, whether it works, and its counters.

use std::net::SocketAddr;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use refrain::{AuditLog, consume::Count};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use super::Tallies;
use crate::{output::say, proxy::Failure};

/// Serves until it is dropped.
pub(super) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What it tells.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) tallies: Tallies,
    pub(super) stopping: watch::Receiver<bool>,
    /// The log without which nothing that is audited is delivered.
    pub(super) audit: Option<AuditLog>,
}

pub(super) async fn serve(address: SocketAddr, told: Told) -> Result<Serving, Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = format!("{address} cannot be listened on: {error}; choose another --admin");
        Failure::Unavailable(message)
    })?;
    say(format!("admin http://{}", listener.local_addr()?));
    let routes = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(told);
    let task = tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(Serving(task.abort_handle()))
}

async fn ready(State(told): State<Told>) -> (StatusCode, String) {
    let trouble = told.audit.as_ref().and_then(AuditLog::trouble);
    match (*told.stopping.borrow(), trouble) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into()),
        (false, Some(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("audit: {why}\n")),
        (false, None) => (StatusCode::OK, "ok\n".into()),
    }
}

/// In the text format of Prometheus. Names of workers need no escaping: letters, digits, `-` and `_`.
async fn metrics(State(told): State<Told>) -> String {
    let mut text = String::from(
        "# HELP refrain_messages_total What became of the deliveries.\n# TYPE refrain_messages_total counter\n",
    );
    for (name, tally) in &told.tallies {
        for count in Count::ALL {
            let (outcome, number) = (count.name(), tally.get(count));
            text += &format!(
                "refrain_messages_total{{consumer=\"{name}\",outcome=\"{outcome}\"}} {number}\n"
            );
        }
    }
    if let Some(log) = &told.audit {
        let is_shut = u8::from(log.trouble().is_some());
        text += &format!(
            "# HELP refrain_audit_log_shut Whether the audit log cannot be written any more.\n\
             # TYPE refrain_audit_log_shut gauge\nrefrain_audit_log_shut {is_shut}\n"
        );
    }
    text
}
