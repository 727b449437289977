//! The store on Redis against real servers: what every store must do, what only a server far away can do to it, and what it refuses.

#![cfg(feature = "redis")]

mod ahead;
mod cancelled;
mod cluster;
mod conformance;
mod crash;
mod damage;
mod ends;
mod lost;
mod lost_claims;
mod refused;
#[path = "../support/relay.rs"]
mod relay;
mod sentinel;
mod sharing;
mod steps;
mod support;
#[cfg(feature = "postgres")]
mod tiered;
mod together;
