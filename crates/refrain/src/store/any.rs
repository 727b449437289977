//! A type-erased store, at the cost of one boxed future per call, unless the store starts claims and settlements
//! without a box.

use std::{any::Any, fmt, path::Path, pin::Pin, sync::Arc, time::Duration};

use super::{
    Census, Embedded, FACT, Guarantees, Memory, Meter, Op, Page, Query, Reading, Store,
    StoreFuture, Watch, embedded,
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
    fn metered<'a, T: Send + 'a>(
        &'a self,
        op: Op,
        answer: BoxedStoreFuture<'a, T>,
    ) -> BoxedStoreFuture<'a, T> {
        self.metered_if(op, answer, |_| true)
    }

    /// Like [`metered`](Self::metered), for responses that may contain errors.
    fn metered_if<'a, T: Send + 'a>(
        &'a self,
        op: Op,
        answer: BoxedStoreFuture<'a, T>,
        is_ok: fn(&T) -> bool,
    ) -> BoxedStoreFuture<'a, T> {
        let Some(meter) = &self.meter else {
            return answer;
        };
        Box::pin(async move {
            let asked = tokio::time::Instant::now();
            let answer = answer.await;
            let is_ok = answer.as_ref().is_ok_and(is_ok);
            meter.answered(op, is_ok, asked.elapsed());
            answer
        })
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
        let all_ok = |verdicts: &Vec<Result<Verdict>>| verdicts.iter().all(Result::is_ok);
        let answer = self.store.claim(claims);
        self.metered_if(Op::Claim, answer, all_ok).await
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
