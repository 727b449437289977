//! Front cache for outcomes: repeated replays are served from a faster store, without asking the main store.
//!
//! Claims and the authoritative records stay in the main store. A front may lose all entries, respond late or not
//! at all, or return invalid bytes: then the main store is asked, and only time is lost.
//! An entry is accepted only if it carries a keyed digest made with the store's secret and the requested identity.
//! [`step`] decides the verdict for a claim, with an upper bound of the store's time,
//! and only while the outcome is certainly within its retention.
//!
//! A completed outcome never changes, so an entry becomes stale only if the record is [erased](Store::erase).
//! An erasure through this type goes to the front first; the front then rejects entries of that record for one minute.
//! The front may miss an erasure that is made directly in the store, or lose an erasure itself. Time bounds this case:
//! every entry carries the time at which it was read from the store, and is not replayed when it is older than
//! [`Tiered::STALE_MAX`].
//!
//! An outcome is put in front at its first replay, because most outcomes are never replayed.

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;

use super::{Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Store, Watch};
use crate::{
    Error, ErrorKind, Result,
    clock::{Clock, SystemClock, Timestamp},
    key::{RecordId, Secret},
    record::{
        Claim, Command, Erased, Fence, ScopeDigest, Settled, Settlement, State, Verdict, step,
    },
};

mod entry;
use entry::FrontEntry;

/// Timeout of a call to the front; after it, the main store is asked.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pause after the front failed, in milliseconds. The front is not called during the pause.
const SHUT_MILLIS: u64 = 1_000;
/// How long an entry stays in front after it was read from the store. Then the store is asked again, because the record
/// may have been erased without notice to the front.
const KEPT_MAX: Duration = Duration::from_secs(5);
/// How long the front rejects entries of an erased record: longer than any entry is accepted.
const ERASED_FOR: Duration = Duration::from_mins(1);
/// The largest outcome that is put in front, in bytes. Larger outcomes gain less.
const OUTCOME_BYTES_MAX: usize = 1 << 20;
/// Maximum age of a known store time, in milliseconds.
const TIME_MILLIS_MAX: u64 = 3_600_000;
/// Margin for the drift between the clocks during that age.
const MARGIN: Duration = Duration::from_secs(5);

/// A cache for outcomes in front of a store. Its entries are opaque bytes.
///
/// # Cancellation
/// Every future here may be dropped.
pub trait Front: Debug + Send + Sync + 'static {
    /// Returns the entry of this record.
    fn find(&self, id: RecordId) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Stores `entry` for `span`, replacing an entry with an older fence.
    ///
    /// An existing entry or erasure with the same or a later fence stays. One atomic step.
    fn keep(
        &self,
        id: RecordId,
        fence: Fence,
        entry: Bytes,
        span: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Deletes the entry of this record, and rejects new entries of it for `span`. One atomic step.
    fn erase(&self, id: RecordId, span: Duration) -> impl Future<Output = Result<()>> + Send;
}

/// A store with a front cache.
#[derive(Debug)]
pub struct Tiered<F, S> {
    front: F,
    store: S,
    clock: Arc<dyn Clock>,
    /// The last known time of the store.
    learnt: Mutex<Option<Learnt>>,
    /// End of the pause after a failure of the front, on the monotonic clock, in milliseconds.
    shut_until: AtomicU64,
}

/// States that the store's time was not later than `now` when the monotonic clock read `steady`.
#[derive(Debug, Clone, Copy)]
struct Learnt {
    now: Timestamp,
    steady: u64,
}

impl<F, S> Tiered<F, S> {
    /// The longest time that the front may replay the outcome of a record that was erased without notice to the front.
    ///
    /// Entries expire after half of this time; the other half is the margin for differing clocks.
    pub const STALE_MAX: Duration = KEPT_MAX.saturating_add(MARGIN);
}

impl<F: Front, S: Store> Tiered<F, S> {
    /// Puts `front` in front of `store`.
    pub fn new(front: F, store: S) -> Self {
        Self::with_clock(front, store, Arc::new(SystemClock))
    }

    /// Like [`new`](Self::new), with another clock.
    pub fn with_clock(front: F, store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            front,
            store,
            clock,
            learnt: Mutex::new(None),
            shut_until: AtomicU64::new(0),
        }
    }

    /// Returns the verdict on a claim if the front certainly knows it. The main store is not asked.
    ///
    /// For callers that claim in their own transaction, which is then not needed.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn replay(&self, claim: &Claim) -> Option<Verdict> {
        let now = self.store_time().filter(|_| self.is_open())?;
        self.answer(claim, now).await
    }

    /// Copies the record that the store has replayed to the front, if it is completed.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn replayed(&self, id: RecordId) {
        self.put(id).await;
    }

    /// Returns the verdict on a claim, if the front certainly knows it.
    async fn answer(&self, claim: &Claim, now: Timestamp) -> Option<Verdict> {
        let found = self.ask_front(self.front.find(claim.id)).await?;
        let (entry, read_at) = FrontEntry::open(found?, claim.id, self.store.secret())?;
        // `now` is never earlier than the store's time, so the entry is at most this old.
        // An entry from the future was written before the store's clock was set back.
        let age = now.0.checked_sub(read_at.0).map(Duration::from_millis)?;
        if age > Self::STALE_MAX {
            return None;
        }
        // `step` never grants a claim on a completed record. On an expired one it may; that result is discarded.
        let nobodys = Fence {
            epoch: 0,
            counter: 0,
            nonce: 0,
        };
        let stepped = step(Some(entry), Command::Claim(claim.clone(), nobodys), now);
        let State::Completed { .. } = stepped.record?.state else {
            return None;
        };
        stepped.reply.into_verdict().ok()
    }

    /// Copies the record that the store has replayed to the front.
    async fn put(&self, id: RecordId) {
        if !self.is_open() {
            return;
        }
        let Ok(Some(reading)) = self.read_and_learn(id).await else {
            return;
        };
        let State::Completed {
            fence,
            outcome,
            retention_ends,
            ..
        } = &reading.record.state
        else {
            return;
        };
        let span = retention_ends.left(reading.now).min(KEPT_MAX);
        let (fence, len) = (*fence, outcome.encoded().len());
        if span.is_zero() || len > OUTCOME_BYTES_MAX {
            return;
        }
        let entry = FrontEntry::seal(&reading, self.store.secret());
        if let Some(entry) = entry {
            self.ask_front(self.front.keep(id, fence, entry, span))
                .await;
        }
    }

    async fn read_and_learn(&self, id: RecordId) -> Result<Option<Reading>> {
        let asked = self.clock.steady().millis;
        let reading = self.store.read(id).await?;
        if let Some(reading) = &reading {
            let now = reading.now;
            *self.learnt() = Some(Learnt { now, steady: asked });
        }
        Ok(reading)
    }

    fn learnt(&self) -> MutexGuard<'_, Option<Learnt>> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an upper bound of the store's time, if it is known.
    fn store_time(&self) -> Option<Timestamp> {
        let learnt = (*self.learnt())?;
        let passed = self.clock.steady().millis.checked_sub(learnt.steady)?;
        let known = learnt.now + Duration::from_millis(passed) + MARGIN;
        (passed <= TIME_MILLIS_MAX).then_some(known)
    }

    fn is_open(&self) -> bool {
        self.clock.steady().millis >= self.shut_until.load(Ordering::Relaxed)
    }

    /// Calls the front with a timeout. After a failure, the front is not called for a while.
    async fn ask_front<T>(&self, asked: impl Future<Output = Result<T>>) -> Option<T> {
        let trouble = match timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it timed out after {PATIENCE:?}"),
        };
        let until = self.clock.steady().millis + SHUT_MILLIS;
        if self.shut_until.swap(until, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "the front cache is unavailable, and outcomes are read from the main store: {trouble}"
            );
        } else {
            tracing::debug!("the front cache failed: {trouble}");
        }
        None
    }

    /// Erases the entry of this record in the front.
    async fn erase_front(&self, id: RecordId) -> Result<()> {
        let erased = timeout(PATIENCE * 10, self.front.erase(id, ERASED_FOR)).await;
        let trouble = match erased {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it timed out".into(),
        };
        let message = format!(
            "record {id} is not deleted, because the front cache could not be updated and would still replay its outcome: \
             {trouble}; retry when the front cache responds, or start without it"
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

impl<F: Front, S: Store> Store for Tiered<F, S> {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        if let Some(verdict) = self.replay(&claim).await {
            return Ok(verdict);
        }
        let id = claim.id;
        let verdict = self.store.claim(claim).await;
        if let Ok(Verdict::Replay(_)) = verdict {
            self.put(id).await;
        }
        verdict
    }

    fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send {
        self.store.settle(id, fence, end)
    }

    fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> impl Future<Output = Result<Settled>> + Send {
        self.store.renew(id, fence, lease)
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        self.read_and_learn(id).await
    }

    fn list(&self, query: &Query) -> impl Future<Output = Result<Page>> + Send {
        self.store.list(query)
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        // The front comes first: a new claim on the key must not find the old outcome,
        // and a concurrent reader of the record must not put it in front again.
        self.erase_front(id).await?;
        self.store.erase(id).await
    }

    fn census(&self) -> impl Future<Output = Result<Census>> + Send {
        self.store.census()
    }

    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send {
        self.store.sweep(at_most)
    }

    fn scope_key(&self, scope: ScopeDigest) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        self.store.scope_key(scope)
    }

    fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        self.store.replace_scope_key(scope, expected, key)
    }

    fn scope_keys(&self, cursor: Option<u64>) -> impl Future<Output = Result<ScopeKeyPage>> + Send {
        self.store.scope_keys(cursor)
    }

    fn accepts_claims(&self) -> Result<()> {
        self.store.accepts_claims()
    }

    fn bytes_on_disk(&self) -> Option<u64> {
        self.store.bytes_on_disk()
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        self.store.watch(id)
    }

    fn secret(&self) -> &Secret {
        self.store.secret()
    }
}
