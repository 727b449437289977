//! The operators' door: whether it lives, whether it is ready, what it counts, and its records.
//!
//! | route | answers |
//! |---|---|
//! | `GET /livez` | 200 as long as the process runs; never asks the store |
//! | `GET /readyz` | 200 when the store answers and has not lost its records; 503 with a reason otherwise, and while draining |
//! | `GET /metrics` | what was counted, as text for Prometheus |
//! | `GET /api/records` | records by page: `?state=`, `?limit=`, `?after=` |
//! | `GET /api/records/{id}` | one record with its outcome |
//! | `POST /api/records/{id}/resolve` | ends the doubt about a record |
//! | `DELETE /api/records/{id}` | takes a record away |
//! | `POST /api/find` | the record of a request |
//! | `GET /api/operations` | what is promised for each operation, and what is in force |
//!
//! On a loopback address everybody on the machine may ask; anywhere else a token is required, for all but the first two.
//! Errors are JSON: `error` says what is wrong, `fix` what to do.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
};
use refrain::http::RefrainLayer;
use tokio::net::TcpListener;

mod access;
mod durations;
mod health;
mod listen;

mod metrics;
pub use metrics::Metrics;
pub(crate) use metrics::RefusedHeads;

mod operations;
mod records;
mod refusal;
mod scrape;
mod view;

use access::Access;

/// The largest body of a request: an outcome as JSON, with room for its wrapping.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// What the admin listener shows.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The layer that guards: its engine has the records, and a record is found as it would find it.
    pub layer: RefrainLayer,
    /// What was counted so far.
    pub metrics: Arc<Metrics>,
    /// Set when no new work is taken any more: not ready.
    pub is_draining: Arc<AtomicBool>,
    /// What operators show as `Authorization: Bearer`; must be set where the address is not loopback.
    pub token: Option<String>,
}

/// Serves until `shutdown`, and then lets answers end that are on their way.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where the address is not loopback and there is no token.
///
/// # Cancellation
/// Dropped, it closes its connections at once.
pub async fn serve(
    listener: TcpListener,
    admin: Admin,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = router(admin, listener.local_addr()?)?;
    listen::serve(listener, router, shutdown).await;
    Ok(())
}

/// All routes, for a listener on this address.
fn router(admin: Admin, address: SocketAddr) -> io::Result<Router> {
    let access = Arc::new(Access::new(address, admin.token.as_deref())?);
    let api = Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/api/records", get(records::list))
        .route(
            "/api/records/{id}",
            get(records::show).delete(records::erase),
        )
        .route("/api/records/{id}/resolve", post(records::resolve))
        .route("/api/find", post(records::find))
        .route("/api/operations", get(operations::list))
        .layer(middleware::from_fn_with_state(
            access.clone(),
            access::known,
        ));
    Ok(Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .merge(api)
        .fallback(refusal::no_route)
        .method_not_allowed_fallback(refusal::no_method)
        .layer(middleware::from_fn_with_state(access, access::near))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(Arc::new(admin)))
}
