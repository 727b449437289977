//! Claims whose answer reached nobody: the caller has gone, or the store's answer got lost on its way.
//!
//! Such a claim may stand all the same. Left alone it would block its key for a whole lease and then count as
//! indeterminate, although nothing ever ran. So it is looked after here until it is known to be released.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use super::{Inner, Intent};
use crate::{
    Error, ErrorKind, Result,
    policy::Terms,
    record::{Claim, Grant, Reason, Record, State, Verdict},
    store::{Soon, Store},
};

const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often the store is asked about a lost claim, and how often it must have answered "no such claim" to be believed:
/// a claim may arrive at the store behind the question for it.
const LOOKS_MAX: u32 = 16;
const DENIALS_ENOUGH: u32 = 5;

/// What is known of a claim that got lost.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    terms: Terms,
    audit: Option<Arc<str>>,
}

impl Lost {
    pub(super) fn of(intent: &Intent) -> Self {
        Self {
            terms: intent.terms,
            audit: intent.audit.clone(),
        }
    }

    /// Takes it up and drops it at once, which releases it.
    fn release(&self, inner: &Arc<Inner>, claim: &Claim, grant: Grant) {
        let now = tokio::time::Instant::now();
        drop(inner.grant(claim, grant, &self.terms, self.audit.as_ref(), now));
    }
}

/// One claim on its way to the store and back.
///
/// Dropped in the middle it goes on in the background, and what it is granted is released.
pub(super) struct Asked<'a> {
    inner: &'a Arc<Inner>,
    claim: &'a Claim,
    intent: &'a Intent,
    /// `None` once answered.
    answering: Option<Soon<'static, Verdict>>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(inner: &'a Arc<Inner>, claim: &'a Claim, intent: &'a Intent) -> Self {
        Self {
            inner,
            claim,
            intent,
            answering: Some(inner.store.claim_soon(claim)),
        }
    }
}

impl Future for Asked<'_> {
    type Output = Result<Verdict>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(answering) = &mut this.answering else {
            return Poll::Pending;
        };
        let polled = Pin::new(answering).poll(context);
        if polled.is_ready() {
            this.answering = None;
        }
        polled
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(answering) = self.answering.take() {
            let (inner, claim) = (self.inner.clone(), self.claim.clone());
            let lost = Lost::of(self.intent);
            self.inner.spawn(async move {
                match answering.await {
                    // Dropped at once, which releases it.
                    Ok(Verdict::Granted(grant)) => lost.release(&inner, &claim, grant),
                    Err(error) if may_be_applied(&error) => inner.look_for_lost(&claim, &lost),
                    Ok(_) | Err(_) => {}
                }
            });
        }
    }
}

/// Whether a claim may stand although this came back.
pub(super) fn may_be_applied(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

impl Inner {
    /// Looks in the background whether a claim stands whose answer got lost, and releases it if so.
    pub(super) fn look_for_lost(self: &Arc<Self>, claim: &Claim, lost: &Lost) {
        let Some(place) = self.tally.lose_claim() else {
            tracing::warn!(record = %claim.id, "too many claims got lost: if this one stands, it lapses");
            return;
        };
        let (engine, claim, lost) = (Arc::downgrade(self), claim.clone(), lost.clone());
        self.spawn(async move {
            let _place = place;
            look(engine, claim, lost).await;
        });
    }
}

/// Ends when the claim is released, denied often enough, or the engine has gone.
async fn look(engine: Weak<Inner>, claim: Claim, lost: Lost) {
    let mut pause = LOOK_FIRST;
    let mut denials = 0;
    for _ in 0..LOOKS_MAX {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
        let Some(inner) = engine.upgrade() else {
            return;
        };
        match inner.store.read(claim.id).await {
            Ok(Some(reading)) if let Some(grant) = granted(&reading.record, &claim) => {
                return lost.release(&inner, &claim, grant);
            }
            Ok(_) => denials += 1,
            Err(error) if error.is_retryable() => {}
            Err(_) => return,
        }
        if denials == DENIALS_ENOUGH {
            return;
        }
    }
    tracing::warn!(record = %claim.id, "whether a lost claim stands could not be learnt: if so, it lapses");
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
