//! What answers duplicates before a transaction is begun.

use std::{pin::Pin, sync::Arc};

use refrain::{
    Claim, RecordId, Verdict,
    store::{Front, Tiered},
};

use super::super::Postgres;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A front, whichever it is.
pub(super) trait Ahead: Send + Sync {
    /// Whether the message was handled for certain.
    fn is_handled<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool>;

    /// A duplicate of this one came.
    fn note(&self, id: RecordId) -> Answer<'_, ()>;
}

impl<F: Front> Ahead for Tiered<F, Arc<Postgres>> {
    fn is_handled<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool> {
        // Whatever else it knows of the key, the database tells, too.
        Box::pin(async move { matches!(self.replay(claim).await, Some(Verdict::Replay(_))) })
    }

    fn note(&self, id: RecordId) -> Answer<'_, ()> {
        Box::pin(self.replayed(id))
    }
}
