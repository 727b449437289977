//! Reads receipts: settles attempts in doubt, and checks that successes left one.

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

/// Pause between attempts to read receipts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The guarantee in force for a claim: exactly-once needs reliable receipts.
pub(super) fn in_force(intent: &Intent) -> Guarantee {
    match (intent.terms.guarantee, &intent.receipts) {
        (Guarantee::ExactlyOnce, Some(witness)) => witness.guarantee(),
        (Guarantee::ExactlyOnce, None) => Guarantee::AtMostOnce,
        (other, _) => other,
    }
}

/// The claim of another attempt that replaces an attempt without a receipt, if that is safe.
///
/// If receipts are proven, the other attempt may run at once: should the old one commit late, one of the two collides.
/// If none was ever seen, the old attempt has to be over, and is then released instead.
/// If successes had no receipt, a missing receipt says nothing.
pub(super) fn stand_in(claim: &Claim, witness: &Witness, doubt: Doubt) -> Option<Claim> {
    (witness.standing() == Standing::Proven).then(|| Claim {
        overtakes: Some(doubt.fence),
        guarantee: witness.guarantee(),
        ..claim.clone()
    })
}

impl Inner {
    /// Settles an indeterminate record by its receipt. Returns whether it is settled, by this call or otherwise.
    ///
    /// # Errors
    /// When receipts or store do not answer: then nothing is decided.
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

    /// Whether a missing receipt says something about this attempt: not if at-most-once was in force when it was sent.
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
    /// Looks for the receipt of an attempt of this engine whose outcome is unknown.
    ///
    /// # Errors
    /// When the receipts do not answer: then nothing is known.
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

    /// Checks in the background that a success left a receipt.
    ///
    /// After the reply and not before it: the outcome is known, and a missing receipt matters only for later attempts
    /// that get lost. Receipts are checked in batches, so that each success costs a fraction of an indexed read.
    pub(crate) fn check_receipt(&self, witness: &Arc<Witness>, id: RecordId) {
        if witness.note(id) {
            let checking = check(Arc::downgrade(&self.inner), witness.clone());
            if self.inner.spawn(checking).is_none() {
                witness.stop_checking();
            }
        }
    }
}

/// Runs until all noted successes are checked, or the engine is dropped.
async fn check(engine: Weak<Inner>, witness: Arc<Witness>) {
    let mut delays = BACKOFF.delays();
    // If its runtime ends in the middle, the next success starts a new check.
    let mut checking = Checking {
        witness,
        is_over: false,
    };
    while engine.strong_count() > 0 {
        match checking.witness.check().await {
            // Another check may be running by now, so `stop_checking` must not be called.
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
                tracing::warn!(operation, %error, "cannot check whether successes left receipts");
                sleep(delays.after_failure()).await;
            }
        }
    }
}

/// Marks a check as running, until it is dropped.
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
