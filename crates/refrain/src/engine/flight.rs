//! What this engine runs now, and who waits for it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use super::{Intent, Live};
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

/// What those learn who wait for a flight.
#[derive(Debug)]
pub(super) enum News {
    Ended(Ended),
    /// It shows its answer from now on.
    Live(Live),
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
    /// What the audit log calls it, where it is audited.
    pub(super) audit: Option<Arc<str>>,
    /// When it was asked for; leases are renewed, and the attempt's time is counted, from then on.
    pub(super) since: Instant,
    end: Mutex<End>,
    /// When the last renewal that stands was asked for, in milliseconds behind `since`.
    renewed_millis: AtomicU64,
    /// Off once it has ended or is in doubt.
    is_renewed: AtomicBool,
    /// On once its end is being stored: then a refused renewal means nothing.
    is_ending: AtomicBool,
    /// On once a service that forwards has sent its whole request.
    is_sent: AtomicBool,
}

/// How it ended, or who waits for that. Most flights have nobody who waits, so waiting is what costs.
#[derive(Debug, Default)]
struct End {
    ended: Option<Ended>,
    waiting: Vec<Waiting>,
    /// What it shows before it has ended.
    live: Option<Live>,
    /// Whose probe is asked should it end in doubt. Rare, so boxed.
    probed: Option<Box<Intent>>,
}

#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<News>,
    /// Whether what it shows is wanted, too.
    follows: bool,
}

/// Notes, when it is dropped, that the request of an attempt was sent as a whole.
#[derive(Debug)]
pub(crate) struct SentMark(pub(super) Arc<Flight>);

impl Drop for SentMark {
    fn drop(&mut self) {
        self.0.is_sent.store(true, Ordering::Relaxed);
    }
}

impl Flight {
    /// Waits for its end, or where that is wanted until it shows something.
    pub(super) async fn news(&self, follows: bool) -> News {
        let receiver = {
            let mut end = self.end();
            if let Some(ended) = &end.ended {
                return News::Ended(ended.clone());
            }
            if let Some(live) = end.live.as_ref().filter(|_| follows) {
                return News::Live(live.clone());
            }
            // Those who gave up since make room for those who come.
            if end.waiting.len() == end.waiting.capacity() {
                end.waiting.retain(|waiting| !waiting.sender.is_closed());
            }
            let (sender, receiver) = oneshot::channel();
            end.waiting.push(Waiting { sender, follows });
            receiver
        };
        receiver.await.unwrap_or(News::Ended(Ended::Unknown))
    }

    /// What it shows.
    pub(super) fn live(&self) -> Option<Live> {
        self.end().live.clone()
    }

    /// Shows this to those who wait for such, and to those who come.
    pub(super) fn show(&self, live: &Live) {
        let following: Vec<_> = {
            let mut end = self.end();
            if end.ended.is_some() {
                return;
            }
            end.live = Some(live.clone());
            end.waiting.extract_if(.., |it| it.follows).collect()
        };
        for waiting in following {
            let _ = waiting.sender.send(News::Live(live.clone()));
        }
    }

    /// Shows nothing any more to those who come.
    pub(super) fn hide(&self) {
        self.end().live = None;
    }

    /// Whose probe is to be asked should it end in doubt.
    pub(super) fn probe_as(&self, intent: &Intent) {
        self.end().probed = Some(Box::new(intent.clone()));
    }

    /// Until when it may act: from the last renewal that stands, the store counts as long or longer.
    pub(super) fn acts_until(&self) -> Instant {
        let renewed = Duration::from_millis(self.renewed_millis.load(Ordering::Relaxed));
        self.since + renewed + self.terms.settle_after
    }

    /// A renewal that was asked for at that moment stands.
    pub(super) fn renewed(&self, asked: Instant) {
        let millis = asked.saturating_duration_since(self.since).as_millis();
        let millis = u64::try_from(millis).unwrap_or_default();
        self.renewed_millis.fetch_max(millis, Ordering::Relaxed);
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

    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
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
    /// Number of duplicates that wait for each record, whichever process holds it.
    waiting: Table<usize>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            table: Table::small(),
            probed: Table::small(),
            waiting: Table::small(),
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
        audit: Option<Arc<str>>,
        since: Instant,
    ) -> Arc<Flight> {
        let flight = Arc::new(Flight {
            id: claim.id,
            fence: grant.fence,
            terms,
            fingerprint: claim.fingerprint,
            credential: claim.credential,
            audit,
            since,
            end: Mutex::default(),
            renewed_millis: AtomicU64::new(0),
            is_renewed: AtomicBool::new(true),
            is_ending: AtomicBool::new(false),
            is_sent: AtomicBool::new(false),
        });
        self.table.with(claim.id, |entry| entry.put(flight.clone()));
        flight
    }

    /// Takes it from the list, then wakes who waits: whoever asks from now on asks the store. The first end counts;
    /// if that is one in doubt, answers whose probe is to be asked.
    pub(super) fn end(&self, flight: &Arc<Flight>, ended: Ended) -> Option<Box<Intent>> {
        flight.stop_renewing();
        self.table.with(flight.id, |entry| {
            if entry
                .get()
                .is_some_and(|current| Arc::ptr_eq(current, flight))
            {
                entry.take();
            }
        });
        let (waiting, told, probed) = {
            let mut end = flight.end();
            let waiting = std::mem::take(&mut end.waiting);
            // Who waits now has learnt of no end before.
            let told = (!waiting.is_empty()).then(|| ended.clone());
            let ended = end.ended.get_or_insert(ended);
            let is_known = !matches!(ended, Ended::Unknown);
            end.live = None;
            let probed = end.probed.take().filter(|_| !is_known);
            (waiting, told, probed)
        };
        if let Some(ended) = told {
            for waiting in waiting {
                let _ = waiting.sender.send(News::Ended(ended.clone()));
            }
        }
        probed
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

    /// Counts one more duplicate that waits for this record; returns whether that is within `waiting_max`.
    pub(super) fn start_waiting(&self, id: RecordId, waiting_max: usize) -> bool {
        self.waiting.with(id, |entry| {
            let waiting = entry.get().copied().unwrap_or_default();
            let has_room = waiting < waiting_max;
            if has_room {
                entry.put(waiting + 1);
            }
            has_room
        })
    }

    pub(super) fn end_waiting(&self, id: RecordId) {
        self.waiting.with(id, |entry| {
            let left = entry.take().unwrap_or_default().saturating_sub(1);
            if left > 0 {
                entry.put(left);
            }
        });
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
