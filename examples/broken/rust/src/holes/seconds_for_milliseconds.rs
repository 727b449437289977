//! A time in seconds is handed to a clock that counts milliseconds.
//!
//! Seen in several libraries, for leases as well as for retention, because both are plain numbers.
//! Cost: answers are kept for a thousandth of the time. Tests retry at once, and pass; clients retry later, and pay.

use std::time::Duration;

use crate::hole::Hole;

const RETENTION_SECONDS: u64 = 1_000;

pub(crate) struct SecondsForMilliseconds;

impl Hole for SecondsForMilliseconds {
    fn retention(&self) -> Duration {
        Duration::from_millis(RETENTION_SECONDS)
    }
}
