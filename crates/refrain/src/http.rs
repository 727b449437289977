//! Guards HTTP services: a [tower](https://docs.rs/tower) layer for axum, hyper and everything that speaks `http`.
//!
//! Requests to operations that the policy does not name stream through untouched.
//! A guarded operation runs detached from its client's connection:
//! a disconnect cancels neither it nor the recording of its outcome.
//! Its response is sent once the outcome is durable. With `reply = "streamed"` the response is sent while it is produced
//! and recorded at the same time; it is cut off if its outcome cannot be stored.
//!
//! ```
//! use axum::{Router, routing::post};
//! use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
//!
//! let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default());
//! let app: Router = Router::new()
//!     .route("/v1/payments", post(async || "charged"))
//!     .layer(layer);
//! ```
//!
//! If the policy has a `probe`, [`RefrainLayer::with_probes`] names the service that answers it.
//!
//! Handlers find the [`Fence`](crate::Fence) (fencing token) of their claim and its [`RecordId`](crate::RecordId) in the
//! request's extensions, and pass them to the resource that they change. Under exactly-once both are also sent as headers,
//! for the receipt; [`RefrainLayer::with_receipts`] configures where receipts are read.

// In the order in which a request passes them; each file begins with the states of a request that it serves.
mod layer;
pub use layer::{DecidedRequest, Decision, Observed, Observer, RefrainLayer};

mod service;
pub use service::{Located, RefrainService};

mod trace;
pub use trace::TraceContext;

mod caller;

mod request;
pub use request::ResponseFuture;

mod certificate;
pub use certificate::ClientCertificate;
mod report;

pub mod extract;

mod capture;

mod body;
pub use body::Body;

mod observe;

mod probe;

mod run;
pub use run::Refusal;

mod settle;

mod streamed;

mod live;

mod reply;
pub use reply::IDEMPOTENT_REPLAYED;

mod problem;
pub use problem::{Code, PROBLEMS_PATH};

mod pages;

mod lookup;
pub use lookup::LOOKUP_PATH;

use http::HeaderName;

use crate::record::Reason;

/// Request header with the attempt number: above 1, an earlier attempt may have taken effect.
pub const REFRAIN_ATTEMPT: HeaderName = HeaderName::from_static("refrain-attempt");

/// Header with the identity of the record, 32 hexadecimal digits: in every response to a guarded request, and in requests
/// of exactly-once operations, for their receipts. Removed from client requests.
pub const REFRAIN_RECORD: HeaderName = HeaderName::from_static("refrain-record");

/// Request header with the fence (fencing token) of this attempt of an exactly-once operation, for its receipt,
/// such as `1.42.0000002a`. Removed from client requests.
pub const REFRAIN_FENCE: HeaderName = HeaderName::from_static("refrain-fence");

/// Response header by which the operation overrides the policy: `keep` or `release`. Never sent to the client.
pub const REFRAIN_OUTCOME: HeaderName = HeaderName::from_static("refrain-outcome");

/// Error of a body that is passed through.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Response extension that a forwarding service sets if the upstream did not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No byte of the request was written: the key is free again.
    NotSent,
    /// The request was sent; its outcome is unknown.
    Lost(Reason),
}
