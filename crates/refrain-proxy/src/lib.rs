//! Reverse proxy that makes any HTTP service idempotent, with no change to its code.
//!
//! It puts the library's own [layer](refrain::http) around a service that forwards to the upstream.
//! Each thread serves its clients with its own runtime and its own pool of upstream connections,
//! so a request never changes threads. The threads share the layer (engine, policy, memory budget) and the address of the upstream.
//!
//! Unguarded requests and their responses of any size stream through. Nothing below the layer ever sends a request twice.

pub mod admin;
pub mod handover;
pub mod telemetry;

mod clients;
mod connect;
mod current;
mod dashboard;
mod descriptors;
mod forward;
mod headers;
mod interim_scan;
mod jwks;
mod pool;
mod server;
mod stream;
mod tls;
mod tunnel;
mod upstream;
mod upstream_body;
mod wake_batch;
mod watch;

pub use current::CurrentLayer;
pub use forward::{Forward, Target};
pub use server::{Phase, Proxy, StartError, layer};
pub use tls::ServerTls;
pub use upstream_body::UpstreamBody;
