//! The proxy: makes any HTTP service idempotent, with no change to its code.
//!
//! It is the library's own [layer](refrain::http) around a service that forwards.
//! Each thread serves its clients with a runtime and a pool of upstream connections of its own,
//! so that a request never changes threads and nothing is shared but the engine.
//!
//! What passes through unguarded streams both ways, whatever its size. Nothing below the layer ever sends a request twice.

pub mod admin;

mod bell;
mod clients;
mod connect;
mod descriptors;
mod faults;
mod forward;
mod headers;
mod http1;
mod outgoing;
mod pool;
mod server;
mod tunnel;
mod upstream;
mod upstream_body;
mod watch;

pub use forward::{Forward, Target};
pub use server::{Proxy, StartError};
pub use upstream_body::UpstreamBody;
