//! Indeterminate records that this engine left behind: their receipt is looked for and their probe is asked in the background until somebody knows.
//!
//! A retry asks the probe as well, and never at the same time. After a restart only retries ask.

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

/// Between probes that learnt nothing.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// How long a probe is asked again and again, where retention is not shorter.
const CARE_MAX: Duration = Duration::from_hours(1);
/// Nothing is cared for longer than this, whatever the terms say: clocks cannot count for ever.
const CARE_EVER: Duration = Duration::from_hours(24 * 365);
/// How many probes are asked at once in the background: whoever comes back from trouble is not stormed.
pub(super) const ASKED_AT_ONCE: usize = 64;

impl Inner {
    /// Asks the intent's probe in the background what became of a flight that ended in doubt.
    pub(super) fn care_for(self: &Arc<Self>, flight: &Flight, intent: Box<Intent>) {
        let Some(place) = self.tally.care() else {
            tracing::warn!(record = %flight.id, "too many records are indeterminate: for this one only a retry asks about it");
            return;
        };
        let care = Care {
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

/// One indeterminate record that is looked after.
struct Care {
    /// Weak, because caring must not keep an engine alive.
    engine: Weak<Inner>,
    /// Who may ask now.
    turns: Arc<Semaphore>,
    id: RecordId,
    /// Under which it was dispatched: under another one it is somebody else's.
    fence: Fence,
    intent: Box<Intent>,
    _place: Gauge,
}

/// What a look at the record came to.
enum Look {
    /// It is settled, or no longer ours to ask about.
    Over,
    /// Nothing can be learnt before that.
    Later(Duration),
    /// Nothing was learnt.
    Unknown,
}

impl Care {
    /// Ends when the record is settled by anybody, when the time for it is over, or with the engine.
    async fn run(self) {
        let ends = self.ends();
        let mut probes = 0;
        loop {
            let nap = match self.look().await {
                Look::Over => return,
                Look::Later(left) => left + BACKOFF.pause(1) / 2,
                Look::Unknown => {
                    probes += 1;
                    BACKOFF.pause(probes)
                }
            };
            if tokio::time::Instant::now() + nap >= ends {
                tracing::warn!(record = %self.id, "what became of it could not be learnt: from now on only a retry asks about it");
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

    async fn look(&self) -> Look {
        let Some(inner) = self.engine.upgrade() else {
            return Look::Over;
        };
        let reading = match inner.store.read(self.id).await {
            Ok(Some(reading)) => reading,
            Err(error) if error.is_retryable() => return Look::Unknown,
            Ok(None) | Err(_) => return Look::Over,
        };
        drop(inner);
        match reading.record.state {
            State::Indeterminate { hold, reason } if hold.fence == self.fence => {
                let settle_left = hold.settles.left(reading.now);
                // Before that the old attempt may still act; its receipt can be there at any time.
                if !settle_left.is_zero() && self.intent.receipts.is_none() {
                    return Look::Later(settle_left);
                }
                let fence = hold.fence;
                self.ask(Doubt {
                    fence,
                    reason,
                    settle_left,
                })
                .await
            }
            // Its end could not be stored, so it lapses.
            State::InFlight { hold, lease_ends } if hold.fence == self.fence && doubts(&hold) => {
                Look::Later(lease_ends.left(reading.now))
            }
            _ => Look::Over,
        }
    }

    async fn ask(&self, doubt: Doubt) -> Look {
        let Ok(_turn) = self.turns.acquire().await else {
            return Look::Over;
        };
        let Some(probing) = Probing::start(&self.engine, self.id) else {
            return Look::Unknown;
        };
        // In a task of its own: a panic ends there.
        let resolving = tokio::spawn(resolve(probing, (*self.intent).clone(), doubt));
        match resolving.await {
            Ok(true) => Look::Over,
            Ok(false) => Look::Unknown,
            Err(error) => {
                tracing::error!(record = %self.id, %error, "the probe failed");
                Look::Unknown
            }
        }
    }
}

/// Whether a lapse leaves doubt; if not, the next retry takes over.
fn doubts(hold: &Hold) -> bool {
    hold.guarantee != Guarantee::AtLeastOnce || hold.attempts >= hold.attempts_max
}
