//! Background probes: for each record that this engine left indeterminate, looks for the receipt and runs the probe
//! until the outcome is known.
//!
//! A retry runs the probe as well, but never at the same time. After a restart only retries run it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{
    Flight, Inner, Intent,
    asking::{Probing, resolve},
    tally::Gauge,
};
use crate::{
    Backoff, Guarantee,
    key::RecordId,
    record::{Doubt, Fence, Hold, State},
    store::Store,
};

/// Pause between probes without a result.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// Maximum time of repeated probes; less if the retention is shorter.
const CARE_MAX: Duration = Duration::from_hours(1);
/// Upper bound of the lifetime of a probe task, so that its end can be represented.
const CARE_EVER: Duration = Duration::from_hours(24 * 365);
/// Maximum number of concurrent background probes, so that a recovering service is not overloaded.
pub(super) const ASKED_AT_ONCE: usize = 64;

impl Inner {
    /// Starts a background task that probes a flight that ended in doubt.
    pub(super) fn care_for(self: &Arc<Self>, flight: &Flight, intent: Box<Intent>) {
        let Some(place) = self.tally.care() else {
            tracing::warn!(record = %flight.id, "too many unknown outcomes: no background probe for this one, only a retry runs the probe");
            return;
        };
        let care = ProbeTask {
            engine: Arc::downgrade(self),
            turns: self.probes.clone(),
            id: flight.id,
            fence: flight.fence,
            intent,
            _place: place,
        };
        self.spawn(care.run());
    }
}

/// Background task that probes one indeterminate record.
struct ProbeTask {
    /// Weak, because the task must not keep the engine alive.
    engine: Weak<Inner>,
    /// Limits the number of concurrent probes.
    turns: Arc<Semaphore>,
    id: RecordId,
    /// The fence of the attempt: with another fence the record belongs to another attempt.
    fence: Fence,
    intent: Box<Intent>,
    _place: Gauge,
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
    /// Runs until the record is settled, the time is over, or the engine is dropped.
    async fn run(self) {
        let ends = self.ends();
        let mut probes = 0;
        loop {
            let nap = match self.look().await {
                ProbeProgress::Over => return,
                ProbeProgress::Later(left) => left + BACKOFF.pause(1) / 2,
                ProbeProgress::Unknown => {
                    probes += 1;
                    BACKOFF.pause(probes)
                }
            };
            if tokio::time::Instant::now() + nap >= ends {
                tracing::warn!(record = %self.id, "the outcome is still unknown: background probes end, and only a retry runs the probe");
                return;
            }
            sleep(nap).await;
        }
    }

    fn ends(&self) -> Instant {
        let terms = &self.intent.terms;
        let asked = terms.retention.min(CARE_MAX);
        let waited = terms.settle_after.saturating_add(terms.lease);
        tokio::time::Instant::now() + waited.saturating_add(asked).min(CARE_EVER)
    }

    async fn look(&self) -> ProbeProgress {
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
                self.ask(Doubt {
                    fence,
                    reason,
                    settle_left,
                })
                .await
            }
            // The doubt could not be stored, so the lease lapses.
            State::InFlight { hold, lease_ends } if hold.fence == self.fence && doubts(&hold) => {
                ProbeProgress::Later(lease_ends.left(reading.now))
            }
            _ => ProbeProgress::Over,
        }
    }

    async fn ask(&self, doubt: Doubt) -> ProbeProgress {
        let Ok(_turn) = self.turns.acquire().await else {
            return ProbeProgress::Over;
        };
        let Some(probing) = Probing::start(&self.engine, self.id) else {
            return ProbeProgress::Unknown;
        };
        // In a task of its own, which contains a panic.
        let resolving = tokio::spawn(resolve(probing, (*self.intent).clone(), doubt));
        match resolving.await {
            Ok(true) => ProbeProgress::Over,
            Ok(false) => ProbeProgress::Unknown,
            Err(error) => {
                tracing::error!(record = %self.id, %error, "the probe failed");
                ProbeProgress::Unknown
            }
        }
    }
}

/// Whether the record becomes indeterminate when its lease lapses; if not, the next retry takes over.
fn doubts(hold: &Hold) -> bool {
    hold.guarantee != Guarantee::AtLeastOnce || hold.attempts >= hold.attempts_max
}
