//! State that all deliveries of a running consumer share.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    Backoff, Broker, Guarantees, KeySource, Publisher, Sequence, Tally, Worker, attempts::Attempts,
};
use crate::{Engine, Scope, Terms, engine::Probe, fingerprint::Part, receipts::Witness};

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
