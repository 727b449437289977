//! Receipts: settles attempts in doubt by them, checks that successes left one, and stores whether an operation's receipts
//! are reliable, for all processes and across restarts.
//!
//! The reliability is two facts: a receipt was seen, and a success had none. Each is an ordinary completed record under an
//! identity that no request can have, so facts need no further feature of a store.
//! If a process dies between the claim of a fact and its completion, the lease lapses, and the next process takes over.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::sleep;

use super::{ClaimLoop, ClaimReply, Count, Engine, EngineState, Intent};
use crate::{
    Backoff, Error, ErrorKind, Fingerprint, Guarantee, Key, Outcome, Result, Scope,
    key::RecordId,
    receipts::{Sighting, Standing, Witness},
    record::{Claim, Doubt, Fence, Settled, Settlement, State, Verdict},
    store::{FACT, Store},
};

/// Pause between attempts to read receipts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Retention of a fact, which outlives every record that it is about. After it, the next receipt restores the fact.
const FACT_RETENTION: Duration = Duration::from_hours(24 * 3653);
/// Lease of the claim of a fact: a process that dies before the completion blocks the fact for this long.
const FACT_LEASE: Duration = Duration::from_secs(10);

/// The claim of another attempt that replaces an attempt without a receipt, if that is safe.
///
/// If receipts are proven, the other attempt may run at once: should the old one commit late, one of the two collides.
/// If none was ever seen, the old attempt has to be over, and is then released instead.
/// If successes had no receipt, a missing receipt says nothing.
fn replacement_claim(claim: &Claim, witness: &Witness, doubt: Doubt) -> Option<Claim> {
    (witness.standing() == Standing::Proven).then(|| Claim {
        overtakes: Some(doubt.fence),
        guarantee: witness.guarantee(),
        ..claim.clone()
    })
}

impl EngineState {
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

impl ClaimLoop<'_> {
    /// Looks for the receipt of an indeterminate attempt; if there is none, tries to start another attempt,
    /// and otherwise runs the probe. Returns `None` if the record was settled or has changed: claim again.
    pub(super) async fn resolve(&self, doubt: Doubt) -> Result<Option<ClaimReply>> {
        let Some(witness) = &self.intent.receipts else {
            return Ok(self.probe(doubt).await);
        };
        let place = (self.claim.id, doubt);
        let looking = self.inner().end_by_receipt(witness, place, self.intent);
        if looking.await? {
            return Ok(None);
        }
        let Some(claim) = replacement_claim(&self.claim, witness, doubt) else {
            return Ok(self.probe(doubt).await);
        };
        let asked = tokio::time::Instant::now();
        let standing_in = self.with_claim(claim);
        match standing_in.request_verdict().await? {
            // No attempts are left, or the attempt may not be replaced.
            Verdict::Indeterminate(_) => Ok(self.probe(doubt).await),
            granted @ Verdict::Granted(_) => Ok(Some(standing_in.reply(granted, asked))),
            // Another caller was faster.
            _ => Ok(None),
        }
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
async fn check(engine: Weak<EngineState>, witness: Arc<Witness>) {
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
                crate::log_rarely!(warn, by = operation, operation, %error, "cannot check that successes left receipts; retrying");
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

/// A stored fact about an operation's receipts.
#[derive(Debug, Clone, Copy)]
enum Fact {
    /// A receipt was seen.
    Seen,
    /// A success had no receipt, and none was seen since.
    Missing,
}

impl Engine {
    /// Reads from the store whether an operation's receipts were seen before, in this process or another.
    ///
    /// The first claim does this automatically; call it to know earlier.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn learn_standing(&self, witness: &Witness) -> Result<()> {
        self.inner.sync_standing(witness).await
    }
}

impl EngineState {
    /// Reads the stored facts before the first claim. Later they are refreshed in the background.
    pub(super) async fn know_standing(self: &Arc<Self>, witness: &Arc<Witness>) -> Result<()> {
        if witness.is_unread() {
            return Box::pin(self.sync_standing(witness)).await;
        }
        self.refresh_standing(witness);
        Ok(())
    }

    /// Refreshes the facts in the background, if they are due.
    pub(super) fn refresh_standing(self: &Arc<Self>, witness: &Arc<Witness>) {
        if witness.is_due(tokio::time::Instant::now()) {
            let (inner, witness) = (self.clone(), witness.clone());
            self.spawn(async move { inner.keep_standing(&witness).await });
        }
    }

    /// Writes a fact that this process learnt, if it is not stored yet.
    pub(super) async fn save_standing(&self, witness: &Witness) {
        if witness.unsaved().is_some() {
            self.keep_standing(witness).await;
        }
    }

    async fn keep_standing(&self, witness: &Witness) {
        if let Err(error) = self.sync_standing(witness).await {
            let operation = witness.operation();
            crate::log_rarely!(warn, by = operation, operation, %error, "cannot read or write in the store whether receipts were seen; retried with the next requests");
        }
    }

    /// Writes an unsaved fact of this process, or else reads the stored ones.
    async fn sync_standing(&self, witness: &Witness) -> Result<()> {
        let operation = witness.operation();
        if let Some(standing) = witness.unsaved() {
            self.write_standing(operation, standing).await?;
            witness.saved(standing);
            return Ok(());
        }
        let standing = match self.is_fact(operation, Fact::Missing).await? {
            true => Standing::Missing,
            false if self.is_fact(operation, Fact::Seen).await? => Standing::Proven,
            false => Standing::Unproven,
        };
        witness.read(standing);
        Ok(())
    }

    async fn write_standing(&self, operation: &str, standing: Standing) -> Result<()> {
        match standing {
            Standing::Missing => self.state(operation, Fact::Missing).await,
            Standing::Proven => {
                self.state(operation, Fact::Seen).await?;
                let missing = self.fact_id(operation, Fact::Missing);
                self.store.erase(missing).await.map(drop)
            }
            Standing::Unproven => Ok(()),
        }
    }

    async fn is_fact(&self, operation: &str, fact: Fact) -> Result<bool> {
        let found = self.store.read(self.fact_id(operation, fact)).await?;
        Ok(found.is_some_and(|it| matches!(it.record.state, State::Completed { .. })))
    }

    /// Writes a fact, if it is not stored yet.
    async fn state(&self, operation: &str, fact: Fact) -> Result<()> {
        let id = self.fact_id(operation, fact);
        let claim = Claim {
            guarantee: Guarantee::AtLeastOnce,
            attempts_max: u16::MAX,
            lease: FACT_LEASE,
            settle_after: FACT_LEASE,
            ..Claim::new(id, Fingerprint(FACT))
        };
        let settled = match self.store.claim(claim).await? {
            Verdict::Replay(_) => return Ok(()),
            Verdict::Granted(grant) => {
                let end = Settlement::Complete {
                    outcome: Outcome::new(200, fact.text(operation)).sealed(id),
                    retention: FACT_RETENTION,
                    remember: Duration::ZERO,
                };
                Some(self.store.settle(id, grant.fence, end).await?)
            }
            _ => None,
        };
        match settled {
            Some(Settled::Applied) => Ok(()),
            _ => {
                let message = format!("record {id} is being written by another process");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// The identity of a fact. No request has such a scope, because no scope of a policy has parts of these names.
    fn fact_id(&self, operation: &str, fact: Fact) -> RecordId {
        let scope = Scope::none()
            .with("refrain-receipts", operation)
            .with("fact", fact.name());
        let key = Key::new("fact").unwrap_or_else(|_| unreachable!("letters are a key"));
        RecordId::derive(self.store.secret(), &scope, &key)
    }
}

impl Fact {
    fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Missing => "missing",
        }
    }

    /// Body of the fact's record, for operators who read it.
    fn text(self, operation: &str) -> String {
        match self {
            Self::Seen => format!("Refrain: a receipt of {operation} was seen"),
            Self::Missing => format!("Refrain: a success of {operation} had no receipt"),
        }
    }
}
