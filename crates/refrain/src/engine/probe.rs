//! Probes: settle an indeterminate record by a lookup in the system that the operation may have changed.
//!
//! A duplicate runs the probe, and so does a background task of the engine whose attempt ended in doubt, never both at the
//! same time. After a restart [resumed](super::resume) tasks run it.

use std::{
    fmt::Debug,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use super::{ClaimLoop, ClaimReply, Count, EngineState, Flight, Intent, tally::Gauge};
use crate::{
    Backoff, Guarantee, Outcome,
    key::RecordId,
    record::{Doubt, Fence, Hold, Settled, Settlement, State, Verdict},
    store::Store,
};

/// Pause between probes without a result.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// Maximum time of repeated probes; less if the retention is shorter.
const PROBED_MAX: Duration = Duration::from_hours(1);
/// Upper bound of the lifetime of a probe task, so that its end can be represented.
const TASK_MAX: Duration = Duration::from_hours(24 * 365);
/// Maximum number of concurrent background probes, so that a recovering service is not overloaded.
pub(super) const PROBES_MAX: usize = 48;
/// The same for the records of earlier processes, so that they never delay those of this process.
pub(super) const RESUMED_MAX: usize = 16;

/// Looks up the outcome of an indeterminate operation.
///
/// Called when a duplicate arrives, and in the background by the engine whose run ended in doubt;
/// only after the old attempt can no longer act, and never twice at the same time in one engine.
pub trait Probe: Debug + Send + Sync + 'static {
    /// Looks up whether the operation happened. Cancelled after the intent's `timeout`.
    fn probe<'a>(
        &'a self,
        intent: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The operation took effect, with this outcome.
    Happened(Outcome),
    /// The operation did not take effect: the key is free again.
    NeverHappened,
    /// The outcome is still unknown.
    Unknown,
}

impl ClaimLoop<'_> {
    /// Runs the probe; `None` if the record was settled or has changed: claim again.
    pub(super) async fn probe(&self, doubt: Doubt) -> Option<ClaimReply> {
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
        let Some(probing) = RecordProbe::start(&engine, self.claim.id) else {
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
                crate::log_rarely!(error, record = %self.claim.id, %error, "the probe panicked");
                unknown
            }
        }
    }
}

/// Marks a record as being probed, until it is dropped.
pub(super) struct RecordProbe {
    /// Weak, because a probe that hangs must not keep an engine alive.
    engine: Weak<EngineState>,
    id: RecordId,
}

impl RecordProbe {
    /// Returns `None` if the record is already being probed, or the engine is gone.
    pub(super) fn start(engine: &Weak<EngineState>, id: RecordId) -> Option<Self> {
        let is_first = engine.upgrade()?.flights.start_probe(id);
        let engine = engine.clone();
        // Created only for the first probe, because dropping it clears the mark.
        is_first.then(|| Self { engine, id })
    }
}

impl Drop for RecordProbe {
    fn drop(&mut self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.flights.end_probe(self.id);
        }
    }
}

/// Looks for the receipt, then runs the probe, and stores the result.
/// Returns whether the record was settled or has changed, so that a claim may be repeated.
pub(super) async fn resolve(probing: RecordProbe, intent: Intent, doubt: Doubt) -> bool {
    let id = probing.id;
    if let (Some(witness), Some(inner)) = (&intent.receipts, probing.engine.upgrade()) {
        let looking = async {
            // A resumed task may be the first to use these receipts.
            inner.know_standing(witness).await?;
            inner.end_by_receipt(witness, (id, doubt), &intent).await
        };
        match looking.await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                crate::log_rarely!(warn, record = %id, %error, "cannot read the receipt of an unknown outcome");
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
            crate::log_rarely!(warn, record = %id, %error, "cannot store the result of a probe");
            false
        }
    }
}

impl EngineState {
    /// Starts a background task that probes a flight that ended in doubt.
    pub(super) fn start_probing(self: &Arc<Self>, flight: &Flight, intent: Box<Intent>) {
        match self.tally.background_probe() {
            Some(place) => {
                let turns = self.probes.clone();
                let attempt = (flight.id, flight.fence);
                let task = ProbeTask::new(self, attempt, intent, (place, turns));
                drop(self.spawn(task.run()));
            }
            None => {
                crate::log_rarely!(warn, record = %flight.id, "too many unknown outcomes: this one is looked up only by a retry, or after others are settled");
            }
        }
    }
}

/// Background task that probes one indeterminate record.
pub(super) struct ProbeTask {
    /// Weak, because the task must not keep the engine alive.
    engine: Weak<EngineState>,
    /// Limits the number of concurrent probes.
    turns: Arc<Semaphore>,
    id: RecordId,
    /// The fence of the attempt: with another fence the record belongs to another attempt.
    fence: Fence,
    intent: Box<Intent>,
    _place: Gauge,
}

impl Drop for ProbeTask {
    fn drop(&mut self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.flights.end_background_probe(self.id, self.fence);
        }
    }
}

/// Result of one look at the record.
enum ProbeProgress {
    /// The record is settled, or belongs to another attempt.
    Over,
    /// The outcome cannot be learnt before this time has passed.
    Later(Duration),
    /// The outcome is still unknown.
    Unknown,
}

impl ProbeTask {
    /// A task for the attempt with this fence, with its place among the tasks and the limit of concurrent probes.
    pub(super) fn new(
        engine: &Arc<EngineState>,
        (id, fence): (RecordId, Fence),
        intent: Box<Intent>,
        (place, turns): (Gauge, Arc<Semaphore>),
    ) -> Self {
        engine.flights.start_background_probe(id, fence);
        Self {
            engine: Arc::downgrade(engine),
            turns,
            id,
            fence,
            intent,
            _place: place,
        }
    }

    /// Runs until the record is settled, the time is over, or the engine is dropped.
    pub(super) async fn run(self) {
        let ends = self.deadline();
        let mut probes = 0;
        loop {
            let nap = match self.check_record().await {
                ProbeProgress::Over => return,
                ProbeProgress::Later(left) => left + BACKOFF.pause(1) / 2,
                ProbeProgress::Unknown => {
                    probes += 1;
                    BACKOFF.pause(probes)
                }
            };
            if tokio::time::Instant::now() + nap >= ends {
                self.give_up();
                return;
            }
            sleep(nap).await;
        }
    }

    fn give_up(&self) {
        if let Some(inner) = self.engine.upgrade() {
            inner.flights.give_up_background_probe(self.id, self.fence);
        }
        tracing::warn!(
            record = %self.id,
            "the outcome is still unknown: from now on it is looked up only by a retry, and after a restart"
        );
    }

    fn deadline(&self) -> Instant {
        let terms = &self.intent.terms;
        let asked = terms.retention.min(PROBED_MAX);
        let waited = terms.settle_after.saturating_add(terms.lease);
        tokio::time::Instant::now() + waited.saturating_add(asked).min(TASK_MAX)
    }

    async fn check_record(&self) -> ProbeProgress {
        let Some(inner) = self.engine.upgrade() else {
            return ProbeProgress::Over;
        };
        let reading = match inner.store.read(self.id).await {
            Ok(Some(reading)) => reading,
            Err(error) if error.is_retryable() => return ProbeProgress::Unknown,
            Ok(None) | Err(_) => return ProbeProgress::Over,
        };
        drop(inner);
        match reading.record.state {
            State::Indeterminate { hold, reason } if hold.fence == self.fence => {
                let settle_left = hold.settles.left(reading.now);
                // Until then the old attempt may still act; its receipt can appear at any time.
                if !settle_left.is_zero() && self.intent.receipts.is_none() {
                    return ProbeProgress::Later(settle_left);
                }
                let fence = hold.fence;
                self.run_probe(Doubt {
                    fence,
                    reason,
                    settle_left,
                })
                .await
            }
            // The doubt could not be stored, so the lease lapses.
            State::InFlight { hold, lease_ends }
                if hold.fence == self.fence && becomes_indeterminate(&hold) =>
            {
                ProbeProgress::Later(lease_ends.left(reading.now))
            }
            _ => ProbeProgress::Over,
        }
    }

    async fn run_probe(&self, doubt: Doubt) -> ProbeProgress {
        let Ok(_turn) = self.turns.acquire().await else {
            return ProbeProgress::Over;
        };
        let Some(probing) = RecordProbe::start(&self.engine, self.id) else {
            return ProbeProgress::Unknown;
        };
        // In a task of its own, which contains a panic.
        let resolving = tokio::spawn(resolve(probing, (*self.intent).clone(), doubt));
        match resolving.await {
            Ok(true) => ProbeProgress::Over,
            Ok(false) => ProbeProgress::Unknown,
            Err(error) => {
                crate::log_rarely!(error, record = %self.id, %error, "the probe panicked");
                ProbeProgress::Unknown
            }
        }
    }
}

/// Whether the record becomes indeterminate when its lease lapses; if not, the next retry takes over.
fn becomes_indeterminate(hold: &Hold) -> bool {
    hold.guarantee != Guarantee::AtLeastOnce || hold.attempts >= hold.attempts_max
}
