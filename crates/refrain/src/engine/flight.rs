//! What this engine runs now, and who waits for it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    Fingerprint, Outcome,
    key::{Credential, RecordId},
    policy::Terms,
    record::{Claim, Fence, Grant},
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
    /// What runs, and for whom: its end is shown to nobody else.
    fingerprint: Fingerprint,
    credential: Option<Credential>,
    /// When it was asked for; leases are renewed, and the attempt's time is counted, from then on.
    pub(super) since: Instant,
    end: Mutex<End>,
    /// Off once it has ended or is in doubt.
    is_renewed: AtomicBool,
    /// On once its end is being stored: then a refused renewal means nothing.
    is_ending: AtomicBool,
}

/// How it ended, or who waits for that. Most flights have nobody who waits, so waiting is what costs.
#[derive(Debug, Default)]
struct End {
    ended: Option<Ended>,
    waiting: Vec<oneshot::Sender<Ended>>,
}

impl Flight {
    /// Waits for its end.
    pub(super) async fn ended(&self) -> Ended {
        let receiver = {
            let mut end = self.end();
            if let Some(ended) = &end.ended {
                return ended.clone();
            }
            // Those who gave up since make room for those who come.
            if end.waiting.len() == end.waiting.capacity() {
                end.waiting.retain(|sender| !sender.is_closed());
            }
            let (sender, receiver) = oneshot::channel();
            end.waiting.push(sender);
            receiver
        };
        receiver.await.unwrap_or(Ended::Unknown)
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_renewed(&self) -> bool {
        self.is_renewed.load(Ordering::Relaxed)
    }

    pub(super) fn stop_renewing(&self) {
        self.is_renewed.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    pub(super) fn start_ending(&self) {
        self.is_ending.store(true, Ordering::Release);
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
            table: Table::small(),
            probed: Table::small(),
        }
    }

    /// The flight that this claim asks for. Between the store's answer and now the key may have been freed
    /// and claimed for something else: that one's end is not for this asker.
    pub(super) fn find(&self, claim: &Claim) -> Option<Arc<Flight>> {
        let flight = self.table.get(claim.id)?;
        let is_same = flight.fingerprint == claim.fingerprint;
        let is_shown = match (claim.credential, flight.credential) {
            (Some(asking), Some(first)) => asking == first,
            _ => true,
        };
        (is_same && is_shown).then_some(flight)
    }

    pub(super) fn start(
        &self,
        claim: &Claim,
        grant: Grant,
        terms: Terms,
        since: Instant,
    ) -> Arc<Flight> {
        let flight = Arc::new(Flight {
            id: claim.id,
            fence: grant.fence,
            terms,
            fingerprint: claim.fingerprint,
            credential: claim.credential,
            since,
            end: Mutex::default(),
            is_renewed: AtomicBool::new(true),
            is_ending: AtomicBool::new(false),
        });
        self.table.with(claim.id, |entry| entry.put(flight.clone()));
        flight
    }

    /// Takes it from the list, then wakes who waits: whoever asks from now on asks the store. The first end counts.
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
        let waiting = {
            let mut end = flight.end();
            end.ended.get_or_insert_with(|| ended.clone());
            std::mem::take(&mut end.waiting)
        };
        for sender in waiting {
            let _ = sender.send(ended.clone());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Those whose lease is to be renewed, a shard at a time behind `after`, and where to go on from.
    pub(super) fn renewed_after(
        &self,
        after: Option<RecordId>,
    ) -> Option<(RecordId, Vec<Arc<Flight>>)> {
        let ids = self.table.ids_after(after, |flight| flight.is_renewed());
        let last = *ids.last()?;
        // All of them may have ended by now, which says nothing about the shards behind.
        let flights = ids.into_iter().filter_map(|id| self.table.get(id));
        Some((last, flights.collect()))
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
