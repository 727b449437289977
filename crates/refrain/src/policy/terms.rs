//! The terms on which an operation is claimed and settled.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::units;
use crate::Guarantee;

/// What an operation is promised, and for how long everything stands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Terms {
    /// What is promised about how often the operation takes effect.
    pub guarantee: Guarantee,
    /// How often a claim may be granted in all, under at-least-once and exactly-once.
    pub attempts_max: u16,
    /// How long a duplicate waits for the outcome of the one in flight.
    #[serde(serialize_with = "as_text")]
    pub wait: Duration,
    /// How long a claim stands unrenewed.
    #[serde(serialize_with = "as_text")]
    pub lease: Duration,
    /// How long an outcome is kept.
    #[serde(serialize_with = "as_text")]
    pub retention: Duration,
    /// How long after the end of retention the key is refused instead of run again.
    #[serde(serialize_with = "as_text")]
    pub remember: Duration,
    /// How long the operation may take to answer.
    #[serde(serialize_with = "as_text")]
    pub timeout: Duration,
    /// How long after its dispatch, or its last renewal, an attempt may still act. `timeout` and `lease` together where nothing else is said.
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
