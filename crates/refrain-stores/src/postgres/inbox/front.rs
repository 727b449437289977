//! Front that answers duplicates without a transaction.

use std::{pin::Pin, sync::Arc};

use refrain::{
    Claim, RecordId, Verdict,
    store::{Front, Tiered},
};

use super::super::Postgres;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Object-safe interface to a front of any type.
pub(super) trait Ahead: Send + Sync {
    /// Whether the front is certain that the message was handled.
    fn is_handled<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool>;

    /// Records that a duplicate of this message arrived.
    fn note(&self, id: RecordId) -> Answer<'_, ()>;
}

impl<F: Front> Ahead for Tiered<F, Arc<Postgres>> {
    fn is_handled<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool> {
        // For every other verdict the database is asked.
        Box::pin(async move { matches!(self.replay(claim).await, Some(Verdict::Replay(_))) })
    }

    fn note(&self, id: RecordId) -> Answer<'_, ()> {
        Box::pin(self.replayed(id))
    }
}
