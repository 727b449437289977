//! The claims that this engine holds, and the duplicates that wait for them.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{ClaimReply, Intent};
use crate::{
    Fingerprint, Outcome,
    audit::Entry,
    key::{Credential, RecordId},
    policy::Terms,
    record::{Claim, Fence, Grant, Origin, Verdict},
    store::Table,
};

/// A value that a running operation shows to its duplicates in this process before it has ended, such as a streamed response.
///
/// The engine passes it on unchanged; the code that [shows](super::Running::show) it defines its type.
#[derive(Clone)]
pub struct Live(Arc<dyn Any + Send + Sync>);

impl Live {
    /// Wraps the value to show.
    pub fn new<T: Send + Sync + 'static>(shown: Arc<T>) -> Self {
        Self(shown)
    }

    /// The shown value, if it has that type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}

/// How a flight ended, as the duplicates that wait in this process learn it.
#[derive(Debug, Clone)]
pub(super) enum Ended {
    Completed(Outcome),
    /// Released without effect; with the response for waiting duplicates, if there is one.
    Released(Option<Outcome>),
    /// Not known here: claim again.
    Unknown,
}

impl Ended {
    /// The reply to a duplicate that waited; `None` if it has to claim again.
    fn reply(&self) -> Option<ClaimReply> {
        match self {
            Self::Completed(outcome) => Some(ClaimReply::Verdict(Verdict::Replay(outcome.clone()))),
            Self::Released(answer) => answer.clone().map(ClaimReply::Refused),
            Self::Unknown => None,
        }
    }
}

/// One claim that this engine holds.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    pub(super) terms: Terms,
    /// Fingerprint and credential of the request: only matching duplicates learn the end.
    fingerprint: Fingerprint,
    credential: Option<Credential>,
    /// The operation's name in the audit log, if it is audited.
    pub(super) audit: Option<Arc<str>>,
    /// Where the claim came from, for log lines.
    pub(super) origin: Origin,
    /// A moment before the claim was sent; renewals and the attempt's deadline count from here.
    pub(super) since: Instant,
    end: Mutex<FlightEnd>,
    /// When the last successful renewal was sent, in milliseconds after `since`.
    renewed_millis: AtomicU64,
    /// Whether the lease is renewed; off once the flight has ended or is in doubt.
    is_renewed: AtomicBool,
    /// On once its end is being stored: then a rejected renewal means nothing.
    is_ending: AtomicBool,
    /// On once a forwarding service has sent the whole request.
    is_sent: AtomicBool,
}

/// The end of a flight, or the duplicates that wait for it. Most flights have none, so only waiting allocates.
#[derive(Debug, Default)]
struct FlightEnd {
    ended: Option<Ended>,
    waiting: Vec<WaitingDuplicate>,
    /// The streamed response, before the end.
    live: Option<Live>,
    /// The intent to probe with if the flight ends in doubt. Rare, so boxed.
    probed: Option<Box<Intent>>,
}

#[derive(Debug)]
struct WaitingDuplicate {
    /// Sends the reply to the duplicate; `None` if it has to claim again.
    sender: oneshot::Sender<Option<ClaimReply>>,
    /// Whether the duplicate can follow a streamed response.
    follows: bool,
}

/// Marks, when it is dropped, the whole request of an attempt as sent.
#[derive(Debug)]
pub(crate) struct SentMark(pub(super) Arc<Flight>);

impl Drop for SentMark {
    fn drop(&mut self) {
        self.0.is_sent.store(true, Ordering::Relaxed);
    }
}

impl Flight {
    /// Waits for the end, or with `follows` until the flight streams its response.
    /// Returns the reply to the duplicate; `None` if it has to claim again.
    pub(super) async fn wait_for_news(&self, follows: bool) -> Option<ClaimReply> {
        let receiver = {
            let mut end = self.end();
            if let Some(ended) = &end.ended {
                return ended.reply();
            }
            if let Some(live) = end.live.as_ref().filter(|_| follows) {
                return Some(ClaimReply::Live(live.clone()));
            }
            // Removes waiters that have given up before the list grows.
            if end.waiting.len() == end.waiting.capacity() {
                end.waiting.retain(|waiting| !waiting.sender.is_closed());
            }
            let (sender, receiver) = oneshot::channel();
            end.waiting.push(WaitingDuplicate { sender, follows });
            receiver
        };
        receiver.await.ok().flatten()
    }

    /// The streamed response, if the flight shows one.
    pub(super) fn live(&self) -> Option<Live> {
        self.end().live.clone()
    }

    /// Shows the streamed response to waiting and new duplicates that can follow it.
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
            let _ = waiting.sender.send(Some(ClaimReply::Live(live.clone())));
        }
    }

    /// Stops showing the streamed response to new duplicates.
    pub(super) fn hide(&self) {
        self.end().live = None;
    }

    /// Sets the intent to probe with if the flight ends in doubt.
    pub(super) fn probe_as(&self, intent: &Intent) {
        self.end().probed = Some(Box::new(intent.clone()));
    }

    /// An entry about this attempt; `None` if it is not audited.
    pub(super) fn entry(&self, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let operation = self.audit.as_ref()?;
        let mut entry = entry().of(self.id, Some(self.fence));
        entry.operation = Some(operation.clone());
        Some(entry)
    }

    /// The time until which the attempt may act: `settle_after` from the last successful renewal.
    /// The store's own end is not earlier.
    pub(super) fn acts_until(&self) -> Instant {
        let renewed = Duration::from_millis(self.renewed_millis.load(Ordering::Relaxed));
        self.since + renewed + self.terms.settle_after
    }

    /// Notes a successful renewal that was sent at that moment.
    pub(super) fn renewed(&self, asked: Instant) {
        let millis = asked.saturating_duration_since(self.since).as_millis();
        let millis = u64::try_from(millis).unwrap_or_default();
        self.renewed_millis.fetch_max(millis, Ordering::Relaxed);
    }

    fn end(&self) -> MutexGuard<'_, FlightEnd> {
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

/// Maximum number of background probes and given-up attempts that are noted; above it, a given-up attempt is probed again.
const GIVEN_UP_MAX: usize = 20_000;

/// The background task that probes an attempt in doubt.
#[derive(Debug, Clone, Copy)]
struct BackgroundProbe {
    fence: Fence,
    /// Whether the task has ended without a result.
    is_given_up: bool,
}

/// All claims that this engine holds.
#[derive(Debug)]
pub(super) struct Flights {
    table: Table<Arc<Flight>>,
    /// Records that are being probed.
    probed: Table<()>,
    /// Attempts in doubt that a background task probes from time to time, or has given up.
    background_probes: Table<BackgroundProbe>,
    /// Number of duplicates that wait for each record, whichever process holds it.
    waiting: Table<usize>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            table: Table::small(),
            probed: Table::small(),
            background_probes: Table::small(),
            waiting: Table::small(),
        }
    }

    /// Finds the flight that this claim waits for. Since the store's reply the key may have been released
    /// and claimed for another request: the end of that one is not for this caller.
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
            origin: claim.origin.clone(),
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

    /// Removes the flight from the table, then wakes the waiting duplicates. The first end counts;
    /// if it is unknown, returns the intent to probe with.
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
            // Duplicates in the list have not learnt of an earlier end.
            let told = (!waiting.is_empty()).then(|| ended.clone());
            let ended = end.ended.get_or_insert(ended);
            let is_known = !matches!(ended, Ended::Unknown);
            end.live = None;
            let probed = end.probed.take().filter(|_| !is_known);
            (waiting, told, probed)
        };
        if let Some(ended) = told {
            for waiting in waiting {
                let _ = waiting.sender.send(ended.reply());
            }
        }
        probed
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The flights whose lease is renewed, one shard at a time after `after`, with the identity to continue from.
    pub(super) fn renewed_after(
        &self,
        after: Option<RecordId>,
    ) -> Option<(RecordId, Vec<Arc<Flight>>)> {
        let ids = self.table.ids_after(after, |flight| flight.is_renewed());
        let last = *ids.last()?;
        // All of them may have ended by now; later shards may still have flights.
        let flights = ids.into_iter().filter_map(|id| self.table.get(id));
        Some((last, flights.collect()))
    }

    /// Counts one more duplicate that waits for this record, until the place is dropped; `None` if `waiting_max` already do.
    pub(super) fn take_place(&self, id: RecordId, waiting_max: usize) -> Option<WaitingPlace<'_>> {
        let has_room = self.waiting.with(id, |entry| {
            let waiting = entry.get().copied().unwrap_or_default();
            let has_room = waiting < waiting_max;
            if has_room {
                entry.put(waiting + 1);
            }
            has_room
        });
        has_room.then_some(WaitingPlace { flights: self, id })
    }

    /// Marks a record as being probed; returns whether it was not yet.
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

    /// Notes that a background task probes this attempt.
    pub(super) fn start_background_probe(&self, id: RecordId, fence: Fence) {
        self.note_background_probe(id, fence, false);
    }

    /// Notes that the background task of this attempt has given up, if there is room for the note.
    pub(super) fn give_up_background_probe(&self, id: RecordId, fence: Fence) {
        if self.background_probes.len() < GIVEN_UP_MAX {
            self.note_background_probe(id, fence, true);
        }
    }

    fn note_background_probe(&self, id: RecordId, fence: Fence, is_given_up: bool) {
        self.background_probes.with(id, |entry| {
            // The task of an earlier attempt may end after a later one began.
            if entry.get().is_none_or(|noted| noted.fence <= fence) {
                entry.put(BackgroundProbe { fence, is_given_up });
            }
        });
    }

    /// Forgets the background task of this attempt, unless it has given up.
    pub(super) fn end_background_probe(&self, id: RecordId, fence: Fence) {
        self.background_probes.with(id, |entry| {
            let noted = entry.get();
            if noted.is_some_and(|noted| noted.fence == fence && !noted.is_given_up) {
                entry.take();
            }
        });
    }

    /// Whether a background task probes this attempt, or has given it up.
    pub(super) fn has_background_probe(&self, id: RecordId, fence: Fence) -> bool {
        self.background_probes.with(id, |entry| {
            entry.get().is_some_and(|noted| noted.fence == fence)
        })
    }

    /// Forgets the given-up attempts whose records are no longer in doubt.
    pub(super) fn forget_given_up(&self, is_in_doubt: impl Fn(RecordId) -> bool) {
        let mut after = None;
        loop {
            let given_up = |noted: &BackgroundProbe| noted.is_given_up;
            let ids = self.background_probes.ids_after(after, given_up);
            let Some(last) = ids.last() else {
                return;
            };
            after = Some(*last);
            for id in ids.into_iter().filter(|id| !is_in_doubt(*id)) {
                self.background_probes.with(id, |entry| {
                    if entry.get().is_some_and(given_up) {
                        entry.take();
                    }
                });
            }
        }
    }

    /// Whether this engine holds a claim of the record.
    pub(super) fn holds(&self, id: RecordId) -> bool {
        self.table.with(id, |entry| entry.get().is_some())
    }
}

/// A place among the duplicates that wait for a record, released on drop.
pub(super) struct WaitingPlace<'a> {
    flights: &'a Flights,
    id: RecordId,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.flights.waiting.with(self.id, |entry| {
            let left = entry.take().unwrap_or_default().saturating_sub(1);
            if left > 0 {
                entry.put(left);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    //! The task of an earlier attempt once cleared the mark of a later one, which was then probed twice at the same time.

    use super::*;

    #[test]
    fn marks_of_background_probes_belong_to_one_attempt() {
        let flights = Flights::new();
        let id = RecordId([1; 16]);
        let fence = |counter| Fence {
            epoch: 1,
            counter,
            nonce: 0,
        };
        let (first, second) = (fence(1), fence(2));
        flights.start_background_probe(id, first);
        flights.start_background_probe(id, second);
        flights.end_background_probe(id, first);
        flights.give_up_background_probe(id, first);
        assert!(flights.has_background_probe(id, second));
        assert!(!flights.has_background_probe(id, first));
        flights.give_up_background_probe(id, second);
        flights.end_background_probe(id, second);
        assert!(flights.has_background_probe(id, second), "given up");
        flights.forget_given_up(|_| true);
        assert!(flights.has_background_probe(id, second));
        flights.forget_given_up(|_| false);
        assert!(!flights.has_background_probe(id, second));
    }
}
