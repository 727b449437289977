//! A duration in seconds is passed where milliseconds are expected.
//!
//! Seen in several libraries, for leases and for retention, because both are plain numbers.
//! Cost: responses are kept for a thousandth of the intended time. Tests retry at once and pass; clients
//! retry later and pay twice.

use std::time::Duration;

use crate::hole::Hole;

const RETENTION_SECONDS: u64 = 4_000;

pub(crate) struct SecondsForMilliseconds;

impl Hole for SecondsForMilliseconds {
    fn retention(&self) -> Duration {
        Duration::from_millis(RETENTION_SECONDS)
    }
}
