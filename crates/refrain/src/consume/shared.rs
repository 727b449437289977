//! What all deliveries of a running consumer share.

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

/// Everything that the builder of a consumer sets.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) name: Arc<str>,
    pub(super) keys: Vec<KeySource>,
    pub(super) fingerprint: Vec<Part>,
    pub(super) terms: Terms,
    pub(super) backoff: Backoff,
    pub(super) sequence: Option<Sequence>,
    pub(super) probe: Option<Arc<dyn Probe>>,
    pub(super) receipts: Option<Arc<Witness>>,
    /// Where dead letters go, and who takes them there.
    pub(super) dead_letter: Option<(Arc<dyn Publisher>, String)>,
    pub(super) accepts_lossy_claims: bool,
    /// Whether every attempt goes into the engine's audit log.
    pub(super) is_audited: bool,
    pub(super) in_flight_max: usize,
    pub(super) drain: Duration,
}

/// What all deliveries share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) guarantees: Guarantees,
    pub(super) engine: Engine,
    pub(super) worker: Box<dyn Worker>,
    pub(super) scope: Scope,
    pub(super) tally: Arc<Tally>,
    pub(super) attempts: Attempts,
    /// Whether attempts are counted in records that outlive this process; the broker's count is of no interest then.
    pub(super) records_count_attempts: bool,
    pub(super) pause: Pause,
    /// Handlers that run at once.
    pub(super) running: Semaphore,
    /// True from when on nothing is started any more.
    pub(super) is_stopping: watch::Receiver<bool>,
}

impl Shared {
    /// Waits until nothing is to be started any more.
    pub(super) async fn stopping(&self) {
        let mut is_stopping = self.is_stopping.clone();
        // An error means that the consumer itself is gone, which is as good as stopping.
        let _ = is_stopping.wait_for(|is_stopping| *is_stopping).await;
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.is_stopping.borrow()
    }
}

/// How long nothing is pulled since the store does not answer.
#[derive(Debug, Default)]
pub(super) struct Pause {
    failures: AtomicU32,
    until: Mutex<Option<Instant>>,
}

impl Pause {
    /// The store answered.
    pub(super) fn end(&self) {
        if self.is_on() {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The store did not answer: nothing is pulled for a while, longer each time.
    pub(super) fn begin(&self, backoff: &Backoff) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // What fails together counts once.
        if self.is_on() && until.is_some_and(|until| until > now) {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        *until = Some(now + backoff.pause(failures));
    }

    /// Whether the last that was heard of the store is that it does not answer.
    pub(super) fn is_on(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Until when nothing is pulled.
    pub(super) fn until(&self) -> Option<Instant> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|_| self.is_on())
    }
}
