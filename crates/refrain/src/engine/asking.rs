//! One caller who asks until there is an answer or the time to wait is over.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Count, Ended, Engine, Finding, Inner, Intent, News, Turn, lost::SentClaim, receipts};
use crate::{
    ErrorKind, Result,
    key::RecordId,
    record::{Claim, Claimant, Doubt, Fence, Reason, Settled, Settlement, State, Verdict},
    store::{Store, Watch},
};

/// The first pause before asking again about a record that another process holds.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(200);
/// The longest pause where the store tells of settlements; what it tells may get lost.
const POLL_WATCHED_MAX: Duration = Duration::from_secs(1);
/// Nobody waits longer than this, whatever the terms say: clocks cannot count for ever.
const WAIT_MAX: Duration = Duration::from_hours(24);

/// The claim that an intent makes.
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
    /// When it began to ask.
    since: Instant,
    /// Whether the answer of one in flight is wanted as it comes.
    follows: bool,
}

/// Looking again and again at a record that another process holds.
struct Polling {
    pause: Duration,
    /// Kept from one look to the next: what happens in between is not missed.
    watch: Option<Watch>,
}

/// What waiting for a record in flight came to.
enum Waited {
    Turn(Turn),
    /// Something has changed, or may have: ask again.
    AskAgain,
    TimeIsUp,
}

/// What looking for a receipt came to.
enum ByReceipt {
    /// It says nothing, or nothing more may be made of it.
    Nothing,
    /// Another attempt may run.
    Turn(Turn),
    /// The store knows more than before.
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

    /// When the time to wait is over.
    fn deadline(&self) -> Instant {
        self.since + self.intent.terms.wait.min(WAIT_MAX)
    }

    pub(super) async fn ask(&self) -> Result<Turn> {
        self.ask_after(None).await
    }

    /// As [`ask`](Self::ask), where the store has replied to the first claim already.
    pub(super) async fn ask_after(&self, mut first: Option<Result<Verdict>>) -> Result<Turn> {
        let mut polling = Polling {
            pause: POLL_FIRST,
            watch: None,
        };
        let mut confirmed = None;
        loop {
            // The moment before the store was asked.
            let asked = match first {
                Some(_) => self.since,
                None => tokio::time::Instant::now(),
            };
            let verdict = match first.take() {
                Some(reply) => self.repeat_if_lost(reply).await?,
                None => self.ask_store().await?,
            };
            // Held for nobody: the answer to a claim of this engine was lost.
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
                        Waited::Turn(turn) => return Ok(turn),
                        Waited::AskAgain => {}
                        Waited::TimeIsUp => {
                            return Ok(Turn::Verdict(Verdict::InFlight { lease_left }));
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
                            ByReceipt::Turn(turn) => Ok(Some(turn)),
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
                        None => Ok(Turn::Verdict(Verdict::Mismatch)),
                    };
                }
            }
        }
    }

    /// Whether the record has left the attempt with this fence since the store replied.
    ///
    /// A lapsed claim may be a lost one, which the background releases: nothing was dispatched for it, so no
    /// caller may be told that its outcome is unknown.
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
    /// Should the record have gone meanwhile, the new one has that fingerprint, as if it were from then.
    fn as_earlier(&self) -> Option<Self> {
        let fingerprint = self.intent.earlier_fingerprint?;
        // What does not outlive the process is of this version.
        let is_kept = self.inner().store.guarantees().survives_process;
        (is_kept && self.claim.fingerprint != fingerprint).then(|| {
            let mut claim = self.claim.clone();
            claim.fingerprint = fingerprint;
            Self { claim, ..*self }
        })
    }

    /// Whether this verdict needs neither waiting nor another claim.
    pub(super) fn is_final(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::InFlight { .. } | Verdict::Indeterminate(_) => false,
            Verdict::Mismatch => self.as_earlier().is_none(),
            _ => true,
        }
    }

    pub(super) fn turn(&self, verdict: Verdict, asked: Instant) -> Turn {
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
        Turn::Verdict(verdict.map(grant))
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

    /// Asks once more if the reply may have been lost: the same claimant is granted the same claim again.
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
        // To follow is not to wait.
        if self.follows
            && let Some(live) = flight.as_ref().and_then(|flight| flight.live())
        {
            return Waited::Turn(Turn::Live(live));
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
                Ok(News::Live(live)) => Waited::Turn(Turn::Live(live)),
                Ok(News::Ended(Ended::Completed(outcome))) => {
                    Waited::Turn(Turn::Verdict(Verdict::Replay(outcome)))
                }
                Ok(News::Ended(Ended::Released(Some(answer)))) => {
                    Waited::Turn(Turn::Refused(answer))
                }
                Ok(News::Ended(Ended::Released(None) | Ended::Unknown)) => Waited::AskAgain,
            };
        }
        // Held elsewhere, or about to be known here: look again soon, and no later than the lease lapses.
        let store = &self.inner().store;
        let watch = polling.watch.take().or_else(|| store.watch(self.claim.id));
        polling.watch = watch;
        let napping = polling.nap(lease_left.max(POLL_FIRST));
        let _ = timeout_at(self.deadline(), napping).await;
        Waited::AskAgain
    }

    /// Looks for the receipt of an attempt in doubt; where there is none, tries to stand in for it.
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
            // No attempts are left, or it is not one that may be stood in for.
            Verdict::Indeterminate(_) => ByReceipt::Nothing,
            granted @ Verdict::Granted(_) => ByReceipt::Turn(standing_in.turn(granted, asked)),
            // Somebody else was faster.
            _ => ByReceipt::AskAgain,
        })
    }

    /// Asks the probe; `None` means that the store knows more than before.
    async fn resolve(&self, doubt: Doubt) -> Option<Turn> {
        let unknown = Some(Turn::Verdict(Verdict::Indeterminate(doubt)));
        if self.intent.probe.is_none() {
            return unknown;
        }
        // Before that the old attempt may still act.
        if !doubt.settle_left.is_zero() {
            return unknown;
        }
        // Two probes at once learn no more than one.
        let engine = Arc::downgrade(self.inner());
        let Some(probing) = Probing::start(&engine, self.claim.id) else {
            return unknown;
        };
        // In a task of its own: what it learns counts also if who asked has gone, and a panic ends there.
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
    /// A pause that a settlement ends, where the store tells of it.
    async fn nap(&mut self, at_most: Duration) {
        let nap = self.pause.min(at_most);
        match &mut self.watch {
            None => {
                self.pause = (self.pause * 2).min(POLL_MAX);
                sleep(nap).await;
            }
            Some(watch) => {
                // The first pause is short: what was settled before the watch began is found by it.
                self.pause = POLL_WATCHED_MAX;
                let _ = timeout(nap, watch.settled()).await;
            }
        }
    }
}

/// One of the places for duplicates that wait for a record, until it is dropped.
struct WaitingPlace<'a> {
    inner: &'a Inner,
    id: RecordId,
}

impl<'a> WaitingPlace<'a> {
    /// `None` if all places are taken.
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

/// That a probe is asking about a record, as long as this lives.
pub(super) struct Probing {
    /// Weak, because a probe that hangs must not keep an engine alive.
    engine: Weak<Inner>,
    id: RecordId,
}

impl Probing {
    /// `None` where a probe is asking already.
    pub(super) fn start(engine: &Weak<Inner>, id: RecordId) -> Option<Self> {
        let is_first = engine.upgrade()?.flights.start_probe(id);
        let engine = engine.clone();
        // Made only if it is the first: dropping it ends the probe.
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

/// Looks for the receipt, then asks the probe, and stores what either found; whether the store is worth asking again.
pub(super) async fn resolve(probing: Probing, intent: Intent, doubt: Doubt) -> bool {
    let id = probing.id;
    if let (Some(witness), Some(inner)) = (&intent.receipts, probing.engine.upgrade()) {
        match inner.end_by_receipt(witness, (id, doubt), &intent).await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(record = %id, %error, "what became of it could not be learnt from its receipt");
            }
        }
    }
    // Before that the old attempt may still act.
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
        // Somebody else was faster: what the store holds now is asked for.
        Ok(Settled::Fenced) => true,
        Ok(Settled::TooEarly { .. }) => false,
        Err(error) => {
            tracing::warn!(record = %id, %error, "what the probe learnt could not be stored");
            false
        }
    }
}
