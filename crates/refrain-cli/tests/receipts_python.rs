//! Exactly-once for a service in Python (FastAPI and psycopg).
//! Responses get lost before and after the commit, and service and proxy are killed with SIGKILL: the ledger must
//! have one payment per key.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "kills_support/proxy.rs"]
mod kills;
mod receipts_support;
mod support;

#[test]
fn every_key_is_paid_once_despite_lost_responses() {
    receipts_support::check(receipts_support::python);
}
