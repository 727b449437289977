//! What is learnt from receipts: of attempts in doubt, and whether successes left one.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::sleep;

use super::{Count, Engine, Inner, Intent};
use crate::{
    Guarantee, Result,
    key::RecordId,
    receipts::{Sighting, Standing, Witness},
    record::{Claim, Doubt, Fence, Settled, Settlement},
};

/// The first pause after receipts that could not be read.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

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
/// Where none was seen since the start, what runs now may not write one, and the old attempt has to be over.
/// Where they go missing, a missing one says nothing.
pub(super) fn stand_in(claim: &Claim, witness: &Witness, doubt: Doubt) -> Option<Claim> {
    let may = match witness.standing() {
        Standing::Proven => true,
        Standing::Unproven => doubt.settle_left.is_zero(),
        Standing::Missing => false,
    };
    may.then(|| Claim {
        overtakes: Some(doubt.fence),
        guarantee: witness.guarantee(),
        ..claim.clone()
    })
}

impl Inner {
    /// Whether a receipt ended the doubt about a record, or somebody else has.
    ///
    /// # Errors
    /// When receipts or store do not answer: nothing is decided then.
    pub(super) async fn end_by_receipt(
        &self,
        witness: &Witness,
        (id, fence): (RecordId, Fence),
        intent: &Intent,
    ) -> Result<bool> {
        self.tally.count(Count::ReceiptsLooked);
        let Sighting::Found(outcome) = witness.look(id, None).await? else {
            return Ok(false);
        };
        self.tally.count(Count::ReceiptsFound);
        let end = Settlement::Complete {
            outcome,
            retention: intent.terms.retention,
            remember: intent.terms.remember,
        };
        let settling = self.settle_as((id, fence), end, intent.audit.as_ref(), "receipt");
        if settling.await? == Settled::Applied {
            self.tally.count(Count::Resolved);
        }
        Ok(true)
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
    let mut pause = PAUSE_FIRST;
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
                pause = PAUSE_FIRST;
                if let Some(inner) = engine.upgrade() {
                    (0..missing).for_each(|_| inner.tally.count(Count::ReceiptsMissing));
                }
            }
            Err(error) => {
                let operation = checking.witness.operation();
                tracing::warn!(operation, %error, "whether successes left receipts cannot be learnt now");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
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
