//! A type-erased store, its replies and their latency: one boxed future per call, unless the store starts claims and
//! settlements without a box.

use std::{
    any::Any,
    fmt::{self, Debug},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Census, Embedded, FACT, Guarantees, Memory, Page, Query, Reading, Store, Watch,
    embedded::{self, QueuedReply},
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

    /// Reports the latency of a call to the meter, if there is one.
    fn metered<'a, T>(&'a self, op: Op, reply: BoxedStoreFuture<'a, T>) -> StoreFuture<'a, T> {
        StoreFuture::of(ReplySource::Boxed(reply)).metered(op, self.meter.as_ref())
    }

    /// Asks for one claim. The reply borrows neither the store nor the claim.
    pub(crate) fn claim_one(&self, claim: &Claim) -> StoreFuture<'static, Verdict> {
        let started = self.store.start_claim(claim);
        started
            .unwrap_or_else(|| StoreFuture::boxed(claim_alone(self.store.clone(), claim.clone())))
            .metered(Op::Claim, self.meter.as_ref())
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

type BoxedStoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The reply of a store. Ready at the first poll if the store knew it at once.
///
/// # Cancellation
/// Dropped, the claim or settlement may still happen, as if its reply were lost.
pub struct StoreFuture<'a, T> {
    reply: ReplySource<'a, T>,
    /// Reports how long the reply took, and which operation it was.
    meter: Option<(Arc<dyn Meter>, Op, Instant)>,
}

enum ReplySource<'a, T> {
    /// Known at once; `None` once returned.
    Ready(Option<Result<T>>),
    /// From the writer of the embedded store.
    Queued(QueuedReply<T>),
    /// From any other store.
    Boxed(BoxedStoreFuture<'a, T>),
}

impl<'a, T> StoreFuture<'a, T> {
    /// A reply that is known.
    pub fn ready(reply: Result<T>) -> Self {
        Self::of(ReplySource::Ready(Some(reply)))
    }

    /// A reply that comes later.
    pub fn boxed(future: impl Future<Output = Result<T>> + Send + 'a) -> Self {
        Self::of(ReplySource::Boxed(Box::pin(future)))
    }

    /// A reply of the embedded store's writer.
    pub(super) fn queued(reply: QueuedReply<T>) -> Self {
        Self::of(ReplySource::Queued(reply))
    }

    fn of(reply: ReplySource<'a, T>) -> Self {
        Self { reply, meter: None }
    }

    /// Reports the time from now until the reply.
    fn metered(mut self, op: Op, meter: Option<&Arc<dyn Meter>>) -> Self {
        self.meter = meter.map(|meter| (meter.clone(), op, Instant::now()));
        self
    }
}

impl<T: Unpin> Future for StoreFuture<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let reply = ready!(match &mut self.reply {
            ReplySource::Ready(reply) => reply.take().map_or(Poll::Pending, Poll::Ready),
            ReplySource::Queued(reply) => Pin::new(reply).poll(context),
            ReplySource::Boxed(reply) => reply.as_mut().poll(context),
        });
        if let Some((meter, op, asked)) = &self.meter {
            meter.answered(*op, reply.is_ok(), asked.elapsed());
        }
        Poll::Ready(reply)
    }
}

impl<T> Debug for StoreFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreFuture")
    }
}

/// The operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// One claim or a batch of claims.
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

async fn claim_alone(store: Arc<dyn StoreObject>, claim: Claim) -> Result<Verdict> {
    let mut verdicts = store.claim(std::slice::from_ref(&claim)).await?;
    verdicts.pop().unwrap_or_else(|| {
        Err(Error::new(
            ErrorKind::Unavailable,
            "the store returned no reply to a claim",
        ))
    })
}

/// Object-safe form of [`Store`].
trait StoreObject: fmt::Debug + Send + Sync {
    fn claim<'a>(&'a self, claims: &'a [Claim]) -> BoxedStoreFuture<'a, Vec<Result<Verdict>>>;
    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> StoreFuture<'_, Settled>;
    fn start_claim(&self, claim: &Claim) -> Option<StoreFuture<'static, Verdict>>;
    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> BoxedStoreFuture<'_, Settled>;
    fn read(&self, id: RecordId) -> BoxedStoreFuture<'_, Option<Reading>>;
    fn list<'a>(&'a self, query: &'a Query) -> BoxedStoreFuture<'a, Page>;
    fn erase(&self, id: RecordId) -> BoxedStoreFuture<'_, Erased>;
    fn census(&self) -> BoxedStoreFuture<'_, Census>;
    fn sweep(&self, at_most: u32) -> BoxedStoreFuture<'_, u32>;
    fn guarantees(&self) -> Guarantees;
    fn watch(&self, id: RecordId) -> Option<Watch>;
    fn secret(&self) -> &Secret;
}

impl<S: Store> StoreObject for S {
    fn claim<'a>(&'a self, claims: &'a [Claim]) -> BoxedStoreFuture<'a, Vec<Result<Verdict>>> {
        Box::pin(Store::claim(self, claims))
    }

    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> StoreFuture<'_, Settled> {
        Store::start_settle(self, id, fence, end)
    }

    fn start_claim(&self, claim: &Claim) -> Option<StoreFuture<'static, Verdict>> {
        Store::start_claim(self, claim)
    }

    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> BoxedStoreFuture<'_, Settled> {
        Box::pin(Store::renew(self, id, fence, lease))
    }

    fn read(&self, id: RecordId) -> BoxedStoreFuture<'_, Option<Reading>> {
        Box::pin(Store::read(self, id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxedStoreFuture<'a, Page> {
        Box::pin(Store::list(self, query))
    }

    fn erase(&self, id: RecordId) -> BoxedStoreFuture<'_, Erased> {
        Box::pin(Store::erase(self, id))
    }

    fn census(&self) -> BoxedStoreFuture<'_, Census> {
        Box::pin(Store::census(self))
    }

    fn sweep(&self, at_most: u32) -> BoxedStoreFuture<'_, u32> {
        Box::pin(Store::sweep(self, at_most))
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

/// Returns the boxed futures directly: another async layer would only copy the arguments.
impl Store for AnyStore {
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Verdict>>> {
        let asked = Instant::now();
        let reply = self.store.claim(claims).await;
        if let Some(meter) = &self.meter {
            let all_ok = |verdicts: &Vec<Result<Verdict>>| verdicts.iter().all(Result::is_ok);
            let is_ok = reply.as_ref().is_ok_and(all_ok);
            meter.answered(Op::Claim, is_ok, asked.elapsed());
        }
        reply
    }

    fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send {
        let settling = self.store.settle(id, fence, end);
        settling.metered(Op::Settle, self.meter.as_ref())
    }

    fn start_claim(&self, claim: &Claim) -> Option<StoreFuture<'static, Verdict>> {
        Some(self.claim_one(claim))
    }

    fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> impl Future<Output = Result<Settled>> + Send {
        self.metered(Op::Renew, self.store.renew(id, fence, lease))
    }

    fn read(&self, id: RecordId) -> impl Future<Output = Result<Option<Reading>>> + Send {
        self.metered(Op::Read, self.store.read(id))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut page = self.metered(Op::List, self.store.list(query)).await?;
        // The engine's own records are not requests.
        page.readings
            .retain(|reading| reading.record.fingerprint.0 != FACT);
        Ok(page)
    }

    fn erase(&self, id: RecordId) -> impl Future<Output = Result<Erased>> + Send {
        self.metered(Op::Erase, self.store.erase(id))
    }

    fn census(&self) -> impl Future<Output = Result<Census>> + Send {
        self.metered(Op::Census, self.store.census())
    }

    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send {
        self.metered(Op::Sweep, self.store.sweep(at_most))
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
