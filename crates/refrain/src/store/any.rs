//! Any store behind one type, at the price of one boxed future a call; the memory store, which answers at once, without that.

use std::{any::Any, fmt, path::Path, pin::Pin, sync::Arc, time::Duration};

use super::{Embedded, Guarantees, Memory, Page, Query, Reading, Store, embedded};
use crate::{
    Error, ErrorKind, Result,
    key::{RecordId, Secret},
    policy::redacted,
    record::{Claim, Fence, Settled, Settlement, Verdict},
};

/// Any store. Clones share it.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn Erased>,
    /// The same store, if it is one that answers at once.
    memory: Option<Memory>,
}

impl AnyStore {
    /// Takes a store.
    pub fn new(store: impl Store) -> Self {
        let any: &dyn Any = &store;
        if let Some(any) = any.downcast_ref::<Self>() {
            return any.clone();
        }
        let memory = any.downcast_ref::<Memory>().cloned();
        let store = Arc::new(store);
        Self { store, memory }
    }

    /// The answer to a claim, if the store has it at once.
    pub(crate) fn claim_now(&self, claim: &Claim) -> Option<Result<Verdict>> {
        Some(self.memory.as_ref()?.claim_one(claim))
    }

    /// What becomes of a settlement, if the store can tell at once.
    pub(crate) fn settle_now(
        &self,
        id: RecordId,
        fence: Fence,
        end: impl FnOnce() -> Settlement,
    ) -> Option<Result<Settled>> {
        Some(self.memory.as_ref()?.end_one(id, fence, end()))
    }

    /// Opens `memory:` or `file:DIR`.
    ///
    /// # Errors
    /// When the address is not one of these, or the store cannot be opened.
    pub async fn open(address: &str) -> Result<Self> {
        Self::open_with(address, embedded::Options::default()).await
    }

    /// Opens `memory:` or `file:DIR`, the latter with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(address: &str, options: embedded::Options) -> Result<Self> {
        match address.split_once(':') {
            Some(("memory", "")) => Ok(Self::new(Memory::new())),
            Some(("file", folder)) if !folder.is_empty() => {
                let folder = Path::new(folder).to_path_buf();
                let opening = tokio::task::spawn_blocking(move || Embedded::open(&folder, options));
                let opened = opening.await.map_err(|panic| {
                    Error::new(ErrorKind::Unavailable, "opening the store failed")
                        .with_source(panic)
                })?;
                Ok(Self::new(opened?))
            }
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "`{}` is no store that this build knows; write memory: or file:DIR",
                    redacted(address)
                ),
            )),
        }
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// [`Store`] as an object.
trait Erased: fmt::Debug + Send + Sync {
    fn claim<'a>(&'a self, claims: &'a [Claim]) -> Boxed<'a, Vec<Result<Verdict>>>;
    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Boxed<'_, Settled>;
    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Boxed<'_, Settled>;
    fn read(&self, id: RecordId) -> Boxed<'_, Option<Reading>>;
    fn list<'a>(&'a self, query: &'a Query) -> Boxed<'a, Page>;
    fn sweep(&self, at_most: u32) -> Boxed<'_, u32>;
    fn guarantees(&self) -> Guarantees;
    fn secret(&self) -> &Secret;
}

impl<S: Store> Erased for S {
    fn claim<'a>(&'a self, claims: &'a [Claim]) -> Boxed<'a, Vec<Result<Verdict>>> {
        Box::pin(Store::claim(self, claims))
    }

    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Boxed<'_, Settled> {
        Box::pin(Store::settle(self, id, fence, end))
    }

    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Boxed<'_, Settled> {
        Box::pin(Store::renew(self, id, fence, lease))
    }

    fn read(&self, id: RecordId) -> Boxed<'_, Option<Reading>> {
        Box::pin(Store::read(self, id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Boxed<'a, Page> {
        Box::pin(Store::list(self, query))
    }

    fn sweep(&self, at_most: u32) -> Boxed<'_, u32> {
        Box::pin(Store::sweep(self, at_most))
    }

    fn guarantees(&self) -> Guarantees {
        Store::guarantees(self)
    }

    fn secret(&self) -> &Secret {
        Store::secret(self)
    }
}

/// The boxed futures as they are: another layer of state machines would only copy its arguments about.
impl Store for AnyStore {
    async fn claim(&self, claims: &[Claim]) -> Result<Vec<Result<Verdict>>> {
        self.store.claim(claims).await
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

    fn read(&self, id: RecordId) -> impl Future<Output = Result<Option<Reading>>> + Send {
        self.store.read(id)
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.store.list(query).await
    }

    fn sweep(&self, at_most: u32) -> impl Future<Output = Result<u32>> + Send {
        self.store.sweep(at_most)
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn secret(&self) -> &Secret {
        self.store.secret()
    }
}
