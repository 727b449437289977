//! Claims whose answer was lost: the caller has gone, or the connection broke after the store was asked.
//!
//! Such a claim may stand in the store although nothing was ever dispatched for it. Left alone it would block its key
//! for a whole lease and then count as an unknown outcome. So each of them is kept here until the store has said what
//! became of it, however long the store stays away, and is released by its claimant.
//!
//! A claim may also arrive at the store after the question about it: it waited in a buffer on the way. So the store is
//! asked again for as long as that can happen, and before a retry in this process is told that somebody else holds the key.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{Inner, Intent, tally::Gauge};
use crate::{
    Backoff, Error, ErrorKind, Guarantee, Result,
    audit::Entry,
    key::RecordId,
    policy::Terms,
    record::{Claim, Grant, Reason, Record, Settled, Settlement, State, Verdict},
    store::{Store, StoreFuture, Table},
};

/// While the store does not answer: a key is free again soon after the store is back.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How many answers of the store settle the matter for a claim that travelled no slower than the question about it.
const ANSWERS_ENOUGH: u32 = 5;
/// How long after it was sent a claim may still arrive: TCP repeats what was not acknowledged for about 15 minutes.
const ARRIVES_WITHIN: Duration = Duration::from_mins(20);

/// The claims of this engine whose answer was lost, by record.
#[derive(Debug)]
pub(super) struct LostClaims {
    table: Table<Vec<LostClaim>>,
}

/// A claim that may stand although nothing was dispatched for it.
#[derive(Debug, Clone)]
struct LostClaim {
    claim: Claim,
    /// What the audit log calls it, where it is audited.
    audit: Option<Arc<str>>,
}

/// What became of a lost claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It stood, and its key is free now.
    Released,
    /// The record is absent or has just changed: whoever was told that it is held asks again.
    Changed,
    /// It does not stand, or does not stand in anybody's way.
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

/// One claim on its way to the store and back.
///
/// Dropped before the reply, it goes on in the background, and releases what it is granted.
pub(super) struct SentClaim {
    inner: Arc<Inner>,
    pub(super) claim: Claim,
    terms: Terms,
    audit: Option<Arc<str>>,
    /// `None` once the store has replied.
    reply: Option<StoreFuture<'static, Verdict>>,
}

impl SentClaim {
    pub(super) fn new(inner: &Arc<Inner>, claim: Claim, intent: &Intent) -> Self {
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
                        // Dropped at once, which releases it.
                        drop(inner.grant(&claim, grant, &terms, audit.as_ref(), now));
                    }
                    Err(error) if !error.is_unapplied() => inner.lose(claim, audit),
                    Ok(_) | Err(_) => {}
                }
            });
        }
    }
}

impl Inner {
    /// Whether another claim may be sent: each of them may get lost, and none of the lost ones is forgotten.
    pub(super) fn check_lost(&self) -> Result<()> {
        if self.tally.has_room_for_lost() {
            return Ok(());
        }
        let message = "the store has not said yet what became of too many claims whose answers were lost; \
                       no more are sent before it answers again";
        Err(Error::new(ErrorKind::Unavailable, message).unapplied())
    }

    /// Keeps a claim whose answer was lost until it is known not to stand, in the background.
    pub(super) fn lose(self: &Arc<Self>, claim: Claim, audit: Option<Arc<str>>) {
        let lost = LostClaim { claim, audit };
        let kept = Kept {
            _place: self.tally.lose_claim(),
            engine: Arc::downgrade(self),
            lost,
        };
        self.lost.add(&kept.lost);
        self.spawn(kept.run());
    }

    /// Whether claims of this engine on that record were lost.
    pub(super) fn has_lost(&self, id: RecordId) -> bool {
        self.lost.table.with(id, |entry| entry.get().is_some())
    }

    /// Releases the record if a lost claim of this engine holds it. Returns whether to ask the
    /// store again: also if the background released the record after the store had said that it is held.
    ///
    /// # Errors
    /// When the store does not say: then nobody may be told that the record belongs to somebody else.
    pub(super) async fn release_lost(&self, id: RecordId) -> Result<bool> {
        for lost in self.lost.table.get(id).unwrap_or_default() {
            if self.fate_of(&lost).await? != Fate::Absent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks what became of a lost claim, and releases it if it stands.
    async fn fate_of(&self, lost: &LostClaim) -> Result<Fate> {
        let id = lost.claim.id;
        let Some(found) = self.store.read(id).await? else {
            return Ok(Fate::Changed);
        };
        let Some(grant) = granted(&found.record, &lost.claim) else {
            return Ok(Fate::Absent);
        };
        let is_takeover = lost.claim.guarantee == Guarantee::AtLeastOnce && grant.attempt > 1;
        let end = match is_takeover {
            // The attempts before it may have taken effect: free, the key would run again as if it were the first time.
            true => Settlement::Doubt {
                reason: Reason::Dropped,
            },
            false => Settlement::Release,
        };
        let entry = Entry::ending(&end).of(id, Some(grant.fence));
        match self.store.settle(id, grant.fence, end).await? {
            Settled::Applied => {}
            Settled::Fenced => return Ok(Fate::Changed),
            Settled::TooEarly { .. } => return Ok(Fate::Absent),
        }
        if let Some(operation) = &lost.audit {
            let operation = Some(operation.clone());
            self.audit_note(Entry { operation, ..entry });
        }
        Ok(match is_takeover {
            true => Fate::Absent,
            false => Fate::Released,
        })
    }
}

/// A lost claim that is kept.
struct Kept {
    /// Weak, because a lost claim must not keep an engine alive.
    engine: Weak<Inner>,
    lost: LostClaim,
    _place: Gauge,
}

impl Kept {
    /// Ends when the claim can no longer stand, or with the engine.
    async fn run(mut self) {
        let arrives_until = tokio::time::Instant::now() + ARRIVES_WITHIN;
        if self.learn().await {
            self.watch(arrives_until).await;
        }
    }

    /// Asks until the store has answered often enough; whether the claim may still arrive.
    async fn learn(&self) -> bool {
        let (mut delays, mut answers) = (BACKOFF.delays(), 0);
        let mut pause = BACKOFF.first;
        while answers < ANSWERS_ENOUGH {
            sleep(pause).await;
            match self.look().await {
                Look::Over => return false,
                Look::Unanswered => pause = delays.after_failure(),
                Look::Answered => {
                    // What was held up with it arrives soon after the store is back.
                    delays.reset();
                    pause = BACKOFF.first * 2_u32.pow(answers);
                    answers += 1;
                }
            }
        }
        true
    }

    /// Goes on asking, at leisure, as long as the claim may arrive. It gives its place up: it stands in nobody's way now.
    async fn watch(&mut self, until: Instant) {
        let Some(place) = self.engine.upgrade().and_then(|it| it.tally.watch_claim()) else {
            return;
        };
        self._place = place;
        while tokio::time::Instant::now() < until {
            sleep(PAUSE_MAX).await;
            if let Look::Over = self.look().await {
                return;
            }
        }
    }

    async fn look(&self) -> Look {
        let Some(inner) = self.engine.upgrade() else {
            return Look::Over;
        };
        match inner.fate_of(&self.lost).await {
            Ok(_) => Look::Answered,
            Err(error) if error.is_retryable() => Look::Unanswered,
            // The record cannot be read, and asking again will not change that.
            Err(_) => Look::Over,
        }
    }
}

/// What a look at the store came to.
enum Look {
    Answered,
    Unanswered,
    /// Nobody asks any more.
    Over,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.lost.remove(&self.lost);
        }
    }
}

/// What this claim was granted, if the record stands under it.
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
