//! The one task that an engine runs beside its callers: renews leases and has the store swept.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{Flight, Inner, tally::Count};
use crate::{
    record::Settled,
    store::{AnyStore, Store},
};

/// How often the keeper looks round while something runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SWEEP_EVERY: Duration = Duration::from_secs(30);
const SWEEP_AT_MOST: u32 = 100_000;
/// How many leases are renewed at once.
const RENEWALS_MAX: usize = 64;

impl Inner {
    /// Starts the keeper with the first claim, on the runtime that this came in on.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.runtime.get().is_some() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if self.runtime.set(runtime.clone()).is_ok() {
            runtime.spawn(keep(Arc::downgrade(self)));
        }
    }

    async fn renew_due(&self, last_look: Instant) {
        let now = Instant::now();
        let mut renewals = JoinSet::new();
        let mut after = None;
        loop {
            let flights = self.flights.renewed_after(after);
            let Some(last) = flights.last() else { break };
            after = Some(last.id);
            for flight in flights
                .into_iter()
                .filter(|flight| is_due(flight, last_look, now))
            {
                if renewals.len() >= RENEWALS_MAX {
                    self.note(renewals.join_next().await);
                }
                renewals.spawn(renew(self.store.clone(), flight));
            }
        }
        while let Some(renewed) = renewals.join_next().await {
            self.note(Some(renewed));
        }
    }

    fn note(&self, renewed: Option<Result<bool, tokio::task::JoinError>>) {
        if let Some(Ok(false)) = renewed {
            self.tally.count(Count::LeaseLost);
        }
    }
}

/// Ends when the last clone of the engine has gone.
async fn keep(engine: Weak<Inner>) {
    let mut last_look = Instant::now();
    let mut last_sweep = last_look;
    loop {
        sleep(LOOK_EVERY).await;
        let Some(inner) = engine.upgrade() else {
            return;
        };
        let now = Instant::now();
        if !inner.flights.is_empty() {
            inner.renew_due(last_look).await;
        }
        last_look = now;
        if now - last_sweep >= SWEEP_EVERY {
            last_sweep = now;
            let store = inner.store.clone();
            drop(inner);
            if let Err(error) = store.sweep(SWEEP_AT_MOST).await {
                tracing::warn!(%error, "the store could not be swept");
            }
        }
    }
}

/// Renewed every third of the lease, so that two renewals may fail.
fn is_due(flight: &Flight, last_look: Instant, now: Instant) -> bool {
    let third = flight.terms.lease / 3;
    let thirds = |until: Instant| {
        let since = until.saturating_duration_since(flight.since);
        since.as_nanos() / third.as_nanos().max(1)
    };
    thirds(now) > thirds(last_look)
}

/// Whether the lease is still ours, or may be.
async fn renew(store: AnyStore, flight: Arc<Flight>) -> bool {
    match store
        .renew(flight.id, flight.fence, flight.terms.lease)
        .await
    {
        Ok(Settled::Fenced) => {
            flight.stop_renewing();
            tracing::warn!(record = %flight.id, fence = %flight.fence, "the claim was taken over while it ran");
            false
        }
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(record = %flight.id, %error, "a lease could not be renewed");
            true
        }
    }
}
