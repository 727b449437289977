//! How an indeterminate record can be settled: by asking the system that it may have changed.

use std::{fmt::Debug, pin::Pin};

use super::Intent;
use crate::{Outcome, record::Doubt};

/// Learns what became of an indeterminate operation.
///
/// Asked when a duplicate comes, and in the background by the engine whose run ended in doubt;
/// only once the old attempt can no longer act, and never twice at the same time.
pub trait Probe: Debug + Send + Sync + 'static {
    /// Looks whether it happened. Given up after the intent's `timeout`.
    fn probe<'a>(
        &'a self,
        intent: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It took effect, and this is its outcome.
    Happened(Outcome),
    /// It did not take effect: the key is free again.
    NeverHappened,
    /// Still not known.
    Unknown,
}
