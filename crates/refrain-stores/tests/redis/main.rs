//! Tests of the Redis store on real servers: the conformance suite, faults of a remote server, and rejected servers.

#![cfg(feature = "redis")]

mod ahead;
mod cancelled;
mod cluster;
mod conformance;
mod crash;
mod damage;
mod ends;
#[path = "../../../refrain/tests/support/kept.rs"]
mod kept;
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
mod versions;
