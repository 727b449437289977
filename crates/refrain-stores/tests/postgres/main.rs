//! Tests of the PostgreSQL store on a real server: the conformance suite, and faults that only a server has.

mod bad;
mod cancelled;
mod certificates;
mod clocks;
mod crash;
mod damage;
mod inbox;
#[path = "../../../refrain/tests/support/kept.rs"]
mod kept;
mod lost;
mod lost_claims;
mod outbox;
mod pooler;
#[path = "../support/relay.rs"]
mod relay;
mod rows;
mod search;
mod server;
mod steps;
mod suite;
mod support;
mod sweep;
mod transactional;
#[cfg(feature = "sqlx")]
mod transactional_sqlx;
mod versions;
mod waiting;
