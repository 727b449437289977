//! A type-erased store, and the latency of its replies: one boxed future per call.

use std::{
    any::Any,
    fmt::{self, Debug},
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Census, Embedded, FACT, Guarantees, Memory, Page, Query, Reading, Store, Watch,
    embedded::{self, Movable},
};
use crate::{
    Error, ErrorKind, Result,
    key::{RecordId, Secret},
    policy::{
        redacted,
        schemes::{Backend, BackendId, alternatives, stores},
    },
    record::{Claim, Erased, Fence, Settled, Settlement, Verdict},
};

/// Any store. Clones share the same store.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn StoreObject>,
    /// Observer of the store's latency.
    meter: Option<Arc<dyn Meter>>,
    /// Why the store may lose acknowledged writes.
    losses: Arc<str>,
}

impl AnyStore {
    /// Wraps a store.
    pub fn new(store: impl Store) -> Self {
        let any: &dyn Any = &store;
        if let Some(any) = any.downcast_ref::<Self>() {
            return any.clone();
        }
        Self {
            store: Arc::new(store),
            meter: None,
            losses: Arc::default(),
        }
    }

    /// Adds the reasons why the store [may lose](Guarantees::lossy_failover) acknowledged writes, for messages.
    #[must_use]
    pub fn with_losses(mut self, losses: impl Into<Arc<str>>) -> Self {
        self.losses = losses.into();
        self
    }

    /// Why the store may lose acknowledged writes; empty if unknown.
    #[must_use]
    pub fn losses(&self) -> &str {
        &self.losses
    }

    /// Adds an observer of the store's latency.
    #[must_use]
    pub fn with_meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Like [`Store::claim`]. The reply does not borrow the store, so that it can outlive its caller.
    pub(crate) fn send_claim(&self, claim: Claim) -> BoxedReply<'static, Verdict> {
        self.store.clone().claim(claim, self.meter.clone())
    }

    /// Opens `memory:` or `file:DIR`.
    ///
    /// # Errors
    /// If the address is not one of these, or if the store cannot be opened.
    pub async fn open(address: &str) -> Result<Self> {
        Self::open_with(address, embedded::Options::default()).await
    }

    /// Opens `memory:` or `file:DIR`. The options apply to `file:DIR`.
    ///
    /// # Errors
    /// The same as [`open`](Self::open).
    pub async fn open_with(address: &str, options: embedded::Options) -> Result<Self> {
        let backend = Backend::of_store(address).map(|it| it.id);
        match (backend, address.split_once(':')) {
            (Some(BackendId::Memory), _) => Ok(Self::new(Memory::new())),
            (Some(BackendId::Embedded), Some((_, folder))) => {
                if let Some(slot) = options.movable.clone() {
                    let store = Movable::open(Path::new(folder), options).await?;
                    slot.set(store.clone());
                    return Ok(Self::new(store));
                }
                let folder = Path::new(folder).to_path_buf();
                let opening = tokio::task::spawn_blocking(move || Embedded::open(&folder, options));
                let opened = opening.await.map_err(|panic| {
                    Error::new(ErrorKind::Unavailable, "opening the store failed")
                        .with_source(panic)
                })?;
                Ok(Self::new(opened?))
            }
            _ => {
                let own = stores().filter(|(_, it)| it.feature.is_none());
                let own = alternatives(own.map(|(_, it)| it.usage()));
                let address = redacted(address);
                let message = format!("unsupported store `{address}`; write {own}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// The reply of a type-erased store.
pub(crate) type BoxedReply<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Claim the right to execute.
    Claim,
    /// Settle a claim.
    Settle,
    /// Renew a lease.
    Renew,
    /// Read one record.
    Read,
    /// List a page of records.
    List,
    /// Erase a record.
    Erase,
    /// Count records by state.
    Census,
    /// Sweep expired records.
    Sweep,
}

impl Op {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Claim,
        Self::Settle,
        Self::Renew,
        Self::Read,
        Self::List,
        Self::Erase,
        Self::Census,
        Self::Sweep,
    ];

    /// The name of the operation in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Read => "read",
            Self::List => "list",
            Self::Erase => "erase",
            Self::Census => "census",
            Self::Sweep => "sweep",
        }
    }
}

/// Observes every call to a store. Set with [`AnyStore::with_meter`](AnyStore::with_meter).
///
/// Called while a request is being served: it must be fast, and must not block.
pub trait Meter: Debug + Send + Sync + 'static {
    /// Called after each operation with its duration; `is_ok` is whether it succeeded.
    fn answered(&self, op: Op, is_ok: bool, took: Duration);
}

/// Awaits a reply, and reports its latency to the meter, if there is one.
async fn metered<T>(meter: Option<&Arc<dyn Meter>>, op: Op, reply: BoxedReply<'_, T>) -> Result<T> {
    let asked = Instant::now();
    let reply = reply.await;
    report(meter, op, &reply, asked);
    reply
}

fn report<T>(meter: Option<&Arc<dyn Meter>>, op: Op, reply: &Result<T>, asked: Instant) {
    if let Some(meter) = meter {
        meter.answered(op, reply.is_ok(), asked.elapsed());
    }
}

/// Object-safe form of [`Store`].
trait StoreObject: fmt::Debug + Send + Sync {
    /// Owns the store and reports its latency, so that the whole reply is one allocation.
    fn claim(
        self: Arc<Self>,
        claim: Claim,
        meter: Option<Arc<dyn Meter>>,
    ) -> BoxedReply<'static, Verdict>;
    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> BoxedReply<'_, Settled>;
    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> BoxedReply<'_, Settled>;
    fn read(&self, id: RecordId) -> BoxedReply<'_, Option<Reading>>;
    fn list<'a>(&'a self, query: &'a Query) -> BoxedReply<'a, Page>;
    fn erase(&self, id: RecordId) -> BoxedReply<'_, Erased>;
    fn census(&self) -> BoxedReply<'_, Census>;
    fn sweep(&self, at_most: u32) -> BoxedReply<'_, u32>;
    fn accepts_claims(&self) -> Result<()>;
    fn bytes_on_disk(&self) -> Option<u64>;
    fn guarantees(&self) -> Guarantees;
    fn watch(&self, id: RecordId) -> Option<Watch>;
    fn secret(&self) -> &Secret;
}

impl<S: Store> StoreObject for S {
    fn claim(
        self: Arc<Self>,
        claim: Claim,
        meter: Option<Arc<dyn Meter>>,
    ) -> BoxedReply<'static, Verdict> {
        Box::pin(async move {
            let asked = Instant::now();
            let reply = Store::claim(&*self, claim).await;
            report(meter.as_ref(), Op::Claim, &reply, asked);
            reply
        })
    }

    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> BoxedReply<'_, Settled> {
        Box::pin(Store::settle(self, id, fence, end))
    }

    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> BoxedReply<'_, Settled> {
        Box::pin(Store::renew(self, id, fence, lease))
    }

    fn read(&self, id: RecordId) -> BoxedReply<'_, Option<Reading>> {
        Box::pin(Store::read(self, id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxedReply<'a, Page> {
        Box::pin(Store::list(self, query))
    }

    fn erase(&self, id: RecordId) -> BoxedReply<'_, Erased> {
        Box::pin(Store::erase(self, id))
    }

    fn census(&self) -> BoxedReply<'_, Census> {
        Box::pin(Store::census(self))
    }

    fn sweep(&self, at_most: u32) -> BoxedReply<'_, u32> {
        Box::pin(Store::sweep(self, at_most))
    }

    fn accepts_claims(&self) -> Result<()> {
        Store::accepts_claims(self)
    }

    fn bytes_on_disk(&self) -> Option<u64> {
        Store::bytes_on_disk(self)
    }

    fn guarantees(&self) -> Guarantees {
        Store::guarantees(self)
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        Store::watch(self, id)
    }

    fn secret(&self) -> &Secret {
        Store::secret(self)
    }
}

/// Boxes each future at once: the future of an async fn would store the arguments as well.
impl Store for AnyStore {
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Verdict>> + Send {
        self.send_claim(claim)
    }

    fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send {
        metered(
            self.meter.as_ref(),
            Op::Settle,
            self.store.settle(id, fence, end),
        )
    }

    fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> impl Future<Output = Result<Settled>> + Send {
        metered(
            self.meter.as_ref(),
            Op::Renew,
            self.store.renew(id, fence, lease),
        )
    }

    fn read(&self, id: RecordId) -> impl Future<Output = Result<Option<Reading>>> + Send {
        metered(self.meter.as_ref(), Op::Read, self.store.read(id))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut page = metered(self.meter.as_ref(), Op::List, self.store.list(query)).await?;
        // The engine's own records are not requests.
        page.readings
            .retain(|reading| reading.record.fingerprint.0 != FACT);
        Ok(page)
    }

    fn erase(&self, id: RecordId) -> impl Future<Output = Result<Erased>> + Send {
        metered(self.meter.as_ref(), Op::Erase, self.store.erase(id))
    }

    fn census(&self) -> impl Future<Output = Result<Census>> + Send {
        metered(self.meter.as_ref(), Op::Census, self.store.census())
    }

    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send {
        metered(self.meter.as_ref(), Op::Sweep, self.store.sweep(at_most))
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
