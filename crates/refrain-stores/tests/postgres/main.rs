//! The store on a real PostgreSQL: what every store must pass, and what only a server can do to one.

mod bad;
mod cancelled;
mod certificates;
mod clocks;
mod crash;
mod damage;
mod inbox;
mod lost;
mod lost_claims;
mod outbox;
mod pooler;
#[path = "../support/relay.rs"]
mod relay;
mod rows;
mod server;
mod steps;
mod suite;
mod support;
mod sweep;
mod transactional;
#[cfg(feature = "sqlx")]
mod transactional_sqlx;
mod waiting;
