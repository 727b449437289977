//! Exactly-once for a service in Rust: axum and tokio-postgres.
//! Its answers get lost before and after the commit, it and the proxy are killed with -9, and the ledger has one payment per key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "kills_support/proxy.rs"]
mod kills;
mod receipts_support;
mod support;

#[test]
fn every_key_is_paid_once_whatever_gets_lost() {
    receipts_support::check(receipts_support::rust);
}
