//! The embedded store `file:DIR`: records in a local folder, durable without a server.
//!
//! The store is a log. Each change is appended to a segment; concurrent changes share one write and one sync.
//! An in-memory index holds the position of the last image of each record. Outcomes stay on disk.
//! A log suffices, because records only move forward, all of them expire, and every lookup is by exact identity.
//! A segment is deleted as a whole once everything in it has expired.
//!
//! `docs/embedded-store.md` describes the files in the folder, and how each kind of damage is handled.
//!
//! ```
//! # fn main() -> refrain::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! use refrain::store::embedded::{Embedded, Options};
//! let store = Embedded::open(folder.path(), Options::default())?;
//! // Only one process holds the folder.
//! assert!(Embedded::open(folder.path(), Options::default()).is_err());
//! # drop(store);
//! # Ok(())
//! # }
//! ```

use std::{
    collections::HashMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    task::Poll,
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;

use super::{Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Store, Watch, table::Table};
use crate::{
    Error, ErrorKind, Result,
    clock::{StoreClock, Timestamp},
    key::{RecordId, Secret},
    log::commit::{Queue, lock},
    record::{
        Change, Claim, Command, Erased, Fence, Record, Reply, ScopeDigest, Settled, Settlement,
        State, Verdict, step,
    },
};

mod compact;
mod erase;
mod folder;
mod frame;
mod maintenance;
mod manifest;
mod movable;
mod options;
mod recover;
mod scan;
mod scope_keys;
mod segment;
mod snapshot;
pub mod wire;
mod writer;

pub use crate::log::disk;
use disk::RealDisk;
use folder::{Folder, ReservedDisk, unavailable};
use maintenance::Maintenance;
use manifest::Manifest;
pub use movable::{Movable, MovableSlot};
pub use options::{Durability, Options};
use scope_keys::ScopeKeyFile;
use segment::{Location, Segment};
use wire::HeldLease;
use writer::{QueuedRequest, Request};

/// The longest outcome, and the largest segment, in bytes. Offsets and lengths have 32 bits.
const BYTES_MAX: u64 = 1 << 30;

/// An unreadable part of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The number of the segment.
    pub segment: u32,
    /// The offset of the first byte.
    pub offset: u64,
    /// The end of the damaged range, for a range.
    pub end: u64,
    /// The damaged record, if known.
    pub record: Option<RecordId>,
    /// A description of the damage.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "segment {} offset {}: {}",
            self.segment, self.offset, self.what
        )?;
        match self.record {
            Some(id) => write!(f, ", record {id}"),
            None => write!(f, ", records unknown"),
        }
    }
}

/// The embedded store. Clones share it; dropping the last clone closes it.
#[derive(Debug, Clone)]
pub struct Embedded {
    inner: Arc<EmbeddedThreads>,
}

#[derive(Debug)]
struct EmbeddedThreads {
    shared: Arc<EmbeddedState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared by callers, the writer and the maintenance.
#[derive(Debug)]
pub(crate) struct EmbeddedState {
    folder: Folder,
    options: Options,
    clock: StoreClock,
    /// All records: in memory if they can still change, as a position on disk otherwise.
    table: Table<Slot>,
    /// All readable segments.
    segments: RwLock<HashMap<u32, Arc<Segment>>>,
    /// The manifest as it is on disk.
    manifest: Mutex<Manifest>,
    /// Damage found when the store was opened.
    damage: Vec<Damage>,
    /// The first permanent write or sync error. Once it is set, the store rejects all requests.
    latch: OnceLock<String>,
    queue: Queue<QueuedRequest>,
    maintenance: Maintenance,
    /// The data keys of the scopes, if records are encrypted.
    scope_keys: ScopeKeyFile,
}

/// The in-memory entry of a record.
#[derive(Debug, Clone)]
enum Slot {
    /// In flight or indeterminate.
    Live(Box<Live>),
    /// Completed or a tombstone; stored on disk.
    Stored(Location),
    /// Unreadable; its state is unknown.
    Damaged,
}

#[derive(Debug, Clone)]
struct Live {
    record: Record,
    /// The segment that holds its last image.
    segment: u32,
}

impl Slot {
    fn live(record: Record, segment: u32) -> Self {
        Self::Live(Box::new(Live { record, segment }))
    }
}

impl Embedded {
    /// Opens the store in `folder`, and creates it if the folder is new or empty.
    ///
    /// The folder's lock proves that the earlier holders of in-flight records are gone, so their leases lapse now,
    /// except those that a process [hands over](Options::leases).
    ///
    /// # Errors
    /// If another process holds the folder, if it is not a store of Refrain, if its format is unknown,
    /// or if it cannot be read or written. Damage is not an error: see [`damage`](Self::damage).
    pub fn open(folder: &Path, mut options: Options) -> Result<Self> {
        options.segment_bytes_max = options.segment_bytes_max.min(BYTES_MAX);
        let folder = Folder::hold(&*options.disk, folder)?;
        options.disk = Arc::new(ReservedDisk::over(options.disk, &folder.path));
        let mut recovered = recover::recover(&*options.disk, &folder.path, &folder.secret, false)?;
        let scope_keys = ScopeKeyFile::load(&*options.disk, &folder.path)?;
        let clock = match recovered.manifest.clock {
            Some(mark) => StoreClock::resume(options.clock.clone(), mark, recovered.latest),
            None => StoreClock::start(options.clock.clone()),
        };
        recovered.lapse_all(clock.now(), &options.leases);
        for damage in &recovered.damage {
            tracing::error!(%damage, folder = %folder.path.display(), "the store is damaged");
        }
        recovered.manifest.epoch += 1;
        recovered.manifest.clock = Some(clock.mark());
        recovered.manifest.time = clock.now();
        recovered.begin(&*options.disk, &folder.path)?;
        let previous = recovered.last_log();
        let manifest = recovered.manifest;
        let epoch = manifest.epoch;
        let segments = recovered.sealed.iter().map(|sealed| &sealed.segment);
        let shared = Arc::new(EmbeddedState {
            segments: RwLock::new(segments.map(|it| (it.number, it.clone())).collect()),
            folder,
            options,
            clock,
            table: recovered.table,
            manifest: Mutex::new(manifest),
            damage: recovered.damage,
            latch: OnceLock::new(),
            queue: Queue::default(),
            maintenance: Maintenance::new(recovered.sealed),
            scope_keys,
        });
        let threads = Mutex::new(shared.start_threads(epoch, previous)?);
        let opened = Self {
            inner: Arc::new(EmbeddedThreads { shared, threads }),
        };
        opened.inner.shared.wait_for_spare();
        opened.inner.shared.check_open()?;
        Ok(opened)
    }

    /// Damage found when the store was opened. Calls for the affected records return an error, never "absent".
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        &self.inner.shared.damage
    }

    /// Whether this is the only clone, and no call is in progress.
    fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// Closes the store, and returns the leases in force. The folder is free once no other clone exists.
    fn close(self) -> Vec<HeldLease> {
        let shared = self.inner.shared.clone();
        // The writer decides all queued requests first.
        drop(self);
        shared.held_leases()
    }

    /// The number of records, tombstones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.shared.table.len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads every byte of the store in `folder` and returns all damage. The store must not be open.
    ///
    /// # Errors
    /// The same as [`open`](Self::open).
    pub fn check(folder: &Path) -> Result<Vec<Damage>> {
        let disk = RealDisk;
        let folder = Folder::hold(&disk, folder)?;
        let recovered = recover::recover(&disk, &folder.path, &folder.secret, true)?;
        Ok(recovered.damage)
    }

    /// Gives up the damaged parts of the store in `folder`: records in them count as absent, and may execute again.
    /// For operators who know that this is safe, or who have no backup to restore.
    ///
    /// # Errors
    /// The same as [`open`](Self::open).
    pub fn accept_damage(folder: &Path) -> Result<Vec<Damage>> {
        let disk = RealDisk;
        let folder = Folder::hold(&disk, folder)?;
        let recovered = recover::recover(&disk, &folder.path, &folder.secret, true)?;
        let mut manifest = recovered.manifest;
        let places = recovered.damage.iter().map(|it| (it.segment, it.offset));
        manifest.accepted.extend(places);
        manifest.write(&disk, &folder.path).map_err(|error| {
            let folder = folder.path.display();
            unavailable(format!("the manifest of {folder} cannot be written"), error)
        })?;
        Ok(recovered.damage)
    }

    /// The verdict on a claim that does not change the record; `None` if it does.
    fn verdict_without_change(&self, claim: &Claim, record: Record) -> Option<Verdict> {
        // This fence is never granted: only the writer applies changes.
        let fence = Fence {
            epoch: u32::MAX,
            counter: u64::MAX,
            nonce: 0,
        };
        let command = Command::Claim(claim.without_origin(), fence);
        let stepped = step(Some(record), command, self.inner.shared.clock.now());
        match (stepped.reply, stepped.change) {
            (Reply::Verdict(verdict), Change::Nothing) => Some(verdict),
            _ => None,
        }
    }

    fn read_one(&self, id: RecordId) -> Result<Option<Reading>> {
        let record = self.inner.shared.find(id)?;
        Ok(self.aged(id, record))
    }

    fn aged(&self, id: RecordId, record: Option<Record>) -> Option<Reading> {
        let now = self.inner.shared.clock.now();
        let record = step(Some(record?), Command::Age, now).record?;
        Some(Reading { id, record, now })
    }

    /// Starts work that may wait for the disk on the blocking thread pool.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&this));
        async {
            done.await.unwrap_or_else(|panic| {
                Err(Error::new(ErrorKind::Unavailable, "the store failed").with_source(panic))
            })
        }
    }
}

/// The lease of a record in flight, if it has not lapsed.
fn held_lease(id: RecordId, slot: &Slot, now: Timestamp) -> Option<HeldLease> {
    let Slot::Live(live) = slot else { return None };
    let State::InFlight { hold, lease_ends } = &live.record.state else {
        return None;
    };
    (*lease_ends > now).then(|| HeldLease {
        id,
        fence: hold.fence,
        claimant: hold.claimant,
        left: lease_ends.left(now),
    })
}

fn check_len(end: &Settlement) -> Result<()> {
    match end {
        Settlement::Complete { outcome, .. } if outcome.encoded().len() as u64 > BYTES_MAX => {
            let message = format!("an outcome of more than {BYTES_MAX} bytes cannot be stored");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

impl Store for Embedded {
    /// Decides a claim that changes nothing in the caller's task, and leaves every other one to the writer.
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        let id = claim.id;
        let record = match self.inner.shared.find_cached(id)? {
            Poll::Ready(record) => record,
            Poll::Pending => {
                self.blocking(move |this| this.inner.shared.find(id))
                    .await?
            }
        };
        match record.and_then(|record| self.verdict_without_change(&claim, record)) {
            Some(verdict) => Ok(verdict),
            None => self
                .inner
                .shared
                .submit(id, Request::Claim(claim))
                .await?
                .into_verdict(),
        }
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        check_len(&end)?;
        let request = Request::Settle(fence, end.sealed(id));
        self.inner.shared.submit(id, request).await?.into_settled()
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        let request = Request::Renew(fence, lease);
        self.inner.shared.submit(id, request).await?.into_settled()
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        match self.inner.shared.find_cached(id)? {
            Poll::Ready(record) => Ok(self.aged(id, record)),
            Poll::Pending => self.blocking(move |this| this.read_one(id)).await,
        }
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        // Dropped with this future: nobody waits for the page any more.
        let caller = Arc::new(());
        let is_waiting = Arc::downgrade(&caller);
        let listed = self.blocking(move |this| {
            let table = &this.inner.shared.table;
            let read = |id| this.read_one(id);
            let is_wanted = || is_waiting.strong_count() > 0;
            super::list(table, &query, Slot::may_be, read, is_wanted)
        });
        let page = listed.await;
        drop(caller);
        page
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        self.blocking(move |this| this.inner.shared.erase(id)).await
    }

    /// The index holds only the position of an outcome, not the end of its retention:
    /// an expired outcome counts as completed until it is swept.
    async fn census(&self) -> Result<Census> {
        self.blocking(|this| this.inner.shared.census()).await
    }

    /// Deletes and compacts expired segments. Returns the number of records; checks `at_most` between two steps.
    async fn sweep(&self, at_most: u32) -> Result<u32> {
        self.blocking(move |this| this.inner.shared.sweep(at_most))
            .await
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        self.inner.shared.scope_keys.get(scope)
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.blocking(move |this| {
            let shared = &this.inner.shared;
            shared.replace_scope_key(scope, expected.as_ref(), key)
        })
        .await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        self.inner.shared.scope_keys.page(cursor)
    }

    fn accepts_claims(&self) -> Result<()> {
        self.inner.shared.check_open()?;
        self.inner.shared.check_room()
    }

    /// The recorded length of all segments, room for later records included.
    fn bytes_on_disk(&self) -> Option<u64> {
        Some(self.inner.shared.bytes_on_disk())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            survives_process: true,
            survives_power: self.inner.shared.options.durability == Durability::Full,
            lossy_failover: false,
            shared: false,
        }
    }

    /// Only this process can settle records, and the engine notifies its own waiters.
    fn watch(&self, _: RecordId) -> Option<Watch> {
        None
    }

    fn secret(&self) -> &Secret {
        &self.inner.shared.folder.secret
    }
}

impl EmbeddedState {
    fn held_leases(&self) -> Vec<HeldLease> {
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(_));
        let (mut leases, mut after) = (Vec::new(), None);
        loop {
            let ids = self.table.ids_after(after, is_live);
            let Some(last) = ids.last() else {
                return leases;
            };
            after = Some(*last);
            let slots = ids.iter().map(|id| (*id, self.table.get(*id)));
            let now = self.clock.now();
            leases.extend(slots.filter_map(|(id, slot)| held_lease(id, &slot?, now)));
        }
    }

    /// Returns the current record, with its outcome read from disk. May wait for the disk.
    fn find(&self, id: RecordId) -> Result<Option<Record>> {
        match self.find_with(id, |segment, at| segment.read(id, at).map(Poll::Ready))? {
            Poll::Ready(record) => Ok(record),
            Poll::Pending => Err(self.damaged(id)),
        }
    }

    /// Returns the current record; `Pending` if that would have to wait for the disk.
    fn find_cached(&self, id: RecordId) -> Result<Poll<Option<Record>>> {
        self.find_with(id, |segment, at| segment.read_cached(id, at))
    }

    fn find_with(
        &self,
        id: RecordId,
        read: impl Fn(&Segment, Location) -> Result<Poll<Record>>,
    ) -> Result<Poll<Option<Record>>> {
        self.check_open()?;
        let mut held = None;
        loop {
            let at = match self.table.get(id) {
                None => return self.check_absent(id).map(Poll::Ready),
                Some(Slot::Live(live)) => return Ok(Poll::Ready(Some(live.record))),
                Some(Slot::Damaged) => return Err(self.damaged(id)),
                Some(Slot::Stored(at)) => at,
            };
            let is_held = held.is_some();
            let hold = || self.segments.read().unwrap_or_else(PoisonError::into_inner);
            let segments = held.take().unwrap_or_else(hold);
            match segments.get(&at.segment).cloned() {
                Some(segment) => {
                    drop(segments);
                    return match read(&segment, at)? {
                        Poll::Ready(record) => self.check_current(id, record).map(Poll::Ready),
                        Poll::Pending => Ok(Poll::Pending),
                    };
                }
                None if is_held => return Err(self.damaged(id)),
                // Compacted after the lookup. No segment is removed while the lock is held, so the next lookup finds it.
                None => held = Some(segments),
            }
        }
    }

    /// An expired record may have been claimed again in a range that cannot be read; then its state is unknown.
    fn check_current(&self, id: RecordId, record: Record) -> Result<Option<Record>> {
        let has_holes = self.damage.iter().any(|damage| damage.record.is_none());
        let is_past = || {
            step(Some(record.clone()), Command::Age, self.clock.now())
                .record
                .is_none()
        };
        match has_holes && is_past() {
            false => Ok(Some(record)),
            true => Err(self.damaged(id)),
        }
    }

    /// A record is certainly absent only if every byte of the store was readable.
    fn check_absent<T>(&self, id: RecordId) -> Result<Option<T>> {
        match self.damage.iter().any(|damage| damage.record.is_none()) {
            false => Ok(None),
            true => Err(self.damaged(id)),
        }
    }

    fn damaged(&self, id: RecordId) -> Error {
        let is_it = |damage: &&Damage| damage.record.is_none_or(|record| record == id);
        let place = self.damage.iter().find(is_it).map(ToString::to_string);
        let message = format!(
            "record {id} cannot be read ({}); restore the store {} from a backup, \
             or give up the damaged records with `refrain store accept-damage`",
            place.unwrap_or_default(),
            self.folder.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    fn check_open(&self) -> Result<()> {
        match self.latch.get() {
            None => Ok(()),
            Some(why) => {
                let message = format!(
                    "the store {} has shut down and rejects all requests ({why}); \
                     repair the disk, and restart the process",
                    self.folder.path.display()
                );
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    fn shut(&self, why: &dyn fmt::Display) {
        if self.latch.set(why.to_string()).is_ok() {
            tracing::error!(folder = %self.folder.path.display(), %why, "the store shuts down and rejects all requests");
        }
    }

    fn closed(&self) -> Error {
        self.check_open()
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the store has been closed"))
    }
}

impl Drop for EmbeddedThreads {
    fn drop(&mut self) {
        self.shared.queue.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }
}
