//! An embedded store that can move to another process while this one still uses it.
//!
//! Only one process holds the folder. [`Movable::detach`] closes the store while calls wait; then another process opens
//! it with the [leases](HeldLease) of this one, and this one makes its calls through that process. If the other process
//! fails before, [`Movable::reopen`] opens the store here again.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Embedded, Options, wire::HeldLease};
use crate::{
    Error, ErrorKind, RecordId, Result,
    key::Secret,
    record::{Claim, Erased, Fence, ScopeDigest, Settled, Settlement, Verdict},
    store::{AnyStore, Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Store, Watch},
};

/// How often [`Movable::detach`] looks whether the calls in progress have ended.
const LOOK: Duration = Duration::from_millis(2);
/// How long the lock of a folder may still be held by the process that hands it over.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// Where the store that [`AnyStore::open_with`] opens becomes [`Movable`]. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MovableSlot(Arc<OnceLock<Movable>>);

impl MovableSlot {
    /// The store; `None` if none was opened, or the address is not `file:DIR`.
    #[must_use]
    pub fn get(&self) -> Option<&Movable> {
        self.0.get()
    }

    pub(crate) fn set(&self, store: Movable) {
        let _ = self.0.set(store);
    }
}

/// An embedded store that can move to another process. Clones share it.
#[derive(Debug, Clone)]
pub struct Movable(Arc<MovableState>);

#[derive(Debug)]
struct MovableState {
    holder: ArcSwap<Holder>,
    /// Changes with `holder`.
    moved: watch::Sender<()>,
    folder: PathBuf,
    options: Options,
    secret: Secret,
    guarantees: Guarantees,
}

/// Who holds the store.
#[derive(Debug)]
enum Holder {
    /// This process.
    Here(Embedded),
    /// This process; but it accepts no more claims, because it is about to move.
    Closing(Embedded),
    /// Nobody: calls wait.
    Moving,
    /// Another process.
    Elsewhere(AnyStore),
}

impl Movable {
    /// Opens the store in `folder`, as [`Embedded::open`] does. Waits a moment for a process that hands it over.
    ///
    /// # Errors
    /// As for [`Embedded::open`].
    pub async fn open(folder: &Path, options: Options) -> Result<Self> {
        let store = open_when_free(folder, &options).await?;
        Ok(Self(Arc::new(MovableState {
            secret: store.secret().clone(),
            guarantees: store.guarantees(),
            holder: ArcSwap::from_pointee(Holder::Here(store)),
            moved: watch::Sender::new(()),
            folder: folder.into(),
            options: Options {
                leases: Arc::default(),
                ..options
            },
        })))
    }

    /// Lets no more claims begin: they wait until the store has moved, or stays after all. Other calls continue.
    pub fn hold_claims(&self) {
        let holder = self.0.holder.load_full();
        if let Holder::Here(store) = &*holder {
            self.put(Holder::Closing(store.clone()));
        }
    }

    /// Lets claims begin again, if the store is still here.
    pub fn resume_claims(&self) {
        let holder = self.0.holder.load_full();
        if let Holder::Closing(store) = &*holder {
            self.put(Holder::Here(store.clone()));
        }
    }

    /// Closes the store, and returns the leases in force. All calls wait until it is reopened or attached.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if another process holds the store, or if calls are still in progress after `at_most`:
    /// then nothing has changed.
    ///
    /// # Cancellation
    /// If dropped, calls wait until [`reopen`](Self::reopen).
    pub async fn detach(&self, at_most: Duration) -> Result<Vec<HeldLease>> {
        let deadline = Instant::now() + at_most;
        let old = self.0.holder.swap(Arc::new(Holder::Moving));
        let store = match &*old {
            Holder::Here(store) | Holder::Closing(store) => store.clone(),
            Holder::Moving | Holder::Elsewhere(_) => {
                self.0.holder.store(old);
                return Err(unavailable("another process holds the store"));
            }
        };
        drop(old);
        while !store.is_unshared() {
            if Instant::now() > deadline {
                self.put(Holder::Here(store));
                return Err(unavailable("calls to the store did not end in time"));
            }
            sleep(LOOK).await;
        }
        let closing = tokio::task::spawn_blocking(move || store.close());
        closing
            .await
            .map_err(|panic| unavailable("closing the store failed").with_source(panic))
    }

    /// Opens the store here again, with the leases that it had when it was closed.
    ///
    /// # Errors
    /// As for [`Embedded::open`]; [`ErrorKind::Held`] if another process has opened it.
    pub async fn reopen(&self, leases: Vec<HeldLease>) -> Result<()> {
        let options = Options {
            leases: leases.into(),
            ..self.0.options.clone()
        };
        let store = open(&self.0.folder, &options).await?;
        self.put(Holder::Here(store));
        Ok(())
    }

    /// Makes all calls through `store` from now on, which reaches the process that has opened the store.
    /// Records pass as they are stored: each process encrypts its own.
    pub fn attach(&self, store: &AnyStore) {
        self.put(Holder::Elsewhere(store.as_stored()));
    }

    /// The folder of the store.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    fn put(&self, holder: Holder) {
        self.0.holder.store(Arc::new(holder));
        self.0.moved.send_replace(());
    }

    /// Who holds the store; waits while nobody does, and for a claim also while it is about to move.
    async fn holder(&self, is_claim: bool) -> Arc<Holder> {
        loop {
            let holder = self.0.holder.load_full();
            match &*holder {
                Holder::Here(_) | Holder::Elsewhere(_) => return holder,
                Holder::Closing(_) if !is_claim => return holder,
                _ => {}
            }
            drop(holder);
            self.wait(is_claim).await;
        }
    }

    /// Waits until the holder has changed, unless it has meanwhile.
    async fn wait(&self, is_claim: bool) {
        let mut moved = self.0.moved.subscribe();
        let waits = match &**self.0.holder.load() {
            Holder::Moving => true,
            Holder::Closing(_) => is_claim,
            _ => false,
        };
        if waits {
            let _ = moved.changed().await;
        }
    }
}

async fn open(folder: &Path, options: &Options) -> Result<Embedded> {
    let (folder, options) = (folder.to_path_buf(), options.clone());
    let opening = tokio::task::spawn_blocking(move || Embedded::open(&folder, options));
    let opened = opening.await;
    opened.map_err(|panic| unavailable("opening the store failed").with_source(panic))?
}

async fn open_when_free(folder: &Path, options: &Options) -> Result<Embedded> {
    let deadline = Instant::now() + LOCK_MAX;
    loop {
        match open(folder, options).await {
            // Without leases, the store comes from no other process: its holder does not end soon.
            Err(error)
                if error.kind() == ErrorKind::Held
                    && options.is_handed_over
                    && Instant::now() < deadline =>
            {
                sleep(LOCK_LOOK).await;
            }
            opened => return opened,
        }
    }
}

fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).unapplied()
}

fn moved_away() -> Error {
    unavailable("another process has taken over the store; ask that process")
}

impl Store for Movable {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        match &*self.holder(true).await {
            Holder::Here(store) => store.claim(claim).await,
            Holder::Elsewhere(store) => store.claim(claim).await,
            _ => Err(moved_away()),
        }
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.settle(id, fence, end).await,
            Holder::Elsewhere(store) => store.settle(id, fence, end).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.renew(id, fence, lease).await,
            Holder::Elsewhere(store) => store.renew(id, fence, lease).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.read(id).await,
            Holder::Elsewhere(store) => store.read(id).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.list(query).await,
            _ => Err(moved_away()),
        }
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.erase(id).await,
            _ => Err(moved_away()),
        }
    }

    async fn census(&self) -> Result<Census> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.census().await,
            _ => Err(moved_away()),
        }
    }

    /// The process that holds the store sweeps it.
    async fn sweep(&self, at_most: u32) -> Result<u32> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.sweep(at_most).await,
            _ => Ok(0),
        }
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.scope_key(scope).await,
            Holder::Elsewhere(store) => store.scope_key(scope).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => {
                store.replace_scope_key(scope, expected, key).await
            }
            Holder::Elsewhere(store) => store.replace_scope_key(scope, expected, key).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        match &*self.holder(false).await {
            Holder::Here(store) | Holder::Closing(store) => store.scope_keys(cursor).await,
            Holder::Elsewhere(store) => store.scope_keys(cursor).await,
            Holder::Moving => Err(moved_away()),
        }
    }

    fn accepts_claims(&self) -> Result<()> {
        match &**self.0.holder.load() {
            Holder::Here(store) | Holder::Closing(store) => store.accepts_claims(),
            _ => Ok(()),
        }
    }

    fn bytes_on_disk(&self) -> Option<u64> {
        match &**self.0.holder.load() {
            Holder::Here(store) | Holder::Closing(store) => store.bytes_on_disk(),
            _ => None,
        }
    }

    fn guarantees(&self) -> Guarantees {
        self.0.guarantees
    }

    /// After a move, duplicates of claims of the other process repeat their claim.
    fn watch(&self, _: RecordId) -> Option<Watch> {
        None
    }

    fn secret(&self) -> &Secret {
        &self.0.secret
    }
}
