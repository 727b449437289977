//! Where records live: the trait that every store implements, and the stores that need no server.
//!
//! Durations, never moments, cross this trait: the store's own clock decides.
//! Claims, settlements and renewals are each one atomic step, decided as [`record::step`](crate::record::step) decides.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::{
    ErrorKind, Result,
    clock::Timestamp,
    key::{RecordId, Secret},
    record::{Claim, Erased, Fence, Record, Settled, Settlement, State, Verdict},
};

mod any;
pub use any::AnyStore;

mod census;
pub use census::Census;

pub mod embedded;
pub use embedded::Embedded;

mod future;
pub use future::StoreFuture;

mod memory;
pub use memory::Memory;

mod meter;
pub use meter::{Meter, Op};

mod table;
pub(crate) use table::Table;

mod tiered;
pub use tiered::{Front, Tiered};

mod watch;
pub use watch::{Watch, Watches};

/// The most records that one page lists.
pub const LIST_MAX: u32 = 1_000;

/// The fingerprint of what an engine remembers for itself. No request has it: fingerprints are keyed digests.
/// [`AnyStore`] leaves such records out of lists.
pub(crate) const FACT: [u8; 16] = *b"refrain: a fact.";

/// Holds records. Few primitives; the only default bodies are those of [`start_claim`](Self::start_claim) and
/// [`start_settle`](Self::start_settle), which save the allocation of a future and decide nothing.
///
/// # Cancellation
/// Every future here may be dropped: what was asked may then still happen, as when an answer is lost on its way.
pub trait Store: Debug + Send + Sync + 'static {
    /// Asks for the right to run, for each of `claims` on its own; the batch only shares the trip.
    ///
    /// A granted claim is durable, as far as [`guarantees`](Self::guarantees) say, when it is answered.
    fn claim(&self, claims: &[Claim]) -> impl Future<Output = Result<Vec<Result<Verdict>>>> + Send;

    /// Ends a claim.
    fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Starts one claim without borrowing its arguments; the reply may be ready at once.
    /// `None` if the store has no shorter way than [`claim`](Self::claim), which is then called.
    fn start_claim(&self, _claim: &Claim) -> Option<StoreFuture<'static, Verdict>> {
        None
    }

    /// As [`settle`](Self::settle); the reply may be ready at once.
    fn start_settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> StoreFuture<'_, Settled> {
        StoreFuture::boxed(self.settle(id, fence, end))
    }

    /// Makes a claim stand for `lease` from now on.
    fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// What the store holds under this identity.
    ///
    /// A store that has visibly lost its records answers with an error, and not that there is none.
    fn read(&self, id: RecordId) -> impl Future<Output = Result<Option<Reading>>> + Send;

    /// Records in the order of their identities, for operators.
    fn list(&self, query: &Query) -> impl Future<Output = Result<Page>> + Send;

    /// Takes a record away whose end is known; one that is in flight or indeterminate stays.
    ///
    /// For operators. The key is free again, and a retry under it runs.
    /// Durable, as far as [`guarantees`](Self::guarantees) say, when it is answered.
    fn erase(&self, id: RecordId) -> impl Future<Output = Result<Erased>> + Send;

    /// How many records there are in each state, without reading outcomes.
    fn census(&self) -> impl Future<Output = Result<Census>> + Send;

    /// Removes what is past its time, about `at_most` records of it; answers how many went.
    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send;

    /// What this store can promise.
    fn guarantees(&self) -> Guarantees;

    /// Tells from now on when this record may have been settled, be it by another process.
    ///
    /// A hint to ask again, and no more than that, for those whose claim on it found it in flight. `None` where the store cannot tell, or nobody else can settle.
    fn watch(&self, id: RecordId) -> Option<Watch>;

    /// The key of this store's keyed digests.
    fn secret(&self) -> &Secret;
}

/// One store, shared: by an engine, and by those who ask it directly.
impl<S: Store> Store for Arc<S> {
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Verdict>>> {
        S::claim(self, claims).await
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        S::settle(self, id, fence, end).await
    }

    fn start_claim(&self, claim: &Claim) -> Option<StoreFuture<'static, Verdict>> {
        S::start_claim(self, claim)
    }

    fn start_settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> StoreFuture<'_, Settled> {
        S::start_settle(self, id, fence, end)
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

/// A record as it was when the store looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Which record.
    pub id: RecordId,
    /// What was held.
    pub record: Record,
    /// The store's clock at that moment.
    pub now: Timestamp,
}

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Only those in this state.
    pub state: Option<StateName>,
    /// Only those behind this identity: where the page before ended.
    pub after: Option<RecordId>,
    /// How many at the most.
    pub limit: u32,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            state: None,
            after: None,
            limit: 100,
        }
    }
}

/// One page of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records, in the order of their identities.
    pub readings: Vec<Reading>,
    /// Where to go on; `None` when this is the end.
    pub next: Option<RecordId>,
}

/// A state without what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateName {
    /// Claimed, its end not known yet.
    InFlight,
    /// Ended, outcome kept.
    Completed,
    /// It may or may not have taken effect.
    Indeterminate,
    /// Past retention.
    Tombstone,
}

impl<O> State<O> {
    /// Which state this is.
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

/// What a store can promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// What was acknowledged survives the death of the process.
    pub survives_process: bool,
    /// What was acknowledged survives the loss of power.
    pub survives_power: bool,
    /// A failover, or a crash of the store's own server, may lose what was acknowledged.
    pub lossy_failover: bool,
    /// Other processes may use the same records at the same time.
    pub shared: bool,
}

impl Settlement {
    /// The same settlement with the record's identity written into its outcome.
    #[must_use]
    pub fn sealed(self, id: RecordId) -> Self {
        match self {
            Self::Complete {
                outcome,
                retention,
                remember,
            } => Self::Complete {
                outcome: outcome.sealed(id),
                retention,
                remember,
            },
            other => other,
        }
    }
}

/// One page of a table, read record by record so that nobody waits for the whole of it.
///
/// `may_be` tells what a value may turn out to be: what cannot fit is not read.
fn list<V>(
    table: &Table<V>,
    query: &Query,
    may_be: impl Fn(&V, StateName) -> bool,
    read: impl Fn(RecordId) -> Result<Option<Reading>>,
) -> Result<Page> {
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
            if readings.len() == limit {
                return Ok(Page {
                    readings,
                    next: after,
                });
            }
            after = Some(id);
            let reading = match read(id) {
                // One damaged record must not hide the others; asked for by itself it answers with its error.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::warn!(%error, "a record is left out of a list");
                    None
                }
                reading => reading?,
            };
            let fits = |name| query.state.is_none_or(|state| state == name);
            readings.extend(reading.filter(|reading| fits(reading.record.state.name())));
        }
    }
}
