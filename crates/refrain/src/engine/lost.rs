//! Lost claims: the reply of the store was lost, because the connection failed after the claim was sent.
//!
//! Such a claim may hold its record although nothing was ever dispatched for it. Left alone it would block its key
//! for a whole lease and then count as an unknown outcome. So each lost claim is kept here until the store has shown
//! whether it was granted, however long the store is unavailable, and is released by its claimant.
//!
//! A claim may also reach the store after a read of its record, because it waited in a buffer on the way. So the record is
//! read again for as long as that can happen, and before a retry in this process gets *in flight* or *indeterminate*.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{EngineState, Intent, tally::Gauge};
use crate::{
    Backoff, Error, ErrorKind, Guarantee, Result,
    audit::Entry,
    key::RecordId,
    policy::Terms,
    record::{Claim, Grant, Reason, Record, Settled, Settlement, State, Verdict},
    store::{Store, StoreFuture, Table},
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

/// State of a lost claim in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LostClaimFate {
    /// The claim held the record, and was released.
    Released,
    /// The record is absent or has just changed: a caller that found it held claims again.
    Changed,
    /// The claim does not hold the record, or was left to lapse.
    Absent,
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

/// A claim that was sent to the store, as a future of the reply.
///
/// If it is dropped before the reply, it continues in the background, and releases the claim if it is granted.
pub(super) struct SentClaim {
    inner: Arc<EngineState>,
    pub(super) claim: Claim,
    terms: Terms,
    audit: Option<Arc<str>>,
    /// `None` after the store has replied.
    reply: Option<StoreFuture<'static, Verdict>>,
}

impl SentClaim {
    pub(super) fn new(inner: &Arc<EngineState>, claim: Claim, intent: &Intent) -> Self {
        Self {
            reply: Some(inner.store.claim_one(&claim)),
            inner: inner.clone(),
            claim,
            terms: intent.terms,
            audit: intent.audit.clone(),
        }
    }
}

impl Future for SentClaim {
    type Output = Result<Verdict>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reply) = &mut self.reply else {
            return Poll::Pending;
        };
        let polled = Pin::new(reply).poll(context);
        if polled.is_ready() {
            self.reply = None;
        }
        polled
    }
}

impl Drop for SentClaim {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let (inner, claim) = (self.inner.clone(), self.claim.clone());
            let (terms, audit) = (self.terms, self.audit.take());
            self.inner.spawn(async move {
                match reply.await {
                    Ok(Verdict::Granted(grant)) => {
                        let now = tokio::time::Instant::now();
                        // Dropping the guard releases the claim.
                        drop(inner.grant(&claim, grant, &terms, audit.as_ref(), now));
                    }
                    Err(error) if !error.is_unapplied() => inner.track_lost(claim, audit),
                    Ok(_) | Err(_) => {}
                }
            });
        }
    }
}

impl EngineState {
    /// Checks that another claim may be sent: each claim may get lost, and all lost claims are kept.
    pub(super) fn check_lost(&self) -> Result<()> {
        if self.tally.has_room_for_lost() {
            return Ok(());
        }
        let message = "too many claims have no known result, because replies of the store were lost; \
                       no more claims are sent until the store responds";
        Err(Error::new(ErrorKind::Unavailable, message).unapplied())
    }

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
            if self.fate_of(&lost).await? != LostClaimFate::Absent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the state of a lost claim, and releases it if it holds the record.
    async fn fate_of(&self, lost: &LostClaim) -> Result<LostClaimFate> {
        let id = lost.claim.id;
        let Some(found) = self.store.read(id).await? else {
            return Ok(LostClaimFate::Changed);
        };
        let Some(grant) = granted(&found.record, &lost.claim) else {
            return Ok(LostClaimFate::Absent);
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
            Settled::Fenced => return Ok(LostClaimFate::Changed),
            Settled::TooEarly { .. } => return Ok(LostClaimFate::Absent),
        }
        if let Some(operation) = &lost.audit {
            let operation = Some(operation.clone());
            self.audit_note(Entry { operation, ..entry });
        }
        Ok(match is_takeover {
            true => LostClaimFate::Absent,
            false => LostClaimFate::Released,
        })
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
        match inner.fate_of(&self.lost).await {
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
