//! The one task that an engine runs beside its callers: renews leases and has the store swept.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{Ended, Flight, Inner, tally::Count};
use crate::{
    record::Settled,
    store::{AnyStore, Store},
};

/// How often the keeper looks round while something runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SWEEP_EVERY: Duration = Duration::from_secs(30);
const SWEEP_AT_MOST: u32 = 100_000;
/// How many leases are renewed at once.
const RENEWALS_MAX: usize = 256;

/// Where the keeper stands.
#[derive(Debug, Default)]
pub(super) struct Post {
    /// Whether there is a keeper, and so a runtime that lives.
    is_kept: AtomicBool,
    /// The runtime that the keeper is on, or was.
    runtime: Mutex<Option<Handle>>,
}

impl Inner {
    /// Starts the keeper with the first claim, on the runtime that this came in on; again when that runtime has gone.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.post.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.post.is_kept.swap(true, Ordering::Relaxed) {
            *self.post.runtime() = Some(runtime.clone());
            runtime.spawn(keep(Keeping(Arc::downgrade(self))));
        }
    }

    /// Runs `task` in the background; `None` where there is no runtime to run it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let kept = self.post.is_kept.load(Ordering::Relaxed);
        let keepers = || self.post.runtime().clone();
        let runtime = match kept {
            true => keepers(),
            false => Handle::try_current().ok().or_else(keepers),
        };
        runtime.map(|runtime| runtime.spawn(task))
    }

    /// Starts to renew what is due. Waits only where too much is being renewed already.
    async fn renew_due(&self, renewals: &mut JoinSet<Renewed>, last_look: Instant) {
        let now = tokio::time::Instant::now();
        let mut after = None;
        while let Some((last, flights)) = self.flights.renewed_after(after) {
            after = Some(last);
            for flight in flights {
                if !is_due(&flight, last_look, now) {
                    continue;
                }
                if renewals.len() >= RENEWALS_MAX {
                    self.note(renewals.join_next().await);
                }
                renewals.spawn(renew(self.store.clone(), flight));
            }
        }
    }

    fn note(&self, renewed: Option<Result<Renewed, tokio::task::JoinError>>) {
        let Some(Ok(Renewed::Refused(flight))) = renewed else {
            return;
        };
        // Once its end is stored there is nothing to renew.
        if !flight.is_ending() && flight.is_renewed() {
            tracing::warn!(record = %flight.id, fence = %flight.fence, "the claim was taken over while it ran");
            self.tally.count(Count::LeaseLost);
            // Who waits here waits for the wrong one.
            let _ = self.flights.end(&flight, Ended::Unknown);
        }
    }
}

impl Post {
    fn runtime(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that there is no keeper any more when it goes, be it with its runtime.
struct Keeping(Weak<Inner>);

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.post.is_kept.store(false, Ordering::Relaxed);
        }
    }
}

/// Ends when the last clone of the engine has gone.
async fn keep(engine: Keeping) {
    let mut last_look = tokio::time::Instant::now();
    let mut last_sweep = last_look;
    let mut renewals = JoinSet::new();
    let mut sweeping = JoinSet::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(inner) = engine.0.upgrade() else {
            return;
        };
        let now = tokio::time::Instant::now();
        while let Some(renewed) = renewals.try_join_next() {
            inner.note(Some(renewed));
        }
        if inner.flights.len() > 0 {
            inner.renew_due(&mut renewals, last_look).await;
        }
        last_look = now;
        let _swept = sweeping.try_join_next();
        if sweeping.is_empty() && now - last_sweep >= SWEEP_EVERY {
            last_sweep = now;
            // Beside the renewals, which a long sweep must not hold up.
            sweeping.spawn(sweep(inner.store.clone()));
        }
    }
}

async fn sweep(store: AnyStore) {
    if let Err(error) = store.sweep(SWEEP_AT_MOST).await {
        tracing::warn!(%error, "the store could not be swept");
    }
}

/// Renewed every quarter of the lease: two renewals may fail, and the third still comes in time.
const RENEWALS_PER_LEASE: u32 = 4;

fn is_due(flight: &Flight, last_look: Instant, now: Instant) -> bool {
    let quarter = flight.terms.lease / RENEWALS_PER_LEASE;
    let quarters = |until: Instant| {
        let since = until.saturating_duration_since(flight.since);
        since.as_nanos() / quarter.as_nanos().max(1)
    };
    quarters(now) > quarters(last_look)
}

enum Renewed {
    /// The lease is ours, or may be.
    Stands,
    /// The fence is not current any more.
    Refused(Arc<Flight>),
}

async fn renew(store: AnyStore, flight: Arc<Flight>) -> Renewed {
    let lease = flight.terms.lease;
    let asked = tokio::time::Instant::now();
    let renewing = store.renew(flight.id, flight.fence, lease);
    // Behind that the next renewal is due anyway.
    match timeout(lease / RENEWALS_PER_LEASE, renewing).await {
        Ok(Ok(Settled::Fenced)) => return Renewed::Refused(flight),
        Ok(Ok(_)) => flight.renewed(asked),
        Ok(Err(error)) => {
            tracing::warn!(record = %flight.id, %error, "a lease could not be renewed");
        }
        Err(_) => tracing::warn!(record = %flight.id, "a lease could not be renewed in time"),
    }
    Renewed::Stands
}
