//! A type-erased store, and the latency of its replies: one boxed future per call.

use std::{
    any::Any,
    fmt::{self, Debug},
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Census, Embedded, FACT, Guarantees, Memory, Page, Query, Reading, ScopeKeyPage, Store,
    StoreEncryption, Watch,
    embedded::{self, Movable},
    encrypting::not_configured,
};
use crate::{
    Encryption, Error, ErrorKind, Result,
    key::{RecordId, Secret},
    policy::{
        redacted,
        schemes::{Backend, BackendId, alternatives, stores},
    },
    record::{Claim, Erased, Fence, Origin, ScopeDigest, Settled, Settlement, State, Verdict},
};

/// Any store. Clones share the same store.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn StoreObject>,
    /// Observer of the store's latency.
    meter: Option<Arc<dyn Meter>>,
    /// Why the store may lose acknowledged writes.
    losses: Arc<str>,
    /// The keys that encrypt records, if they are encrypted.
    encrypting: Option<Arc<StoreEncryption>>,
    /// Whether encrypted outcomes are returned as they are stored.
    is_raw: bool,
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
            encrypting: None,
            is_raw: false,
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

    /// [Encrypts](crate::encryption) records from now on, and decrypts those that are encrypted.
    #[must_use]
    pub fn with_encryption(mut self, keys: Encryption) -> Self {
        let is_shared = self.store.guarantees().shared;
        self.encrypting = Some(Arc::new(StoreEncryption::new(keys, is_shared)));
        self
    }

    /// The same store without encryption: takes and returns records as they are stored. For callers that encrypt and
    /// decrypt themselves, such as another process.
    #[must_use]
    pub fn as_stored(&self) -> Self {
        Self {
            encrypting: None,
            is_raw: true,
            ..self.clone()
        }
    }

    /// The keys that encrypt and decrypt records, if there are any.
    #[must_use]
    pub fn encryption(&self) -> Option<&Encryption> {
        self.encrypting.as_ref().map(|it| &it.keys)
    }

    pub(super) fn encrypting(&self) -> Option<&StoreEncryption> {
        self.encrypting.as_deref()
    }

    pub(super) fn forget_scope_key(&self, scope: ScopeDigest) {
        if let Some(encrypting) = &self.encrypting {
            encrypting.forget(scope);
        }
    }

    /// Like [`Store::claim`]. The reply does not borrow the store, so that it can outlive its caller.
    pub(crate) fn send_claim(&self, claim: Claim) -> BoxedReply<'static, Verdict> {
        let (meter, encrypting) = (self.meter.clone(), self.encrypting.clone());
        let claiming = Claiming {
            claim,
            encrypting,
            is_raw: self.is_raw,
        };
        self.store.clone().claim(claiming, meter)
    }

    /// Like [`Store::settle`], for a record of a known origin.
    pub(crate) fn settle_of<'a>(
        &'a self,
        origin: &Origin,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send + use<'a> {
        let settling: BoxedReply<'a, _> = match &self.encrypting {
            Some(encrypting) if matches!(end, Settlement::Complete { .. }) => {
                let scope = origin.scope_digest();
                Box::pin(self.settle_encrypted(encrypting, scope, (id, fence), end))
            }
            _ => self.store.settle(id, fence, end),
        };
        metered(self.meter.as_ref(), Op::Settle, settling)
    }

    async fn settle_encrypted(
        &self,
        encrypting: &StoreEncryption,
        scope: ScopeDigest,
        (id, fence): (RecordId, Fence),
        end: Settlement,
    ) -> Result<Settled> {
        let end = encrypting.settlement(&*self.store, scope, (id, fence), end);
        self.store.settle(id, fence, end.await?).await
    }

    /// The scope of a record; zeros if it is not known.
    async fn scope_of(&self, id: RecordId) -> Result<ScopeDigest> {
        let found = self.store.read(id).await.map_err(Error::unapplied)?;
        Ok(found.map_or(ScopeDigest::default(), |it| it.record.trace.scope_digest()))
    }

    /// Decrypts the records of a list. A record that cannot be decrypted stays as it is, so that it does not hide the others.
    async fn decrypt_page(&self, encrypting: &StoreEncryption, page: &mut Page) {
        for reading in &mut page.readings {
            match encrypting.reading(&*self.store, reading.clone()).await {
                Ok(decrypted) => *reading = decrypted,
                Err(error) => {
                    crate::log_rarely!(warn, %error, "cannot decrypt a record of a list");
                }
            }
        }
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

/// Rejects an outcome that cannot be decrypted without a key.
fn readable(verdict: Verdict, id: RecordId) -> Result<Verdict> {
    match verdict {
        Verdict::Replay(outcome) if outcome.is_encrypted() => Err(not_configured(id)),
        verdict => Ok(verdict),
    }
}

/// A claim, and what happens to an encrypted outcome.
pub(super) struct Claiming {
    claim: Claim,
    encrypting: Option<Arc<StoreEncryption>>,
    is_raw: bool,
}

/// Object-safe form of [`Store`].
pub(super) trait StoreObject: fmt::Debug + Send + Sync {
    /// Owns the store and reports its latency, so that the whole reply is one allocation.
    fn claim(
        self: Arc<Self>,
        claiming: Claiming,
        meter: Option<Arc<dyn Meter>>,
    ) -> BoxedReply<'static, Verdict>;
    fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> BoxedReply<'_, Settled>;
    fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> BoxedReply<'_, Settled>;
    fn read(&self, id: RecordId) -> BoxedReply<'_, Option<Reading>>;
    fn list<'a>(&'a self, query: &'a Query) -> BoxedReply<'a, Page>;
    fn erase(&self, id: RecordId) -> BoxedReply<'_, Erased>;
    fn census(&self) -> BoxedReply<'_, Census>;
    fn sweep(&self, at_most: u32) -> BoxedReply<'_, u32>;
    fn scope_key(&self, scope: ScopeDigest) -> BoxedReply<'_, Option<Bytes>>;
    fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> BoxedReply<'_, Option<Bytes>>;
    fn scope_keys(&self, cursor: Option<u64>) -> BoxedReply<'_, ScopeKeyPage>;
    fn accepts_claims(&self) -> Result<()>;
    fn bytes_on_disk(&self) -> Option<u64>;
    fn guarantees(&self) -> Guarantees;
    fn watch(&self, id: RecordId) -> Option<Watch>;
    fn secret(&self) -> &Secret;
}

impl<S: Store> StoreObject for S {
    fn claim(
        self: Arc<Self>,
        claiming: Claiming,
        meter: Option<Arc<dyn Meter>>,
    ) -> BoxedReply<'static, Verdict> {
        Box::pin(async move {
            let Claiming {
                claim,
                encrypting,
                is_raw,
            } = claiming;
            let (asked, id) = (Instant::now(), claim.id);
            let reply = match encrypting {
                // Boxed, so that claims without encryption do not carry its size.
                Some(encrypting) => {
                    let claiming = async { encrypting.claim(&*self, claim).await };
                    Box::pin(claiming).await
                }
                None => Store::claim(&*self, claim).await,
            };
            let reply = match is_raw {
                true => reply,
                false => reply.and_then(|verdict| readable(verdict, id)),
            };
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

    fn scope_key(&self, scope: ScopeDigest) -> BoxedReply<'_, Option<Bytes>> {
        Box::pin(Store::scope_key(self, scope))
    }

    fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> BoxedReply<'_, Option<Bytes>> {
        Box::pin(Store::replace_scope_key(self, scope, expected, key))
    }

    fn scope_keys(&self, cursor: Option<u64>) -> BoxedReply<'_, ScopeKeyPage> {
        Box::pin(Store::scope_keys(self, cursor))
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

    /// With encryption, reads the record first: the scope decides the key of an outcome.
    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        let settling: BoxedReply<'_, _> = match &self.encrypting {
            Some(encrypting) if matches!(end, Settlement::Complete { .. }) => {
                Box::pin(async move {
                    let scope = self.scope_of(id).await?;
                    self.settle_encrypted(encrypting, scope, (id, fence), end)
                        .await
                })
            }
            _ => self.store.settle(id, fence, end),
        };
        metered(self.meter.as_ref(), Op::Settle, settling).await
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

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        let reading = metered(self.meter.as_ref(), Op::Read, self.store.read(id)).await?;
        let (Some(reading), Some(encrypting)) = (&reading, &self.encrypting) else {
            return match reading.as_ref().map(|it| &it.record.state) {
                Some(State::Completed { outcome, .. })
                    if outcome.is_encrypted() && !self.is_raw =>
                {
                    Err(not_configured(id))
                }
                _ => Ok(reading),
            };
        };
        let decrypted = encrypting.reading(&*self.store, reading.clone());
        decrypted.await.map(Some)
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut page = metered(self.meter.as_ref(), Op::List, self.store.list(query)).await?;
        // The engine's own records are not requests.
        page.readings
            .retain(|reading| reading.record.fingerprint.0 != FACT);
        if let Some(encrypting) = &self.encrypting {
            self.decrypt_page(encrypting, &mut page).await;
        }
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

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        self.store.scope_key(scope).await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.store.replace_scope_key(scope, expected, key).await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        self.store.scope_keys(cursor).await
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
