//! One caller's claim, repeated until it is decided or the time to wait is over.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    ClaimReply, Count, Ended, Engine, Finding, Inner, Intent, News, lost::SentClaim, receipts,
};
use crate::{
    ErrorKind, Result,
    key::RecordId,
    record::{Claim, Claimant, Doubt, Fence, Reason, Settled, Settlement, State, Verdict},
    store::{Store, Watch},
};

/// First pause between claims for a record that another process holds.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(200);
/// Maximum pause if the store sends notifications of settlements; notifications may get lost.
const POLL_WATCHED_MAX: Duration = Duration::from_secs(1);
/// Upper bound of `wait`, so that a deadline can be represented.
const WAIT_MAX: Duration = Duration::from_hours(24);

/// The claim of an intent.
pub(super) fn claim_of(engine: &Engine, intent: &Intent) -> Claim {
    let terms = &intent.terms;
    Claim {
        id: RecordId::derive(engine.secret(), &intent.scope, &intent.key),
        fingerprint: intent.fingerprint,
        credential: intent.credential,
        claimant: Claimant::random(),
        guarantee: receipts::in_force(intent),
        attempts_max: terms.attempts_max,
        overtakes: None,
        lease: terms.lease,
        settle_after: terms.settle_after,
    }
}

pub(super) struct Asking<'a> {
    engine: &'a Engine,
    intent: &'a Intent,
    claim: Claim,
    /// When the request began; `wait` counts from here.
    since: Instant,
    /// Whether the caller can follow a streamed response.
    follows: bool,
}

/// Polls a record that another process holds.
struct Polling {
    pause: Duration,
    /// Kept between polls, so that no notification is missed.
    watch: Option<Watch>,
}

/// Result of waiting for a record in flight.
enum Waited {
    Reply(ClaimReply),
    /// The record has changed, or may have: claim again.
    AskAgain,
    TimeIsUp,
}

/// Result of looking for a receipt.
enum ByReceipt {
    /// The doubt remains, and no other attempt may run.
    Nothing,
    /// Another attempt may run.
    Reply(ClaimReply),
    /// The record was settled or has changed: claim again.
    AskAgain,
}

impl<'a> Asking<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        intent: &'a Intent,
        follows: bool,
        since: Instant,
    ) -> Self {
        Self::with_claim(engine, intent, follows, since, claim_of(engine, intent))
    }

    pub(super) fn with_claim(
        engine: &'a Engine,
        intent: &'a Intent,
        follows: bool,
        since: Instant,
        claim: Claim,
    ) -> Self {
        Self {
            engine,
            intent,
            claim,
            since,
            follows,
        }
    }

    /// End of the time to wait.
    fn deadline(&self) -> Instant {
        self.since + self.intent.terms.wait.min(WAIT_MAX)
    }

    pub(super) async fn ask(&self) -> Result<ClaimReply> {
        self.ask_after(None).await
    }

    /// As [`ask`](Self::ask), with the store's reply to a first claim that was already sent.
    pub(super) async fn ask_after(&self, mut first: Option<Result<Verdict>>) -> Result<ClaimReply> {
        let mut polling = Polling {
            pause: POLL_FIRST,
            watch: None,
        };
        let mut confirmed = None;
        loop {
            // The moment before the claim was sent.
            let asked = match first {
                Some(_) => self.since,
                None => tokio::time::Instant::now(),
            };
            let verdict = match first.take() {
                Some(reply) => self.repeat_if_lost(reply).await?,
                None => self.ask_store().await?,
            };
            // The record may be held by a lost claim of this engine.
            if matches!(
                verdict,
                Verdict::InFlight { .. } | Verdict::Indeterminate(_)
            ) && self.inner().has_lost(self.claim.id)
                && Box::pin(self.inner().release_lost(self.claim.id)).await?
            {
                continue;
            }
            match verdict {
                Verdict::InFlight { lease_left } => {
                    match Box::pin(self.wait(&mut polling, lease_left)).await {
                        Waited::Reply(turn) => return Ok(turn),
                        Waited::AskAgain => {}
                        Waited::TimeIsUp => {
                            return Ok(ClaimReply::Verdict(Verdict::InFlight { lease_left }));
                        }
                    }
                }
                Verdict::Indeterminate(doubt) => {
                    if doubt.reason == Reason::Lapsed && confirmed != Some(doubt.fence) {
                        confirmed = Some(doubt.fence);
                        if Box::pin(self.is_outdated(doubt.fence)).await? {
                            continue;
                        }
                    }
                    let turn = Box::pin(async {
                        match self.by_receipt(doubt).await? {
                            ByReceipt::Nothing => Ok(self.resolve(doubt).await),
                            ByReceipt::Reply(turn) => Ok(Some(turn)),
                            ByReceipt::AskAgain => Ok(None),
                        }
                    });
                    if let Some(turn) = turn.await? {
                        return Ok(turn);
                    }
                }
                verdict if self.is_final(&verdict) => return Ok(self.turn(verdict, asked)),
                _ => {
                    return match self.as_earlier() {
                        Some(earlier) => Box::pin(earlier.ask()).await,
                        None => Ok(ClaimReply::Verdict(Verdict::Mismatch)),
                    };
                }
            }
        }
    }

    /// Whether the record no longer belongs to the attempt with this fence.
    ///
    /// A lapsed claim may be a lost one, which a background task releases: nothing was dispatched for it, so no
    /// caller may get the verdict indeterminate.
    async fn is_outdated(&self, fence: Fence) -> Result<bool> {
        let found = self.inner().store.read(self.claim.id).await?;
        let is_open = |it: &State| {
            let (State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) = it else {
                return false;
            };
            hold.fence == fence
        };
        Ok(!found.is_some_and(|it| is_open(&it.record.state)))
    }

    /// The same claim with the fingerprint of earlier versions, which the record may have.
    ///
    /// If the record has disappeared meanwhile, the new record gets the earlier fingerprint.
    fn as_earlier(&self) -> Option<Self> {
        let fingerprint = self.intent.earlier_fingerprint?;
        // Records that do not survive the process were written by this version.
        let is_kept = self.inner().store.guarantees().survives_process;
        (is_kept && self.claim.fingerprint != fingerprint).then(|| {
            let mut claim = self.claim.clone();
            claim.fingerprint = fingerprint;
            Self { claim, ..*self }
        })
    }

    /// Whether the verdict needs neither waiting nor another claim.
    pub(super) fn is_final(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::InFlight { .. } | Verdict::Indeterminate(_) => false,
            Verdict::Mismatch => self.as_earlier().is_none(),
            _ => true,
        }
    }

    pub(super) fn turn(&self, verdict: Verdict, asked: Instant) -> ClaimReply {
        let grant = |grant| {
            let Intent { terms, audit, .. } = self.intent;
            let guard = self
                .inner()
                .grant(&self.claim, grant, terms, audit.as_ref(), asked);
            if self.intent.probe.is_some() || self.intent.receipts.is_some() {
                guard.probed_as(self.intent);
            }
            guard
        };
        ClaimReply::Verdict(verdict.map(grant))
    }

    fn inner(&self) -> &'a Arc<Inner> {
        &self.engine.inner
    }

    async fn ask_store(&self) -> Result<Verdict> {
        self.inner().check_lost()?;
        let reply = self.send().await;
        self.repeat_if_lost(reply).await
    }

    fn send(&self) -> SentClaim {
        SentClaim::new(self.inner(), self.claim.clone(), self.intent)
    }

    /// Sends the claim once more if the reply may have been lost: the same claimant is granted the same claim again.
    async fn repeat_if_lost(&self, reply: Result<Verdict>) -> Result<Verdict> {
        let first = match reply {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            reply => return reply,
        };
        let second = self.send().await;
        if let Err(error) = &second
            && !(first.is_unapplied() && error.is_unapplied())
        {
            self.inner()
                .lose(self.claim.clone(), self.intent.audit.clone());
        }
        second
    }

    async fn wait(&self, polling: &mut Polling, lease_left: Duration) -> Waited {
        let flight = self.inner().flights.find(&self.claim);
        // A caller that follows a stream does not wait.
        if self.follows
            && let Some(live) = flight.as_ref().and_then(|flight| flight.live())
        {
            return Waited::Reply(ClaimReply::Live(live));
        }
        if tokio::time::Instant::now() >= self.deadline() {
            return Waited::TimeIsUp;
        }
        let waiting_max = self.intent.terms.waiting_max;
        let Some(_place) = WaitingPlace::take(self.inner(), self.claim.id, waiting_max) else {
            self.inner().tally.count(Count::WaitRefused);
            return Waited::TimeIsUp;
        };
        let _waiting = self.inner().tally.waiting();
        if let Some(flight) = flight {
            return match timeout_at(self.deadline(), flight.news(self.follows)).await {
                Err(_) => Waited::TimeIsUp,
                Ok(News::Live(live)) => Waited::Reply(ClaimReply::Live(live)),
                Ok(News::Ended(Ended::Completed(outcome))) => {
                    Waited::Reply(ClaimReply::Verdict(Verdict::Replay(outcome)))
                }
                Ok(News::Ended(Ended::Released(Some(answer)))) => {
                    Waited::Reply(ClaimReply::Refused(answer))
                }
                Ok(News::Ended(Ended::Released(None) | Ended::Unknown)) => Waited::AskAgain,
            };
        }
        // Held by another process, or not yet registered here: poll soon, and no later than the lease lapses.
        let store = &self.inner().store;
        let watch = polling.watch.take().or_else(|| store.watch(self.claim.id));
        polling.watch = watch;
        let napping = polling.nap(lease_left.max(POLL_FIRST));
        let _ = timeout_at(self.deadline(), napping).await;
        Waited::AskAgain
    }

    /// Looks for the receipt of an indeterminate attempt; if there is none, tries to start another attempt.
    async fn by_receipt(&self, doubt: Doubt) -> Result<ByReceipt> {
        let Some(witness) = &self.intent.receipts else {
            return Ok(ByReceipt::Nothing);
        };
        let place = (self.claim.id, doubt);
        let looking = self.inner().end_by_receipt(witness, place, self.intent);
        if looking.await? {
            return Ok(ByReceipt::AskAgain);
        }
        let Some(claim) = receipts::stand_in(&self.claim, witness, doubt) else {
            return Ok(ByReceipt::Nothing);
        };
        let asked = tokio::time::Instant::now();
        let standing_in = Self { claim, ..*self };
        Ok(match standing_in.ask_store().await? {
            // No attempts are left, or the attempt may not be replaced.
            Verdict::Indeterminate(_) => ByReceipt::Nothing,
            granted @ Verdict::Granted(_) => ByReceipt::Reply(standing_in.turn(granted, asked)),
            // Another caller was faster.
            _ => ByReceipt::AskAgain,
        })
    }

    /// Runs the probe; `None` if the record was settled or has changed: claim again.
    async fn resolve(&self, doubt: Doubt) -> Option<ClaimReply> {
        let unknown = Some(ClaimReply::Verdict(Verdict::Indeterminate(doubt)));
        if self.intent.probe.is_none() {
            return unknown;
        }
        // Until then the old attempt may still act.
        if !doubt.settle_left.is_zero() {
            return unknown;
        }
        // A second probe at the same time learns nothing more.
        let engine = Arc::downgrade(self.inner());
        let Some(probing) = Probing::start(&engine, self.claim.id) else {
            return unknown;
        };
        // In a task of its own: its result is stored also if the caller has gone, and a panic stays in the task.
        let resolving = resolve(probing, self.intent.clone(), doubt);
        let Some(resolving) = self.inner().spawn(resolving) else {
            return unknown;
        };
        match resolving.await {
            Ok(true) => None,
            Ok(false) => unknown,
            Err(error) => {
                tracing::error!(record = %self.claim.id, %error, "the probe failed");
                unknown
            }
        }
    }
}

impl Polling {
    /// Pauses; a notification of a settlement ends the pause.
    async fn nap(&mut self, at_most: Duration) {
        let nap = self.pause.min(at_most);
        match &mut self.watch {
            None => {
                self.pause = (self.pause * 2).min(POLL_MAX);
                sleep(nap).await;
            }
            Some(watch) => {
                // The first pause is short, to find a settlement from before the watch began.
                self.pause = POLL_WATCHED_MAX;
                let _ = timeout(nap, watch.settled()).await;
            }
        }
    }
}

/// A slot among the duplicates that wait for a record, released on drop.
struct WaitingPlace<'a> {
    inner: &'a Inner,
    id: RecordId,
}

impl<'a> WaitingPlace<'a> {
    /// Returns `None` if all slots are taken.
    fn take(inner: &'a Inner, id: RecordId, waiting_max: usize) -> Option<Self> {
        let is_taken = inner.flights.start_waiting(id, waiting_max);
        is_taken.then_some(Self { inner, id })
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.inner.flights.end_waiting(self.id);
    }
}

/// Marks a record as being probed, until it is dropped.
pub(super) struct Probing {
    /// Weak, because a probe that hangs must not keep an engine alive.
    engine: Weak<Inner>,
    id: RecordId,
}

impl Probing {
    /// Returns `None` if the record is already being probed, or the engine is gone.
    pub(super) fn start(engine: &Weak<Inner>, id: RecordId) -> Option<Self> {
        let is_first = engine.upgrade()?.flights.start_probe(id);
        let engine = engine.clone();
        // Created only for the first probe, because dropping it clears the mark.
        is_first.then(|| Self { engine, id })
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.flights.end_probe(self.id);
        }
    }
}

/// Looks for the receipt, then runs the probe, and stores the result.
/// Returns whether the record was settled or has changed, so that a claim may be repeated.
pub(super) async fn resolve(probing: Probing, intent: Intent, doubt: Doubt) -> bool {
    let id = probing.id;
    if let (Some(witness), Some(inner)) = (&intent.receipts, probing.engine.upgrade()) {
        match inner.end_by_receipt(witness, (id, doubt), &intent).await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(record = %id, %error, "cannot look up the receipt of an unknown outcome");
            }
        }
    }
    // Until then the old attempt may still act.
    if !doubt.settle_left.is_zero() {
        return false;
    }
    let (Some(probe), Some(inner)) = (&intent.probe, probing.engine.upgrade()) else {
        return false;
    };
    inner.tally.count(Count::Probed);
    drop(inner);
    let asked = timeout(intent.terms.timeout, probe.probe(&intent, doubt)).await;
    let end = match asked.unwrap_or(Finding::Unknown) {
        Finding::Unknown => return false,
        Finding::NeverHappened => Settlement::NeverHappened,
        Finding::Happened(outcome) => Settlement::Complete {
            outcome: outcome.sealed(id),
            retention: intent.terms.retention,
            remember: intent.terms.remember,
        },
    };
    let Some(inner) = probing.engine.upgrade() else {
        return false;
    };
    let place = (id, doubt.fence);
    let settling = inner.settle_as(place, end, intent.audit.as_ref(), "probe");
    match settling.await {
        Ok(Settled::Applied) => {
            inner.tally.count(Count::Resolved);
            true
        }
        // Another settlement was faster: claim again.
        Ok(Settled::Fenced) => true,
        Ok(Settled::TooEarly { .. }) => false,
        Err(error) => {
            tracing::warn!(record = %id, %error, "cannot store the result of the probe");
            false
        }
    }
}
