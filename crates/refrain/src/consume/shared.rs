//! State that all deliveries of a running consumer share, with the failed messages that this process remembers.
//!
//! Attempts are counted in the records. The memory is used only when the record has no count: with a store that does
//! not survive its process, with a worker that rolls everything back, and after a release without effect.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{Backoff, Broker, Guarantees, KeySource, Publisher, Sequence, Tally, Worker};
use crate::{Engine, RecordId, Scope, Terms, engine::Probe, fingerprint::Part, receipts::Witness};

/// Settings of a consumer.
#[derive(Debug, Clone)]
pub(super) struct ConsumerSettings {
    pub(super) name: Arc<str>,
    pub(super) keys: Vec<KeySource>,
    pub(super) fingerprint: Vec<Part>,
    pub(super) terms: Terms,
    pub(super) backoff: Backoff,
    pub(super) sequence: Option<Sequence>,
    pub(super) probe: Option<Arc<dyn Probe>>,
    pub(super) receipts: Option<Arc<Witness>>,
    /// Publisher and destination of dead letters.
    pub(super) dead_letter: Option<(Arc<dyn Publisher>, String)>,
    pub(super) accepts_lossy_claims: bool,
    /// Whether every attempt is written to the engine's audit log.
    pub(super) is_audited: bool,
    pub(super) in_flight_max: usize,
    pub(super) drain: Duration,
}

/// State shared by all deliveries.
pub(super) struct ConsumerState {
    pub(super) settings: ConsumerSettings,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) guarantees: Guarantees,
    pub(super) engine: Engine,
    pub(super) worker: Box<dyn Worker>,
    pub(super) scope: Scope,
    pub(super) tally: Arc<Tally>,
    pub(super) attempts: Attempts,
    /// Whether attempts are counted in records that survive this process. Then the broker's count is not used.
    pub(super) records_count_attempts: bool,
    pub(super) pause: StorePause,
    /// Permits for running handlers.
    pub(super) running: Semaphore,
    /// True once nothing new is started.
    pub(super) is_stopping: watch::Receiver<bool>,
}

impl ConsumerState {
    /// Waits until the consumer stops.
    pub(super) async fn stopping(&self) {
        let mut is_stopping = self.is_stopping.clone();
        // An error means that the consumer was dropped, which also means stop.
        let _ = is_stopping.wait_for(|is_stopping| *is_stopping).await;
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.is_stopping.borrow()
    }
}

/// Pause of the pull loop while the store is unavailable.
#[derive(Debug, Default)]
pub(super) struct StorePause {
    failures: AtomicU32,
    until: Mutex<Option<Instant>>,
}

impl StorePause {
    /// Ends the pause after the store answered.
    pub(super) fn end(&self) {
        if self.is_on() {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Starts or extends the pause after the store failed; each pause is longer.
    pub(super) fn begin(&self, backoff: &Backoff) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Concurrent failures count once.
        if self.is_on() && until.is_some_and(|until| until > now) {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        *until = Some(now + backoff.pause(failures));
    }

    /// Whether the last known state of the store is unavailable.
    pub(super) fn is_on(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Returns the end of the pause.
    pub(super) fn until(&self) -> Option<Instant> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|_| self.is_on())
    }
}

/// Maximum number of messages remembered in each of two generations.
const MESSAGES_MAX: usize = 10_000;

/// What this process remembers about an unfinished message.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownAttempts {
    /// Number of failures of its handler in this process.
    pub(super) failed: u32,
    /// Number of deliveries in this process that were returned without being handled.
    pub(super) spared: u32,
    /// How many of these waited for a predecessor.
    pub(super) held: u32,
    /// Text of the first failure of its handler.
    pub(super) first_failure: Option<String>,
}

impl KnownAttempts {
    /// Attempt number of a delivery. `delivered` is the broker's count, if it has one and the record has none.
    pub(super) fn attempt(&self, delivered: Option<u32>) -> u32 {
        let handed_over = delivered.unwrap_or(1).saturating_sub(self.spared);
        handed_over.max(self.failed.saturating_add(1))
    }
}

/// Messages that did not finish at the first attempt: the few that fail, not the many that succeed.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    known: Mutex<Generations>,
}

/// A full young generation becomes the old one, and the previous old one is dropped.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<RecordId, KnownAttempts>,
    old: HashMap<RecordId, KnownAttempts>,
}

impl Attempts {
    pub(super) fn get(&self, id: RecordId) -> KnownAttempts {
        let known = self.lock();
        let found = known.young.get(&id).or_else(|| known.old.get(&id));
        found.cloned().unwrap_or_default()
    }

    pub(super) fn note(&self, id: RecordId, change: impl FnOnce(&mut KnownAttempts)) {
        let mut known = self.lock();
        if known.young.len() >= MESSAGES_MAX {
            known.old = std::mem::take(&mut known.young);
        }
        let before = known.old.remove(&id);
        change(
            known
                .young
                .entry(id)
                .or_insert_with(|| before.unwrap_or_default()),
        );
    }

    pub(super) fn forget(&self, id: RecordId) {
        let mut known = self.lock();
        known.young.remove(&id);
        known.old.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
