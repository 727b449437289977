//! Stores: the trait that every store implements, and the stores that need no server.
//!
//! Callers pass durations, never points in time, because the store's own clock decides.
//! Every claim, settlement and renewal is one atomic transition, as decided by [`record::step`](crate::record::step).

use std::{fmt::Debug, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Error, ErrorKind, Outcome, Result,
    clock::Timestamp,
    key::{RecordId, Secret},
    record::{
        Claim, Command, Erased, Fence, Grant, KeyDigest, Record, Reply, ScopeDigest, Settled,
        Settlement, State, Trace, Verdict, step,
    },
};

mod any;
pub(crate) use any::BoxedReply;
pub use any::{AnyStore, Meter, Op};

mod encrypting;
pub use encrypting::REREAD_AFTER;
use encrypting::StoreEncryption;

mod rotation;
pub use rotation::ScopeKeyCounts;

pub mod embedded;
pub use embedded::Embedded;

mod memory;
pub use memory::Memory;

mod scope_keys;
pub(crate) use scope_keys::ScopeKeyTable;
pub use scope_keys::{SCOPE_KEY_BYTES_MAX, ScopeKeyPage};

mod table;
pub(crate) use table::Table;

mod tiered;
pub use tiered::{Front, Tiered};

mod watch;
pub use watch::{Watch, Watches};

/// The maximum number of records on one page of a list.
pub const LIST_MAX: u32 = 1_000;

/// The fingerprint of the engine's own records. No request has it, because fingerprints are keyed digests.
/// [`AnyStore`] leaves these records out of lists.
pub(crate) const FACT: [u8; 16] = *b"refrain: a fact.";

/// Storage for records: a few primitives. Concurrent calls may share one write; each is decided separately.
///
/// # Cancellation
/// Every future here may be dropped. The call may still take effect, as if its response were lost.
pub trait Store: Debug + Send + Sync + 'static {
    /// Claims the right to execute. The future is ready at its first poll if the reply is in memory.
    ///
    /// A granted claim is durable, to the extent of [`guarantees`](Self::guarantees), before the call returns.
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Verdict>> + Send;

    /// Settles a claim: completes it, releases it, or marks its outcome as unknown.
    fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Renews a claim: its lease lasts `lease` from now.
    fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Reads the record with this identity.
    ///
    /// A store that has detectably lost records returns an error, not `None`.
    fn read(&self, id: RecordId) -> impl Future<Output = Result<Option<Reading>>> + Send;

    /// Lists records in the order of their identities, for operators.
    fn list(&self, query: &Query) -> impl Future<Output = Result<Page>> + Send;

    /// Deletes a completed record or a tombstone. A record that is in flight or indeterminate stays.
    ///
    /// For operators. The key is free again, and a retry with it executes again.
    /// Durable, to the extent of [`guarantees`](Self::guarantees), before the call returns.
    fn erase(&self, id: RecordId) -> impl Future<Output = Result<Erased>> + Send;

    /// Counts the records in each state, without reading outcomes.
    fn census(&self) -> impl Future<Output = Result<Census>> + Send;

    /// Removes expired records, about `at_most` of them, and returns how many.
    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send;

    /// Reads the stored data key of a scope. Stores do not interpret it; see [`encryption`](crate::encryption).
    fn scope_key(&self, scope: ScopeDigest) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Stores the data key of a scope if the stored one is `expected`; `None` is absent.
    /// Returns the key that is stored then, which is another one if `expected` was outdated.
    ///
    /// One atomic step: of two concurrent calls with the same expectation, one replaces the key, and both return that one.
    /// Durable, to the extent of [`guarantees`](Self::guarantees), before the call returns.
    /// A key has at most [`SCOPE_KEY_BYTES_MAX`] bytes.
    fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Lists the stored data keys; `cursor` is the [`ScopeKeyPage::next`] of the previous page.
    ///
    /// A key that is stored during the whole listing is on at least one page.
    fn scope_keys(&self, cursor: Option<u64>) -> impl Future<Output = Result<ScopeKeyPage>> + Send;

    /// Whether the store accepts new claims now; the error says why not.
    ///
    /// `Ok` also from a store that finds it out only from a claim. Does not wait.
    fn accepts_claims(&self) -> Result<()> {
        Ok(())
    }

    /// Bytes that the store occupies on the disk of this machine; `None` if it has none there.
    ///
    /// For operators. May wait for the disk, so call it where blocking is allowed.
    fn bytes_on_disk(&self) -> Option<u64> {
        None
    }

    /// The guarantees of this store.
    fn guarantees(&self) -> Guarantees;

    /// Watches a record, and signals when it may have been settled, also by another process.
    ///
    /// The signal is only a hint to claim again, for callers whose claim found the record in flight.
    /// `None` if the store cannot signal, or if no other process can settle records.
    fn watch(&self, id: RecordId) -> Option<Watch>;

    /// The secret of this store's keyed digests.
    fn secret(&self) -> &Secret;
}

/// A shared store, for example used by an engine and directly by other code.
impl<S: Store> Store for Arc<S> {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        S::claim(self, claim).await
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        S::settle(self, id, fence, end).await
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        S::renew(self, id, fence, lease).await
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        S::read(self, id).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        S::list(self, query).await
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        S::erase(self, id).await
    }

    async fn census(&self) -> Result<Census> {
        S::census(self).await
    }

    async fn sweep(&self, at_most: u32) -> Result<u32> {
        S::sweep(self, at_most).await
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        S::scope_key(self, scope).await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        S::replace_scope_key(self, scope, expected, key).await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        S::scope_keys(self, cursor).await
    }

    fn accepts_claims(&self) -> Result<()> {
        S::accepts_claims(self)
    }

    fn bytes_on_disk(&self) -> Option<u64> {
        S::bytes_on_disk(self)
    }

    fn guarantees(&self) -> Guarantees {
        S::guarantees(self)
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        S::watch(self, id)
    }

    fn secret(&self) -> &Secret {
        S::secret(self)
    }
}

/// A record as read from a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The identity of the record.
    pub id: RecordId,
    /// The content of the record.
    pub record: Record,
    /// The time on the store's clock when the record was read.
    pub now: Timestamp,
}

/// Selects the records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Only records in this state.
    pub state: Option<StateName>,
    /// Only records after this identity, the [`Page::next`] of the previous page.
    pub after: Option<RecordId>,
    /// The maximum number of records.
    pub limit: u32,
    /// Only records with a key of this digest.
    pub key: Option<KeyDigest>,
    /// Only records of this operation.
    pub operation: Option<String>,
    /// Only records whose scope has this digest.
    pub scope: Option<ScopeDigest>,
    /// Only records that were first seen at least this long ago.
    pub older_than: Option<Duration>,
    /// Only records that were first seen at most this long ago.
    pub newer_than: Option<Duration>,
    /// The longest time to search; `None` to search until the page is full.
    /// When it ends, the page is returned as it is, and [`Page::next`] continues the search: every page gets further.
    /// A store that cannot continue in the middle of a search ignores it.
    pub search_time: Option<Duration>,
}

impl Query {
    /// Whether the query selects this record, apart from its identity. `now` is the time on the store's clock.
    #[must_use]
    pub fn fits<O>(&self, record: &Record<O>, now: Timestamp) -> bool {
        let name = record.state.name();
        self.state.is_none_or(|state| state == name) && self.fits_trace(&record.trace, now)
    }

    /// Whether the query selects records with this trace, apart from identity and state.
    #[must_use]
    pub fn fits_trace(&self, trace: &Trace, now: Timestamp) -> bool {
        let key = trace.key_digest();
        if self.key.is_some_and(|wanted| key != Some(wanted)) {
            return false;
        }
        if !self.reads_history() {
            return true;
        }
        let Some(history) = trace.read() else {
            return false;
        };
        let is_of = |operation: &String| *operation == history.operation;
        let age = history.first_seen().map(|first| now.left(first));
        let is_age = |fits: &dyn Fn(Duration) -> bool| age.is_some_and(fits);
        self.operation.as_ref().is_none_or(is_of)
            && (self.scope.is_none() || self.scope == history.scope_digest)
            && self
                .older_than
                .is_none_or(|least| is_age(&|age| age >= least))
            && self
                .newer_than
                .is_none_or(|most| is_age(&|age| age <= most))
    }

    /// Whether it selects by more than identity and state.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.key.is_some() || self.reads_history()
    }

    /// Whether it selects by more than state and key.
    fn reads_history(&self) -> bool {
        let is_timed = self.older_than.is_some() || self.newer_than.is_some();
        is_timed || self.operation.is_some() || self.scope.is_some()
    }
}

impl Default for Query {
    fn default() -> Self {
        Self {
            state: None,
            after: None,
            limit: 100,
            key: None,
            operation: None,
            scope: None,
            older_than: None,
            newer_than: None,
            search_time: None,
        }
    }
}

/// One page of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records, in the order of their identities.
    pub readings: Vec<Reading>,
    /// The identity to continue after; `None` on the last page. A page with fewer records than the limit,
    /// or with none, need not be the last one.
    pub next: Option<RecordId>,
}

/// The name of a record's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateName {
    /// Claimed; the outcome is not known yet.
    InFlight,
    /// The operation ended, and its outcome is stored.
    Completed,
    /// The outcome is unknown: the operation may or may not have taken effect.
    Indeterminate,
    /// Past retention: the key is refused.
    Tombstone,
}

impl<O> State<O> {
    /// The name of this state.
    #[must_use]
    pub fn name(&self) -> StateName {
        match self {
            Self::InFlight { .. } => StateName::InFlight,
            Self::Completed { .. } => StateName::Completed,
            Self::Indeterminate { .. } => StateName::Indeterminate,
            Self::Tombstone { .. } => StateName::Tombstone,
        }
    }
}

/// The number of records in each state, as far as a store knows without reading outcomes.
///
/// The counts of in-flight and indeterminate records are exact, lapsed leases included.
/// A store that does not index the times at which records expire counts an expired record in its stored state,
/// completed or tombstone, until it is swept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Claimed; the outcome is not known yet.
    pub in_flight: u64,
    /// The operation ended, and its outcome is stored.
    pub completed: u64,
    /// The outcome is unknown: the operation may or may not have taken effect.
    pub indeterminate: u64,
    /// Past retention: the key is refused.
    pub tombstones: u64,
    /// Damaged; their state is unknown.
    pub unreadable: u64,
}

impl Census {
    /// Counts one record in this state.
    pub fn count(&mut self, name: StateName) {
        *match name {
            StateName::InFlight => &mut self.in_flight,
            StateName::Completed => &mut self.completed,
            StateName::Indeterminate => &mut self.indeterminate,
            StateName::Tombstone => &mut self.tombstones,
        } += 1;
    }

    /// Counts a record in the state that it has at the time `now`.
    pub fn count_at(&mut self, record: &Record<Outcome>, now: Timestamp) {
        let aged = step(Some(record.clone()), Command::Age, now).record;
        if let Some(record) = aged {
            self.count(record.state.name());
        }
    }
}

/// A store knows which command it sent: any other reply is an internal error.
impl<O> Reply<O> {
    fn into_verdict(self) -> Result<Verdict<Grant, O>> {
        match self {
            Self::Verdict(verdict) => Ok(verdict),
            Self::Settled(_) | Self::Erased(_) | Self::Aged => Err(unexpected_reply()),
        }
    }

    fn into_settled(self) -> Result<Settled> {
        match self {
            Self::Settled(settled) => Ok(settled),
            Self::Verdict(_) | Self::Erased(_) | Self::Aged => Err(unexpected_reply()),
        }
    }

    fn into_erased(self) -> Result<Erased> {
        match self {
            Self::Erased(erased) => Ok(erased),
            Self::Verdict(_) | Self::Settled(_) | Self::Aged => Err(unexpected_reply()),
        }
    }
}

fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "internal error: a command received the reply of another command",
    )
}

/// The durability guarantees of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// Acknowledged writes survive a crash of the process.
    pub survives_process: bool,
    /// Acknowledged writes survive a power failure.
    pub survives_power: bool,
    /// A failover, or a crash of the store's server, may lose acknowledged writes.
    pub lossy_failover: bool,
    /// Other processes may use the same records at the same time.
    pub shared: bool,
}

/// Lists one page of a table. It reads record by record, so that no lock is held for the whole page.
///
/// `may_be` returns whether a value may be in a state; values that cannot match the query are not read.
/// After `is_wanted` returns false, the page ends.
fn list<V>(
    table: &Table<V>,
    query: &Query,
    may_be: impl Fn(&V, StateName) -> bool,
    read: impl Fn(RecordId) -> Result<Option<Reading>>,
    is_wanted: impl Fn() -> bool,
) -> Result<Page> {
    let start = Instant::now();
    let is_over = || {
        query
            .search_time
            .is_some_and(|most| start.elapsed() >= most)
            || !is_wanted()
    };
    let limit = query.limit.clamp(1, LIST_MAX) as usize;
    let mut readings = Vec::new();
    let mut after = query.after;
    loop {
        let fits = |value: &V| query.state.is_none_or(|state| may_be(value, state));
        let ids = table.ids_after(after, fits);
        if ids.is_empty() {
            return Ok(Page {
                readings,
                next: None,
            });
        }
        for id in ids {
            // The first record is read in any case, so that each page gets further.
            let is_first = after == query.after;
            if readings.len() == limit || !is_first && is_over() {
                return Ok(Page {
                    readings,
                    next: after,
                });
            }
            after = Some(id);
            let reading = match read(id) {
                // One damaged record must not hide the others. Reading it directly returns its error.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    crate::log_rarely!(warn, %error, "cannot read a record; it is omitted from the list");
                    None
                }
                reading => reading?,
            };
            let fits = |it: &Reading| query.fits(&it.record, it.now);
            readings.extend(reading.filter(fits));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn table(records: u8) -> Table<()> {
        let table = Table::new();
        for number in 0..records {
            table.with(RecordId([number; 16]), |entry| entry.put(()));
        }
        table
    }

    /// A page that nobody waits for is not searched to its end.
    #[test]
    fn a_list_ends_when_its_caller_is_gone() {
        let read = Cell::new(0);
        let count = |_| {
            read.set(read.get() + 1);
            Ok(None)
        };
        let query = Query::default();
        let is_wanted = || read.get() < 3;
        let page = list(&table(50), &query, |(), _| true, count, is_wanted).unwrap();
        assert_eq!(read.get(), 3);
        assert_eq!(page.next, Some(RecordId([2; 16])));
    }

    #[test]
    fn each_page_gets_further_in_no_time() {
        let read = Cell::new(0);
        let count = |_| {
            read.set(read.get() + 1);
            Ok(None)
        };
        let mut query = Query {
            search_time: Some(Duration::ZERO),
            ..Query::default()
        };
        for expected in 1..50 {
            let page = list(&table(50), &query, |(), _| true, count, || true).unwrap();
            assert_eq!(read.get(), expected);
            query.after = page.next;
        }
        let page = list(&table(50), &query, |(), _| true, count, || true).unwrap();
        assert_eq!((read.get(), page.next), (50, None));
    }
}
