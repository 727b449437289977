//! What is learnt from receipts: of attempts in doubt, and whether successes left one.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::sleep;

use super::{Count, Engine, Inner, Intent};
use crate::{
    Backoff, Guarantee, Result,
    key::RecordId,
    receipts::{Sighting, Standing, Witness},
    record::{Claim, Doubt, Fence, Settled, Settlement, State},
    store::Store,
};

/// Between attempts to read receipts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// What is promised for a claim that is asked for now: exactly-once takes receipts that can be relied on.
pub(super) fn in_force(intent: &Intent) -> Guarantee {
    match (intent.terms.guarantee, &intent.receipts) {
        (Guarantee::ExactlyOnce, Some(witness)) => witness.guarantee(),
        (Guarantee::ExactlyOnce, None) => Guarantee::AtMostOnce,
        (other, _) => other,
    }
}

/// The claim that stands in for an attempt without a receipt, where that is safe.
///
/// Whoever writes receipts may run at once: should the old attempt commit late, one of the two collides.
/// Where none was ever seen, the old attempt has to be over, and is then released instead.
/// Where they go missing, a missing one says nothing.
pub(super) fn stand_in(claim: &Claim, witness: &Witness, doubt: Doubt) -> Option<Claim> {
    (witness.standing() == Standing::Proven).then(|| Claim {
        overtakes: Some(doubt.fence),
        guarantee: witness.guarantee(),
        ..claim.clone()
    })
}

impl Inner {
    /// Whether the receipts ended the doubt about a record, or somebody else has.
    ///
    /// # Errors
    /// When receipts or store do not answer: nothing is decided then.
    pub(super) async fn end_by_receipt(
        &self,
        witness: &Witness,
        (id, doubt): (RecordId, Doubt),
        intent: &Intent,
    ) -> Result<bool> {
        self.tally.count(Count::ReceiptsLooked);
        let end = match witness.look(id, None).await? {
            Sighting::Found(outcome) => {
                self.tally.count(Count::ReceiptsFound);
                self.save_standing(witness).await;
                Settlement::Complete {
                    outcome,
                    retention: intent.terms.retention,
                    remember: intent.terms.remember,
                }
            }
            Sighting::Absent | Sighting::Stale => {
                let is_over = doubt.settle_left.is_zero();
                let may_release = is_over && witness.standing() == Standing::Unproven;
                if !may_release || !self.is_receipted(id, doubt.fence).await? {
                    return Ok(false);
                }
                Settlement::NeverHappened
            }
        };
        let place = (id, doubt.fence);
        let settling = self.settle_as(place, end, intent.audit.as_ref(), "receipt");
        match settling.await? {
            Settled::Applied => self.tally.count(Count::Resolved),
            Settled::TooEarly { .. } => return Ok(false),
            Settled::Fenced => {}
        }
        Ok(true)
    }

    /// Whether a missing receipt says something about this attempt: not if it was sent while receipts went missing.
    async fn is_receipted(&self, id: RecordId, fence: Fence) -> Result<bool> {
        let found = self.store.read(id).await?;
        Ok(found.is_some_and(|reading| match reading.record.state {
            State::Indeterminate { hold, .. } => {
                hold.fence == fence && hold.guarantee == Guarantee::ExactlyOnce
            }
            _ => false,
        }))
    }
}

impl Engine {
    /// What the receipt of an attempt says that this engine runs and whose outcome it did not learn.
    ///
    /// # Errors
    /// When the receipts do not answer: nothing is known then.
    pub(crate) async fn receipt_of(
        &self,
        witness: &Witness,
        id: RecordId,
        first: Option<Fence>,
    ) -> Result<Sighting> {
        self.inner.tally.count(Count::ReceiptsLooked);
        let sighting = witness.look(id, first).await?;
        if let Sighting::Found(_) = sighting {
            self.inner.tally.count(Count::ReceiptsFound);
            self.inner.save_standing(witness).await;
        }
        Ok(sighting)
    }

    /// Has the receipt of a success looked for, in the background.
    ///
    /// Behind the reply and not before it: the outcome is known, and whether its receipt is there matters only to those
    /// that get lost later. Many are looked for in one go, so that each success costs a part of an indexed read.
    pub(crate) fn check_receipt(&self, witness: &Arc<Witness>, id: RecordId) {
        if witness.note(id) {
            let checking = check(Arc::downgrade(&self.inner), witness.clone());
            if self.inner.spawn(checking).is_none() {
                witness.stop_checking();
            }
        }
    }
}

/// Ends when all that was noted is checked, or with the engine.
async fn check(engine: Weak<Inner>, witness: Arc<Witness>) {
    let mut delays = BACKOFF.delays();
    // Should its runtime end in the middle, the next success starts anew.
    let mut checking = Checking {
        witness,
        is_over: false,
    };
    while engine.strong_count() > 0 {
        match checking.witness.check().await {
            // Somebody else may be at it by now.
            Ok(None) => {
                checking.is_over = true;
                return;
            }
            Ok(Some(missing)) => {
                delays.reset();
                if let Some(inner) = engine.upgrade() {
                    (0..missing).for_each(|_| inner.tally.count(Count::ReceiptsMissing));
                    inner.save_standing(&checking.witness).await;
                }
            }
            Err(error) => {
                let operation = checking.witness.operation();
                tracing::warn!(operation, %error, "whether successes left receipts cannot be learnt now");
                sleep(delays.after_failure()).await;
            }
        }
    }
}

/// That somebody is at it, as long as this lives.
struct Checking {
    witness: Arc<Witness>,
    is_over: bool,
}

impl Drop for Checking {
    fn drop(&mut self) {
        if !self.is_over {
            self.witness.stop_checking();
        }
    }
}
