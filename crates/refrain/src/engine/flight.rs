//! What this engine runs now, and who waits for it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{sync::watch, time::Instant};

use crate::{
    Outcome,
    key::RecordId,
    policy::Terms,
    record::{Fence, Grant},
    store::Table,
};

/// How one ended, as those learn it who waited in this process.
#[derive(Debug, Clone)]
pub(super) enum Ended {
    Completed(Outcome),
    /// Refused before it took effect, perhaps with an answer that serves those who waited, too.
    Released(Option<Outcome>),
    /// Ask the store.
    Unknown,
}

/// One claim that this engine holds.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    pub(super) terms: Terms,
    /// When it was granted; leases are renewed from then on.
    pub(super) since: Instant,
    ended: watch::Sender<Option<Ended>>,
    /// Off once its end is being stored, or in doubt.
    is_renewed: AtomicBool,
}

impl Flight {
    /// Waits for its end.
    pub(super) async fn ended(&self) -> Ended {
        let mut receiver = self.ended.subscribe();
        match receiver.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ended::Unknown),
            Err(_) => Ended::Unknown,
        }
    }

    pub(super) fn is_renewed(&self) -> bool {
        self.is_renewed.load(Ordering::Relaxed)
    }

    pub(super) fn stop_renewing(&self) {
        self.is_renewed.store(false, Ordering::Relaxed);
    }
}

/// All claims that this engine holds.
#[derive(Debug)]
pub(super) struct Flights {
    table: Table<Arc<Flight>>,
    /// Records that a probe is asking about.
    probed: Table<()>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            probed: Table::new(),
        }
    }

    pub(super) fn get(&self, id: RecordId) -> Option<Arc<Flight>> {
        self.table.get(id)
    }

    pub(super) fn start(&self, id: RecordId, grant: Grant, terms: Terms) -> Arc<Flight> {
        let flight = Arc::new(Flight {
            id,
            fence: grant.fence,
            terms,
            since: Instant::now(),
            ended: watch::Sender::new(None),
            is_renewed: AtomicBool::new(true),
        });
        self.table.with(id, |entry| entry.put(flight.clone()));
        flight
    }

    /// Takes it from the list, then wakes who waits: whoever asks from now on asks the store.
    pub(super) fn end(&self, flight: &Arc<Flight>, ended: Ended) {
        flight.stop_renewing();
        self.table.with(flight.id, |entry| {
            if entry
                .get()
                .is_some_and(|current| Arc::ptr_eq(current, flight))
            {
                entry.take();
            }
        });
        flight.ended.send_replace(Some(ended));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Those whose lease is to be renewed, a shard at a time behind `after`.
    pub(super) fn renewed_after(&self, after: Option<RecordId>) -> Vec<Arc<Flight>> {
        let ids = self.table.ids_after(after, |flight| flight.is_renewed());
        ids.into_iter()
            .filter_map(|id| self.table.get(id))
            .collect()
    }

    /// Whether nobody else is asking about this record.
    pub(super) fn start_probe(&self, id: RecordId) -> bool {
        self.probed.with(id, |entry| {
            let is_first = entry.get().is_none();
            entry.put(());
            is_first
        })
    }

    pub(super) fn end_probe(&self, id: RecordId) {
        self.probed.with(id, |entry| entry.take());
    }
}
