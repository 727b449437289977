//! The admin API as an operator uses it: probes, metrics, records; and requests that must be rejected.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed unwrap fails the test"
)]

mod access;
mod dashboard;
mod metrics;
mod records;
mod stage;
mod status;
mod workers;
