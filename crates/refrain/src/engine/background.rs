//! One background task per engine, which renews leases, sweeps the store and keeps the resumption of probes running.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{Ended, EngineState, Flight, resume, tally::Count};
use crate::{
    record::Settled,
    store::{AnyStore, Store},
};

/// Interval at which the background task checks for due renewals and sweeps.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SWEEP_EVERY: Duration = Duration::from_secs(30);
const SWEEP_AT_MOST: u32 = 100_000;
/// Maximum number of concurrent renewals.
const RENEWALS_MAX: usize = 256;

/// The runtime of the engine's background tasks.
#[derive(Debug, Default)]
pub(super) struct BackgroundRuntime {
    /// Whether the task runs, and so its runtime is alive.
    is_kept: AtomicBool,
    /// The runtime of the current or last task.
    runtime: Mutex<Option<Handle>>,
}

impl EngineState {
    /// Starts the task on the caller's runtime, unless it already runs: with the first claim,
    /// and again after its runtime has ended.
    pub(super) fn start_background(self: &Arc<Self>) {
        if self.post.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.post.is_kept.swap(true, Ordering::Relaxed) {
            *self.post.runtime() = Some(runtime.clone());
            runtime.spawn(run_background(RunningMark(Arc::downgrade(self))));
        }
    }

    /// Runs `task` in the background; `None` if there is no runtime.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let kept = self.post.is_kept.load(Ordering::Relaxed);
        let of_task = || self.post.runtime().clone();
        let runtime = match kept {
            true => of_task(),
            false => Handle::try_current().ok().or_else(of_task),
        };
        runtime.map(|runtime| runtime.spawn(task))
    }

    /// Starts the renewals that are due. Waits only while `RENEWALS_MAX` are running.
    async fn renew_due(&self, renewals: &mut JoinSet<Option<Arc<Flight>>>, last_look: Instant) {
        let now = tokio::time::Instant::now();
        let mut after = None;
        while let Some((last, flights)) = self.flights.renewed_after(after) {
            after = Some(last);
            for flight in flights {
                if !is_due(&flight, last_look, now) {
                    continue;
                }
                if renewals.len() >= RENEWALS_MAX {
                    self.handle_renewal(renewals.join_next().await);
                }
                renewals.spawn(renew(self.store.clone(), flight));
            }
        }
    }

    fn handle_renewal(&self, renewed: Option<Result<Option<Arc<Flight>>, JoinError>>) {
        let Some(Ok(Some(flight))) = renewed else {
            return;
        };
        // Once the end is being stored, a rejected renewal means nothing.
        if !flight.is_ending() && flight.is_renewed() {
            tracing::warn!(record = %flight.id, fence = %flight.fence, "the claim was taken over while the operation ran");
            self.tally.count(Count::LeaseLost);
            // Waiting duplicates must wait for the new holder instead.
            let _ = self.flights.end(&flight, Ended::Unknown);
        }
    }
}

impl BackgroundRuntime {
    fn runtime(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the task as stopped when it is dropped, also with its runtime.
struct RunningMark(Weak<EngineState>);

impl Drop for RunningMark {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.post.is_kept.store(false, Ordering::Relaxed);
        }
    }
}

/// Runs the task until the last clone of the engine is dropped.
async fn run_background(engine: RunningMark) {
    let mut last_look = tokio::time::Instant::now();
    let mut last_sweep = last_look;
    let mut renewals = JoinSet::new();
    let mut sweeping = JoinSet::new();
    let mut resuming = JoinSet::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(inner) = engine.0.upgrade() else {
            return;
        };
        let now = tokio::time::Instant::now();
        while let Some(renewed) = renewals.try_join_next() {
            inner.handle_renewal(Some(renewed));
        }
        if inner.flights.len() > 0 {
            inner.renew_due(&mut renewals, last_look).await;
        }
        last_look = now;
        let _swept = sweeping.try_join_next();
        if sweeping.is_empty() && now - last_sweep >= SWEEP_EVERY {
            last_sweep = now;
            // In a task of its own, because a long sweep must not delay renewals.
            sweeping.spawn(sweep(inner.store.clone()));
        }
        let _ended = resuming.try_join_next();
        if resuming.is_empty() {
            resuming.spawn(resume::run(Arc::downgrade(&inner)));
        }
    }
}

async fn sweep(store: AnyStore) {
    if let Err(error) = store.sweep(SWEEP_AT_MOST).await {
        tracing::warn!(%error, "cannot sweep the store");
    }
}

/// A lease is renewed every quarter of its length: two renewals may fail, and the third is still in time.
const RENEWALS_PER_LEASE: u32 = 4;

fn is_due(flight: &Flight, last_look: Instant, now: Instant) -> bool {
    let quarter = flight.terms.lease / RENEWALS_PER_LEASE;
    let quarters = |until: Instant| {
        let since = until.saturating_duration_since(flight.since);
        since.as_nanos() / quarter.as_nanos().max(1)
    };
    quarters(now) > quarters(last_look)
}

/// Renews a lease. Returns the flight if its fence is no longer current.
async fn renew(store: AnyStore, flight: Arc<Flight>) -> Option<Arc<Flight>> {
    let lease = flight.terms.lease;
    let asked = tokio::time::Instant::now();
    let renewing = store.renew(flight.id, flight.fence, lease);
    // After that the next renewal is due anyway.
    match timeout(lease / RENEWALS_PER_LEASE, renewing).await {
        Ok(Ok(Settled::Fenced)) => return Some(flight),
        Ok(Ok(_)) => flight.renewed(asked),
        Ok(Err(error)) => {
            crate::log_rarely!(warn, record = %flight.id, %error, "cannot renew a lease");
        }
        Err(_) => crate::log_rarely!(warn, record = %flight.id, "the renewal of a lease timed out"),
    }
    None
}
