//! Admin listener for operators: the dashboard, liveness, readiness, metrics and records.
//!
//! | route | response |
//! |---|---|
//! | `GET /` | the dashboard |
//! | `GET /livez` | 200 as long as the process runs; never accesses the store |
//! | `GET /readyz` | 200 when the store and the audit log work; 503 with a reason otherwise, and while draining |
//! | `GET /metrics` | metrics as text for Prometheus |
//! | `GET /api/records` | records by page: `?state=`, `?limit=`, `?after=` |
//! | `GET /api/records/{id}` | one record with its outcome |
//! | `POST /api/records/{id}/resolve` | resolves an unknown outcome |
//! | `DELETE /api/records/{id}` | deletes a finished record |
//! | `POST /api/find` | the record of a request |
//! | `GET /api/operations` | the guarantee promised for each operation, and the one in force |
//! | `GET /api/overview` | readiness, unknown outcomes, rates and latencies of the last hour |
//! | `GET /api/requests` | recent requests after `?after=`, at most `?limit=` |
//! | `GET /api/workers` | the message consumers of this process |
//! | `GET /api/workers/{name}/dead-letters` | dead letters of a worker, without consuming them: `?limit=` |
//! | `POST /api/workers/{name}/redrive` | publishes dead letters again |
//! | `POST /api/reload` | reads the configuration again, and puts its policy in force |
//!
//! All routes but the probes require a token, if one is set. It is optional only on a loopback address.
//! Errors of the API are JSON: `error` says what is wrong, `fix` what to do.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, FromRef},
    middleware,
    routing::{get, post},
};
use refrain::http::RefrainLayer;
use tokio::net::TcpListener;

pub(crate) mod access;
mod census;
mod durations;
pub(crate) use durations::{BucketCounts, LAST_BOUND_MICROS, quantile};
pub(crate) mod health;
mod listen;
pub use access::check_tokens;
pub use listen::serve as serve_routes;

mod metrics;
pub use metrics::Metrics;
pub(crate) use metrics::UpstreamErrors;

pub(crate) mod operations;
pub(crate) mod overview;
pub(crate) mod records;
pub(crate) mod refusal;

mod reload;
pub use reload::{
    OperationChanges, Reload, ReloadCounts, ReloadFuture, ReloadRejection, ReloadReport,
};

pub(crate) mod resolve;
mod scans;
mod scrape;
pub(crate) mod sessions;
pub(crate) mod unknown;
pub(crate) mod view;

mod worker_metrics;
pub(crate) mod workers;
pub use workers::{RedriveStatus, WorkerStatus, Workers, WorkersFuture};

use access::Access;

use crate::{
    dashboard,
    telemetry::Telemetry,
    tls::{ServerTls, keep_loaded},
};

/// Largest request body: an outcome as JSON, with room for its encoding.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 20;

/// State that the admin API serves.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The layer that guards requests: its engine has the records, and it locates the record of a request.
    pub layer: RefrainLayer,
    /// Metrics and recent requests, from the observer of the layer.
    pub telemetry: Arc<Telemetry>,
    /// Set while the proxy accepts no new work: not ready.
    pub is_draining: Arc<AtomicBool>,
    /// Token that operators send as `Authorization: Bearer`; required if the address is not loopback.
    pub token: Option<String>,
    /// Token that only allows to read.
    pub reader_token: Option<String>,
    /// Further names in `Host` that a loopback listener accepts, in lower case; they need a token.
    pub hosts: Vec<String>,
    /// The settings in force, without secrets.
    pub configuration: serde_json::Value,
    /// The message consumers of this process, if it has any.
    pub workers: Option<Arc<dyn Workers>>,
    /// TLS of the listener, if it has any.
    pub tls: Option<Arc<ServerTls>>,
    /// The longest search for one response, usually [`SEARCH_TIME`]; the next request continues it.
    pub search_time: Duration,
    /// Reads the configuration again, if the process can do so.
    pub reload: Option<Arc<dyn Reload>>,
}

/// The state that an admin listener serves, which a reload replaces. Clones share it; each request uses one state.
#[derive(Debug, Clone)]
pub struct CurrentAdmin(Arc<Mutex<Arc<Admin>>>);

impl CurrentAdmin {
    /// Starts with this state.
    #[must_use]
    pub fn new(admin: Admin) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(admin))))
    }

    /// The state in force.
    #[must_use]
    pub fn get(&self) -> Arc<Admin> {
        self.lock().clone()
    }

    /// Serves all later requests with the changed state. The tokens stay those of the start.
    pub fn change(&self, change: impl FnOnce(&mut Admin)) {
        change(Arc::make_mut(&mut self.lock()));
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Admin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Admin> for CurrentAdmin {
    fn from(admin: Admin) -> Self {
        Self::new(admin)
    }
}

impl FromRef<CurrentAdmin> for Arc<Admin> {
    fn from_ref(current: &CurrentAdmin) -> Self {
        current.get()
    }
}

/// The longest search for one response: few enough for the response to come in time if the last step is slow.
pub const SEARCH_TIME: Duration = Duration::from_secs(3);

/// Serves until `shutdown` completes, then waits a few seconds for responses in progress.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the address is not loopback or has further host names and there is no token,
/// or if the token is empty.
///
/// # Cancellation
/// Closes its connections at once when dropped.
pub async fn serve(
    listener: TcpListener,
    admin: impl Into<CurrentAdmin>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let admin = admin.into();
    let (telemetry, tls) = {
        let admin = admin.get();
        (admin.telemetry.clone(), admin.tls.clone())
    };
    let router = router(admin, listener.local_addr()?)?;
    tokio::select! {
        () = listen::serve(listener, tls.clone(), router, shutdown) => Ok(()),
        () = keep_loaded(tls) => Ok(()),
        never = telemetry.sample() => match never {},
    }
}

/// All routes, for a listener on this address.
fn router(admin: CurrentAdmin, address: SocketAddr) -> io::Result<Router> {
    let access = Arc::new(Access::new(address, &admin.get())?);
    let api = Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/api/records", get(records::list))
        .route(
            "/api/records/{id}",
            get(records::show).delete(resolve::erase),
        )
        .route("/api/records/{id}/resolve", post(resolve::resolve))
        .route("/api/scopes/erase", post(resolve::erase_scope))
        .route("/api/find", post(records::find))
        .route("/api/operations", get(operations::list))
        .route("/api/overview", get(overview::show))
        .route("/api/requests", get(overview::requests))
        .route("/api/workers", get(workers::list))
        .route(
            "/api/workers/{name}/dead-letters",
            get(workers::dead_letters),
        )
        .route("/api/workers/{name}/redrive", post(workers::redrive))
        .route("/api/reload", post(reload::reload))
        .layer(middleware::from_fn_with_state(
            access.clone(),
            access::require_token,
        ))
        .layer(middleware::from_fn_with_state(
            access.clone(),
            access::require_json,
        ));
    Ok(Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .merge(api)
        .merge(dashboard::routes(&access))
        .fallback(refusal::no_route)
        .method_not_allowed_fallback(refusal::no_method)
        .layer(middleware::from_fn_with_state(
            access,
            access::reject_cross_site,
        ))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(admin))
}
