//! Lost claims: the reply of the store was lost, because the connection failed after the claim was sent.
//!
//! Such a claim may hold its record although nothing was ever dispatched for it. Left alone it would block its key
//! for a whole lease and then count as an unknown outcome. So each lost claim is kept here until the store has shown
//! whether it was granted, however long the store is unavailable, and is released by its claimant.
//!
//! A claim may also reach the store after a read of its record, because it waited in a buffer on the way. So the record is
//! read again for as long as that can happen, and before a retry in this process gets *in flight* or *indeterminate*.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{EngineState, tally::Gauge};
use crate::{
    Backoff, Guarantee, Result,
    audit::Entry,
    key::RecordId,
    record::{Claim, Grant, Reason, Record, Settled, Settlement, State},
    store::{Store, Table},
};

/// Pause while the store does not answer; short, so that a key is released soon after the store is back.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Number of reads after which a claim without long delay on the network must have arrived.
const ANSWERS_ENOUGH: u32 = 5;
/// How long after it was sent a claim may still arrive: TCP retransmits unacknowledged data for about 15 minutes.
const ARRIVES_WITHIN: Duration = Duration::from_mins(20);

/// The lost claims of this engine, by record.
#[derive(Debug)]
pub(super) struct LostClaims {
    table: Table<Vec<LostClaim>>,
}

/// A claim that the store may have granted although nothing was dispatched for it.
#[derive(Debug, Clone)]
struct LostClaim {
    claim: Claim,
    /// The operation's name in the audit log, if it is audited.
    audit: Option<Arc<str>>,
}

impl LostClaims {
    pub(super) fn new() -> Self {
        Self {
            table: Table::small(),
        }
    }

    fn add(&self, lost: &LostClaim) {
        self.table.with(lost.claim.id, |entry| {
            let mut claims = entry.take().unwrap_or_default();
            claims.push(lost.clone());
            entry.put(claims);
        });
    }

    fn remove(&self, lost: &LostClaim) {
        self.table.with(lost.claim.id, |entry| {
            let mut claims = entry.take().unwrap_or_default();
            claims.retain(|other| other.claim.claimant != lost.claim.claimant);
            if !claims.is_empty() {
                entry.put(claims);
            }
        });
    }
}

impl EngineState {
    /// Keeps a lost claim in the background until it is known not to hold its record.
    pub(super) fn track_lost(self: &Arc<Self>, claim: Claim, audit: Option<Arc<str>>) {
        let lost = LostClaim { claim, audit };
        let kept = LostClaimTask {
            _place: self.tally.lose_claim(),
            engine: Arc::downgrade(self),
            lost,
        };
        self.lost.add(&kept.lost);
        self.spawn(kept.run());
    }

    /// Whether this engine has lost claims on that record.
    pub(super) fn has_lost(&self, id: RecordId) -> bool {
        self.lost.table.with(id, |entry| entry.get().is_some())
    }

    /// Releases the record if a lost claim of this engine holds it. Returns whether to claim again:
    /// also if a background task has released the record since the verdict.
    ///
    /// # Errors
    /// When the store does not answer: then no caller may get the verdict that another request holds the record.
    pub(super) async fn release_lost(&self, id: RecordId) -> Result<bool> {
        for lost in self.lost.table.get(id).unwrap_or_default() {
            if self.release_if_held(&lost).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Releases the record if this claim holds it. Returns whether a caller that found the record held claims again:
    /// it was released, is absent or has just changed.
    async fn release_if_held(&self, lost: &LostClaim) -> Result<bool> {
        let id = lost.claim.id;
        let Some(found) = self.store.read(id).await? else {
            return Ok(true);
        };
        let Some(grant) = granted(&found.record, &lost.claim) else {
            return Ok(false);
        };
        let is_takeover = lost.claim.guarantee == Guarantee::AtLeastOnce && grant.attempt > 1;
        let end = match is_takeover {
            // Earlier attempts may have taken effect: if the key were released, it would run as a first attempt.
            true => Settlement::Doubt {
                reason: Reason::Dropped,
            },
            false => Settlement::Release,
        };
        let entry = Entry::ending(&end).of(id, Some(grant.fence));
        match self.store.settle(id, grant.fence, end).await? {
            Settled::Applied => {}
            Settled::Fenced => return Ok(true),
            Settled::TooEarly { .. } => return Ok(false),
        }
        if let Some(operation) = &lost.audit {
            let operation = Some(operation.clone());
            self.audit_note(Entry { operation, ..entry });
        }
        // A takeover is left to lapse.
        Ok(!is_takeover)
    }
}

/// Background task that keeps one lost claim.
struct LostClaimTask {
    /// Weak, because a lost claim must not keep an engine alive.
    engine: Weak<EngineState>,
    lost: LostClaim,
    _place: Gauge,
}

impl LostClaimTask {
    /// Runs until the claim can no longer hold its record, or the engine is dropped.
    async fn run(mut self) {
        let arrives_until = tokio::time::Instant::now() + ARRIVES_WITHIN;
        if self.recheck_until_answered().await {
            self.watch(arrives_until).await;
        }
    }

    /// Reads the record until the store has answered often enough. Returns whether the claim may still arrive.
    async fn recheck_until_answered(&self) -> bool {
        let (mut delays, mut answers) = (BACKOFF.delays(), 0);
        let mut pause = BACKOFF.first;
        while answers < ANSWERS_ENOUGH {
            sleep(pause).await;
            match self.recheck().await {
                RecheckResult::Over => return false,
                RecheckResult::Unanswered => pause = delays.after_failure(),
                RecheckResult::Answered => {
                    // A delayed claim arrives soon after the store is back.
                    delays.reset();
                    pause = BACKOFF.first * 2_u32.pow(answers);
                    answers += 1;
                }
            }
        }
        true
    }

    /// Reads the record at a slow pace, as long as the claim may arrive. Counts as watched, and no longer as lost.
    async fn watch(&mut self, until: Instant) {
        let Some(place) = self.engine.upgrade().and_then(|it| it.tally.watch_claim()) else {
            return;
        };
        self._place = place;
        while tokio::time::Instant::now() < until {
            sleep(PAUSE_MAX).await;
            if let RecheckResult::Over = self.recheck().await {
                return;
            }
        }
    }

    async fn recheck(&self) -> RecheckResult {
        let Some(inner) = self.engine.upgrade() else {
            return RecheckResult::Over;
        };
        match inner.release_if_held(&self.lost).await {
            Ok(_) => RecheckResult::Answered,
            Err(error) if error.is_retryable() => RecheckResult::Unanswered,
            // The record cannot be read, and a retry will not change that.
            Err(_) => RecheckResult::Over,
        }
    }
}

/// Result of one look at the store.
enum RecheckResult {
    Answered,
    Unanswered,
    /// Stop: the engine is gone, or the record cannot be read.
    Over,
}

impl Drop for LostClaimTask {
    fn drop(&mut self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.lost.remove(&self.lost);
        }
    }
}

/// The grant of this claim, if it holds the record.
fn granted(record: &Record, claim: &Claim) -> Option<Grant> {
    let hold = match &record.state {
        State::InFlight { hold, .. } => hold,
        State::Indeterminate { hold, reason } if *reason == Reason::Lapsed => hold,
        _ => return None,
    };
    (hold.claimant == claim.claimant).then_some(Grant {
        fence: hold.fence,
        attempt: hold.attempts,
    })
}
