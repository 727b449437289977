//! Guards HTTP services: a [tower](https://docs.rs/tower) layer for axum, hyper and everything that speaks `http`.
//!
//! What the policy does not name streams through untouched.
//! A guarded operation runs detached from its client's connection: hanging up cancels neither it nor the recording of its outcome.
//! Its answer leaves once its outcome is durable; with `reply = "streamed"` it leaves as it comes, is recorded beside,
//! and is cut off unless its outcome could be stored.
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
//! Where a policy has a `probe`, [`RefrainLayer::with_probes`] says whom to ask.
//!
//! Handlers find the [`Fence`](crate::Fence) of their claim and its [`RecordId`](crate::RecordId) among the request's extensions,
//! to hand them to the resource that they change. Under exactly-once both also come as headers, for the receipt;
//! [`RefrainLayer::with_receipts`] says where receipts are read.

pub mod extract;

mod body;
pub use body::{Body, BodyError};

mod budget;

mod capture;

mod decision;
pub use decision::{Decision, Observer};

mod future;
pub use future::ResponseFuture;

mod late;
mod layer;
pub use layer::RefrainLayer;

mod live;

mod locate;
pub use locate::Located;

mod log_rate;

mod observe;

mod original;

mod probe;

mod problem;
pub use problem::{Code, PROBLEMS_PATH};

mod receipted;

mod refusal;
pub use refusal::Refusal;

mod reply;
pub use reply::{IDEMPOTENT_REPLAYED, Replay};

mod run;

mod service;
pub use service::{Answering, RefrainService};

mod stage;

mod streamed;

mod unknown;

mod watch;

use http::HeaderName;

use crate::record::Reason;

/// Tells the operation how often it was started: above 1 it may have taken effect before.
pub const REFRAIN_ATTEMPT: HeaderName = HeaderName::from_static("refrain-attempt");

/// Tells an exactly-once operation its record, to be written into its receipt: 32 hexadecimal digits.
/// Never taken from a client.
pub const REFRAIN_RECORD: HeaderName = HeaderName::from_static("refrain-record");

/// Tells an exactly-once operation the fence of this attempt, to be written into its receipt: such as `1.42.0000002a`.
/// Never taken from a client.
pub const REFRAIN_FENCE: HeaderName = HeaderName::from_static("refrain-fence");

/// Set by the operation on its answer to overrule the policy: `keep` or `release`. Never reaches the client.
pub const REFRAIN_OUTCOME: HeaderName = HeaderName::from_static("refrain-outcome");

/// Put among the extensions of a response by a service that forwards requests and did not get an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No byte of the request was written: the key is free again.
    NotSent,
    /// The request was sent, and what became of it is not known.
    Lost(Reason),
}
