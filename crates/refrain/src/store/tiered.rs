//! Outcomes in front of a store: what was replayed once is replayed from a faster place, without asking the store again.
//!
//! Claims and the truth stay in the store. A front may lose everything, answer late or not at all, or hold whatever it likes:
//! then the store is asked, and nothing but time is lost.
//! An entry is believed only if it carries a digest made with the store's secret and the identity that was asked for.
//! What it means for a claim is decided by [`step`], on the store's own time as far as it is known here,
//! and only while the outcome is certainly within its retention.
//!
//! A completed outcome never changes, so an entry can become stale in one way only: the record is [erased](Store::erase).
//! An erasure through this type tells the front first, and the front then accepts nothing for that record for a minute.
//! An erasure that the front did not hear of, made directly in the store or forgotten by the front, is bounded by time:
//! every entry carries the moment at which it was read from the store, and is not replayed when it is older than
//! [`Tiered::STALE_MAX`].
//!
//! Entries are put in front when an outcome is first replayed: most are never asked for again.

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

use super::{Census, Guarantees, Page, Query, Reading, Store, Watch};
use crate::{
    Error, ErrorKind, Result,
    clock::{Clock, SystemClock, Timestamp},
    key::{RecordId, Secret},
    record::{Claim, Command, Erased, Fence, Reply, Settled, Settlement, State, Verdict, step},
};

mod entry;
use entry::Entry;

/// How long a front may take before the store is asked instead.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a front is left alone after it failed.
const SHUT_MILLIS: u64 = 1_000;
/// How long an entry stays in front after it was read from the store. The store is then asked again, because the record
/// may have been erased by somebody who did not tell the front.
const KEPT_MAX: Duration = Duration::from_secs(5);
/// How long the front refuses entries of an erased record: longer than any entry is believed.
const ERASED_FOR: Duration = Duration::from_mins(1);
/// The largest outcome that is put in front: the larger, the less is gained.
const OUTCOME_BYTES_MAX: usize = 1 << 20;
/// How long what was learnt about the store's time is believed.
const TIME_MILLIS_MAX: u64 = 3_600_000;
/// What clocks may be apart after that long, and then some.
const MARGIN: Duration = Duration::from_secs(5);

/// A place for outcomes in front of a store. What it holds is opaque to it.
///
/// # Cancellation
/// Every future here may be dropped.
pub trait Front: Debug + Send + Sync + 'static {
    /// What is kept for this record.
    fn find(&self, id: RecordId) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Keeps `entry` for that long, in place of any under an older fence.
    ///
    /// Under the same fence or a later one, what is there stays, be it an entry or an erasure: one atomic step.
    fn keep(
        &self,
        id: RecordId,
        fence: Fence,
        entry: Bytes,
        span: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Drops what is kept of this record, and keeps nothing of it for that long: one atomic step.
    fn erase(&self, id: RecordId, span: Duration) -> impl Future<Output = Result<()>> + Send;
}

/// A store with a front.
#[derive(Debug)]
pub struct Tiered<F, S> {
    front: F,
    store: S,
    clock: Arc<dyn Clock>,
    /// The store's time as it was last learnt.
    learnt: Mutex<Option<Learnt>>,
    /// Until when the front is left alone, on the steady clock.
    shut_until: AtomicU64,
}

/// That the store's time was not later than `now` at `steady`.
#[derive(Debug, Clone, Copy)]
struct Learnt {
    now: Timestamp,
    steady: u64,
}

impl<F, S> Tiered<F, S> {
    /// The longest time that the front may replay the outcome of a record that was erased without its knowledge.
    ///
    /// Entries end after half of this; the other half is the tolerance for clocks that differ.
    pub const STALE_MAX: Duration = KEPT_MAX.saturating_add(MARGIN);
}

impl<F: Front, S: Store> Tiered<F, S> {
    /// Puts `front` before `store`.
    pub fn new(front: F, store: S) -> Self {
        Self::with_clock(front, store, Arc::new(SystemClock))
    }

    /// As [`new`](Self::new), with another clock to count time on.
    pub fn with_clock(front: F, store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            front,
            store,
            clock,
            learnt: Mutex::new(None),
            shut_until: AtomicU64::new(0),
        }
    }

    /// The answer to a claim, if the front has it for certain; the store is not asked.
    ///
    /// For those who claim in a transaction of their own, which is then not needed.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn replay(&self, claim: &Claim) -> Option<Verdict> {
        let now = self.store_time().filter(|_| self.is_open())?;
        self.answer(claim, now).await
    }

    /// Puts what the store has replayed in front, as far as it is completed.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn replayed(&self, id: RecordId) {
        self.put(id).await;
    }

    /// The answer to a claim, if the front has it for certain.
    async fn answer(&self, claim: &Claim, now: Timestamp) -> Option<Verdict> {
        let found = self.ask_front(self.front.find(claim.id)).await?;
        let (entry, read_at) = Entry::open(found?, claim.id, self.store.secret())?;
        // `now` is never earlier than the store's time, so the entry is no older than this. A moment in the future is
        // one from before the store's clock was set back.
        let age = now.0.checked_sub(read_at.0).map(Duration::from_millis)?;
        if age > Self::STALE_MAX {
            return None;
        }
        // A claim on what is completed is granted nothing; on what has ended by now it would be, and that is not for here.
        let nobodys = Fence {
            epoch: 0,
            counter: 0,
            nonce: 0,
        };
        let stepped = step(Some(entry), Command::Claim(claim.clone(), nobodys), now);
        let State::Completed { .. } = stepped.record?.state else {
            return None;
        };
        match stepped.reply {
            Reply::Verdict(verdict) => Some(verdict),
            Reply::Settled(_) | Reply::Erased(_) | Reply::Aged => None,
        }
    }

    /// Puts what the store has replayed in front.
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
        let entry = Entry::seal(&reading, self.store.secret());
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

    /// A moment that the store's time has certainly not passed yet, if that can be told.
    fn store_time(&self) -> Option<Timestamp> {
        let learnt = (*self.learnt())?;
        let passed = self.clock.steady().millis.checked_sub(learnt.steady)?;
        let known = learnt.now + Duration::from_millis(passed) + MARGIN;
        (passed <= TIME_MILLIS_MAX).then_some(known)
    }

    fn is_open(&self) -> bool {
        self.clock.steady().millis >= self.shut_until.load(Ordering::Relaxed)
    }

    /// Asks the front for no longer than it is worth; one that failed is left alone for a while.
    async fn ask_front<T>(&self, asked: impl Future<Output = Result<T>>) -> Option<T> {
        let trouble = match timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it took longer than {PATIENCE:?}"),
        };
        let until = self.clock.steady().millis + SHUT_MILLIS;
        if self.shut_until.swap(until, Ordering::Relaxed) == 0 {
            tracing::warn!("outcomes are not served from the front of the store: {trouble}");
        } else {
            tracing::debug!("the front of the store failed: {trouble}");
        }
        None
    }

    /// Tells the front that what it holds of this record is void.
    async fn erase_front(&self, id: RecordId) -> Result<()> {
        let erased = timeout(PATIENCE * 10, self.front.erase(id, ERASED_FOR)).await;
        let trouble = match erased {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it did not answer in time".into(),
        };
        let message = format!(
            "record {id} stays, because the front of the store could not be told and would go on to replay its outcome: \
             {trouble}; try again when it answers, or start without it"
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

impl<F: Front, S: Store> Store for Tiered<F, S> {
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Verdict>>> {
        let mut verdicts = Vec::with_capacity(claims.len());
        let mut left = Vec::new();
        for claim in claims {
            let answer = self.replay(claim).await;
            if answer.is_none() {
                left.push(claim.clone());
            }
            verdicts.push(answer);
        }
        let answers = match left.is_empty() {
            true => Vec::new(),
            false => self.store.claim(&left).await?,
        };
        for (claim, answer) in left.iter().zip(&answers) {
            if let Ok(Verdict::Replay(_)) = answer {
                self.put(claim.id).await;
            }
        }
        let mut answers = answers.into_iter();
        let mut from_store = || answers.next().unwrap_or_else(|| Err(unanswered()));
        let merged = |verdict: Option<Verdict>| verdict.map_or_else(&mut from_store, Ok);
        Ok(verdicts.into_iter().map(merged).collect())
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
        // Before the record goes: whoever claims the key anew must not find the old outcome,
        // and whoever has just read the record must not put it there again.
        self.erase_front(id).await?;
        self.store.erase(id).await
    }

    fn census(&self) -> impl Future<Output = Result<Census>> + Send {
        self.store.census()
    }

    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send {
        self.store.sweep(at_most)
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

fn unanswered() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store gave no answer to a claim",
    )
}
