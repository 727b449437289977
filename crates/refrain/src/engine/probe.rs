//! Probes: settle an indeterminate record by a lookup in the system that the operation may have changed.

use std::{fmt::Debug, pin::Pin};

use super::Intent;
use crate::{Outcome, record::Doubt};

/// Looks up the outcome of an indeterminate operation.
///
/// Called when a duplicate arrives, and in the background by the engine whose run ended in doubt;
/// only after the old attempt can no longer act, and never twice at the same time in one engine.
pub trait Probe: Debug + Send + Sync + 'static {
    /// Looks up whether the operation happened. Cancelled after the intent's `timeout`.
    fn probe<'a>(
        &'a self,
        intent: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The operation took effect, with this outcome.
    Happened(Outcome),
    /// The operation did not take effect: the key is free again.
    NeverHappened,
    /// The outcome is still unknown.
    Unknown,
}
