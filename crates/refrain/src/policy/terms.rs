//! Terms on which an operation is claimed and settled.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::units;
use crate::Guarantee;

/// Upper bound of [`Terms::waiting_max`].
pub(super) const WAITING_MAX: usize = 1_000_000;

/// Guarantee, timeouts and retention of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Terms {
    /// Delivery guarantee: how often the operation may take effect.
    pub guarantee: Guarantee,
    /// Maximum number of attempts per key, under at-least-once and exactly-once.
    pub attempts_max: u16,
    /// Maximum time that a duplicate waits for the request in flight.
    #[serde(serialize_with = "as_text")]
    pub wait: Duration,
    /// Maximum number of duplicates of one key that wait in this process; further ones are rejected at once.
    pub waiting_max: usize,
    /// Lease of a claim, renewed while the operation runs.
    #[serde(serialize_with = "as_text")]
    pub lease: Duration,
    /// Time for which an outcome is kept and replayed.
    #[serde(serialize_with = "as_text")]
    pub retention: Duration,
    /// Time after retention for which the key is rejected instead of executed again.
    #[serde(serialize_with = "as_text")]
    pub remember: Duration,
    /// Maximum time for the operation to respond.
    #[serde(serialize_with = "as_text")]
    pub timeout: Duration,
    /// Time after its dispatch or last lease renewal for which an attempt may still take effect.
    /// Default: `timeout` plus `lease`.
    #[serde(serialize_with = "as_text")]
    pub settle_after: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let lease = Duration::from_secs(30);
        let timeout = Duration::from_secs(60);
        Self {
            guarantee: Guarantee::default(),
            attempts_max: 10,
            wait: Duration::from_secs(10),
            waiting_max: 5_000,
            lease,
            retention: units::days(1),
            remember: units::days(7),
            timeout,
            settle_after: timeout + lease,
        }
    }
}

fn as_text<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&units::Span(*span))
}
