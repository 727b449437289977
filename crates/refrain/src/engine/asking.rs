//! One caller who asks until there is an answer or the time to wait is over.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Count, Ended, Engine, Finding, Inner, Intent, Probe, Turn, lost::Asked};
use crate::{
    Result,
    key::RecordId,
    record::{Claim, Claimant, Doubt, Settled, Settlement, Verdict},
    store::Store,
};

/// The first pause before asking again about a record that another process holds.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(200);
/// Nobody waits longer than this, whatever the terms say: clocks cannot count for ever.
const WAIT_MAX: Duration = Duration::from_hours(24);

pub(super) struct Asking<'a> {
    engine: &'a Engine,
    intent: &'a Intent,
    claim: Claim,
    deadline: Instant,
}

/// What waiting for a record in flight came to.
enum Waited {
    Turn(Turn),
    /// Something has changed, or may have: ask again.
    AskAgain,
    TimeIsUp,
}

impl<'a> Asking<'a> {
    pub(super) fn new(engine: &'a Engine, intent: &'a Intent) -> Self {
        let terms = &intent.terms;
        let claim = Claim {
            id: RecordId::derive(engine.secret(), &intent.scope, &intent.key),
            fingerprint: intent.fingerprint,
            credential: intent.credential,
            claimant: Claimant::random(),
            guarantee: terms.guarantee,
            attempts_max: terms.attempts_max,
            lease: terms.lease,
            settle_after: terms.settle_after,
        };
        Self {
            engine,
            intent,
            claim,
            deadline: tokio::time::Instant::now() + terms.wait.min(WAIT_MAX),
        }
    }

    pub(super) async fn ask(&self) -> Result<Turn> {
        let mut pause = POLL_FIRST;
        loop {
            let asked = tokio::time::Instant::now();
            match self.ask_store().await? {
                Verdict::InFlight { lease_left } => {
                    match Box::pin(self.wait(&mut pause, lease_left)).await {
                        Waited::Turn(turn) => return Ok(turn),
                        Waited::AskAgain => {}
                        Waited::TimeIsUp => {
                            return Ok(Turn::Verdict(Verdict::InFlight { lease_left }));
                        }
                    }
                }
                Verdict::Indeterminate(doubt) => {
                    if let Some(turn) = Box::pin(self.resolve(doubt)).await {
                        return Ok(turn);
                    }
                }
                verdict => return Ok(self.turn(verdict, asked)),
            }
        }
    }

    /// The turn that is had without waiting, on a store that answers at once; `None` where it takes [`ask`](Self::ask).
    pub(super) fn ask_now(&self) -> Option<Result<Turn>> {
        let asked = tokio::time::Instant::now();
        let verdict = match self.inner().store.claim_now(&self.claim)? {
            Ok(verdict) => verdict,
            Err(error) => return Some(Err(error)),
        };
        match verdict {
            Verdict::InFlight { .. } | Verdict::Indeterminate(_) => None,
            verdict => Some(Ok(self.turn(verdict, asked))),
        }
    }

    fn turn(&self, verdict: Verdict, asked: Instant) -> Turn {
        let terms = &self.intent.terms;
        Turn::Verdict(verdict.map(|grant| self.inner().grant(&self.claim, grant, terms, asked)))
    }

    fn inner(&self) -> &'a Arc<Inner> {
        &self.engine.inner
    }

    /// Asks the store; once more if its answer may have got lost, since the same claimant is granted the same again.
    async fn ask_store(&self) -> Result<Verdict> {
        // Nothing is awaited: no answer can get lost.
        if let Some(answered) = self.inner().store.claim_now(&self.claim) {
            return answered;
        }
        let asked = || Asked::new(self.inner(), &self.claim, &self.intent.terms);
        match asked().await {
            Err(error) if super::lost::may_be_applied(&error) => {}
            answered => return answered,
        }
        let answered = asked().await;
        if let Err(error) = &answered
            && super::lost::may_be_applied(error)
        {
            self.inner().look_for_lost(&self.claim, &self.intent.terms);
        }
        answered
    }

    async fn wait(&self, pause: &mut Duration, lease_left: Duration) -> Waited {
        if tokio::time::Instant::now() >= self.deadline {
            return Waited::TimeIsUp;
        }
        if let Some(flight) = self.inner().flights.find(&self.claim) {
            let _waiting = self.inner().tally.waiting();
            return match timeout_at(self.deadline, flight.ended()).await {
                Err(_) => Waited::TimeIsUp,
                Ok(Ended::Completed(outcome)) => {
                    Waited::Turn(Turn::Verdict(Verdict::Replay(outcome)))
                }
                Ok(Ended::Released(Some(answer))) => Waited::Turn(Turn::Refused(answer)),
                Ok(Ended::Released(None) | Ended::Unknown) => Waited::AskAgain,
            };
        }
        // Held elsewhere, or about to be known here: look again soon, and no later than the lease lapses.
        let _waiting = self.inner().tally.waiting();
        let nap = (*pause).min(lease_left.max(POLL_FIRST));
        *pause = (*pause * 2).min(POLL_MAX);
        let _ = timeout_at(self.deadline, sleep(nap)).await;
        Waited::AskAgain
    }

    /// Asks the probe; `None` means that the store knows more than before.
    async fn resolve(&self, doubt: Doubt) -> Option<Turn> {
        let unknown = Some(Turn::Verdict(Verdict::Indeterminate(doubt)));
        let Some(probe) = self.intent.probe.clone() else {
            return unknown;
        };
        // Before that the old attempt may still act.
        if !doubt.settle_left.is_zero() {
            return unknown;
        }
        // Two probes at once learn no more than one.
        let Some(probing) = Probing::start(self.inner(), self.claim.id) else {
            return unknown;
        };
        // In a task of its own: what it learns counts also if who asked has gone, and a panic ends there.
        let resolving = resolve(probing, probe, self.intent.clone(), doubt);
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

/// That a probe is asking about a record, as long as this lives.
struct Probing {
    inner: Arc<Inner>,
    id: RecordId,
}

impl Probing {
    fn start(inner: &Arc<Inner>, id: RecordId) -> Option<Self> {
        // Made only if it is the first: dropping it ends the probe.
        let inner = inner.clone();
        inner.flights.start_probe(id).then(|| Self { inner, id })
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.inner.flights.end_probe(self.id);
    }
}

/// Asks the probe and stores what it found; whether the store is worth asking again.
async fn resolve(probing: Probing, probe: Arc<dyn Probe>, intent: Intent, doubt: Doubt) -> bool {
    let (inner, id) = (&probing.inner, probing.id);
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
    match inner.store.settle(id, doubt.fence, end).await {
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
