//! The memory store `memory:`. Its records last as long as the process.
//! For tests, and for effects that end with the process as well.
//!
//! At its limit the store refuses new claims. It never evicts records, because an evicted key would execute again.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{
    Census, Guarantees, Page, Query, Reading, ScopeKeyPage, ScopeKeyTable, Store, Watch,
    table::{Table, TableEntry},
};
use crate::{
    Error, ErrorKind, Outcome, Result,
    clock::{Clock, StoreClock, SystemClock, Timestamp},
    key::{RecordId, Secret},
    record::{
        Change, Claim, Command, Erased, Fence, Record, Reply, ScopeDigest, Settled, Settlement,
        State, Verdict, step,
    },
};

/// Approximate size of a record without its trace and its outcome, in bytes: the record and its table entry.
const RECORD_BYTES: usize = 256;

/// The memory store. Clones share their records.
#[derive(Debug, Clone)]
pub struct Memory {
    shared: Arc<MemoryState>,
}

#[derive(Debug)]
struct MemoryState {
    table: Table<Box<Record>>,
    scope_keys: Mutex<ScopeKeyTable>,
    clock: StoreClock,
    secret: Secret,
    /// Number of grants, so that no fence is issued twice.
    counter: AtomicU64,
    /// Random for each store, so that its fences differ from those of an earlier process.
    nonce: u32,
    /// Approximate size of all records, in bytes.
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// The default limit: at this size, in bytes, the store refuses new claims.
    pub const BYTES_MAX: usize = 256 << 20;

    /// Creates a store with the default limit.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(Self::BYTES_MAX, Arc::new(SystemClock))
    }

    /// Creates a store that refuses new claims once its records take `bytes_max` bytes.
    #[must_use]
    pub fn with_options(bytes_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(MemoryState {
                table: Table::new(),
                scope_keys: Mutex::default(),
                clock: StoreClock::start(clock),
                secret: Secret::random(),
                counter: AtomicU64::new(0),
                nonce: rand::random(),
                bytes: AtomicUsize::new(0),
                bytes_max,
            }),
        }
    }

    fn decide(&self, claim: Claim) -> Result<Verdict> {
        let shared = &*self.shared;
        shared.table.with(claim.id, |entry| {
            // Increment under the record's lock, so that the fences of one record grow.
            let counter = shared.counter.fetch_add(1, Ordering::Relaxed) + 1;
            let fence = Fence {
                epoch: 1,
                counter,
                nonce: shared.nonce,
            };
            let before = entry.get();
            if before.is_none() {
                shared.check_room()?;
            }
            let now = shared.clock.now();
            // Borrow the outcome: a claim never creates one.
            let before = before.map(|record| record.by_ref());
            let standing = before.as_ref().map(|record| record.state.name());
            let stepped = step(before, Command::Claim(claim, fence), now);
            let verdict = stepped.reply.into_verdict()?;
            let verdict = verdict.convert(|grant| grant, Outcome::clone);
            let after = stepped.record;
            let stands = after.as_ref().map(|record| record.state.name());
            if stepped.change != Change::Nothing || standing != stands {
                let after = after.map(|record| record.map(Outcome::clone));
                shared.put(entry, after);
            }
            Ok(verdict)
        })
    }

    fn apply(&self, id: RecordId, command: Command) -> Reply {
        let shared = &*self.shared;
        shared.table.with(id, |entry| {
            // Read the clock under the lock, so that time never runs backwards for a record.
            let now = shared.clock.now();
            let stepped = step(entry.get().map(|record| (**record).clone()), command, now);
            shared.put(entry, stepped.record);
            stepped.reply
        })
    }

    fn scope_keys(&self) -> MutexGuard<'_, ScopeKeyTable> {
        let keys = self.shared.scope_keys.lock();
        keys.unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work that may visit every record on the blocking thread pool: on the caller's thread it would delay requests.
    /// Without a runtime there is no pool, and no other task on the thread.
    async fn scan<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return work(self);
        };
        let this = self.clone();
        let done = runtime.spawn_blocking(move || work(&this)).await;
        done.unwrap_or_else(|panic| {
            Err(Error::new(ErrorKind::Unavailable, "the store failed").with_source(panic))
        })
    }

    fn read_one(&self, id: RecordId) -> Option<Reading> {
        let record = *self.shared.table.get(id)?;
        let now = self.shared.clock.now();
        let record = step(Some(record), Command::Age, now).record?;
        Some(Reading { id, record, now })
    }
}

impl MemoryState {
    /// Replaces the record, and updates the size of the store.
    fn put(&self, entry: &mut TableEntry<'_, Box<Record>>, after: Option<Record>) {
        let bytes_after = after.as_ref().map_or(0, size);
        let before = match (after, entry.get_mut()) {
            (Some(record), Some(place)) => Some(std::mem::replace(&mut **place, record)),
            (Some(record), None) => {
                entry.put(Box::new(record));
                None
            }
            (None, _) => entry.take().map(|record| *record),
        };
        let bytes_before = before.as_ref().map_or(0, size);
        // The subtraction may wrap below zero; the addition wraps back.
        let grown = bytes_after.wrapping_sub(bytes_before);
        self.bytes.fetch_add(grown, Ordering::Relaxed);
    }

    fn check_room(&self) -> Result<()> {
        let (bytes, bytes_max) = (self.bytes.load(Ordering::Relaxed), self.bytes_max);
        if bytes < bytes_max {
            return Ok(());
        }
        let message = format!(
            "the memory store is full: its records take {bytes} of {bytes_max} bytes; \
             wait for retention to end, raise the limit, or use a file: store"
        );
        Err(Error::new(ErrorKind::Full, message))
    }
}

fn size(record: &Record) -> usize {
    let outcome = match &record.state {
        State::Completed { outcome, .. } => outcome.encoded().len(),
        _ => 0,
    };
    RECORD_BYTES + record.trace.as_bytes().len() + outcome
}

impl Store for Memory {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        self.decide(claim)
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        let end = end.sealed(id);
        self.apply(id, Command::Settle(fence, end)).into_settled()
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        self.apply(id, Command::Renew(fence, lease)).into_settled()
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        Ok(self.read_one(id))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.scan(move |this| {
            let read = |id| Ok(this.read_one(id));
            // Reading from memory is cheap, so no filter before it.
            super::list(&this.shared.table, &query, |_, _| true, read, || true)
        })
        .await
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        self.apply(id, Command::Erase).into_erased()
    }

    async fn census(&self) -> Result<Census> {
        self.scan(|this| {
            let now = this.shared.clock.now();
            let mut census = Census::default();
            let table = &this.shared.table;
            table.each(|record| census.count_at(record, now));
            Ok(census)
        })
        .await
    }

    async fn sweep(&self, at_most: u32) -> Result<u32> {
        let now = self.shared.clock.now();
        let mut swept = 0;
        let mut after = None;
        while swept < at_most {
            let ids = self
                .shared
                .table
                .ids_after(after, |record| is_past(record, now));
            let Some(last) = ids.last() else { break };
            after = Some(*last);
            for id in ids.into_iter().take((at_most - swept) as usize) {
                self.apply(id, Command::Age);
                swept += 1;
            }
        }
        Ok(swept)
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        Ok(self.scope_keys().get(scope))
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        Ok(self.scope_keys().replace(scope, expected.as_ref(), key))
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        Ok(self.scope_keys().page(cursor))
    }

    fn accepts_claims(&self) -> Result<()> {
        self.shared.check_room()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            survives_process: false,
            survives_power: false,
            lossy_failover: false,
            shared: false,
        }
    }

    /// Only this process can settle records, and the engine notifies its own waiters.
    fn watch(&self, _: RecordId) -> Option<Watch> {
        None
    }

    fn secret(&self) -> &Secret {
        &self.shared.secret
    }
}

/// Returns whether a sweep can shrink or remove this record.
fn is_past(record: &Record, now: Timestamp) -> bool {
    match record.state {
        State::Completed { retention_ends, .. } => retention_ends <= now,
        State::Tombstone { remember_ends } => remember_ends <= now,
        State::InFlight { .. } | State::Indeterminate { .. } => false,
    }
}
