//! The two background threads: one allocates the next segment in advance, one seals, compacts and deletes old segments.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{
    Durability, EmbeddedState, Result, lock,
    manifest::Extent,
    recover::Sealed,
    segment::{HEADER_LEN, Segment},
    snapshot::{Noted, Snapshot},
    writer::{Writer, no_room},
};
use crate::{
    clock::Timestamp,
    log::{
        commit,
        failure::{describe_obstacle, is_temporary_error},
    },
};

/// Length of the first segment of a store, in bytes. Each further segment is twice as long, up to the maximum.
const SEGMENT_BYTES_FIRST: u64 = 4 << 20;
/// Interval at which a failed allocation is retried, and a store with relaxed durability is synced.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the maintenance looks for expired segments.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// State shared by the writer and the two threads.
#[derive(Debug)]
pub(super) struct Maintenance {
    state: Mutex<MaintenanceState>,
    changed: Condvar,
    /// No segment could be allocated in advance. Every claim reads it, so it is outside of the mutex.
    is_full: AtomicBool,
    /// Held while segments are compacted or deleted.
    pub(super) sweeping: Mutex<()>,
}

#[derive(Debug)]
struct MaintenanceState {
    /// The segment allocated in advance, and its length.
    spare: Option<(Arc<Segment>, u64)>,
    /// The minimum length of the spare segment.
    wanted: u64,
    /// The length of the next spare segment.
    next_len: u64,
    /// The temporary error of the last allocation.
    full: Option<String>,
    /// Completely written segments that are not sealed yet.
    written: Vec<FullSegment>,
    sealed: Vec<Sealed>,
    /// The segment that the writer appends to.
    active: Option<Arc<Segment>>,
    is_closing: bool,
    is_writer_done: bool,
}

/// A completely written segment.
#[derive(Debug)]
pub(super) struct FullSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) len: u64,
    pub(super) latest: Timestamp,
    pub(super) noted: Vec<Noted>,
    /// The end of the previous segment, as recorded in the first frame of this one.
    pub(super) previous: Option<(u32, u64)>,
}

impl Maintenance {
    pub(super) fn new(sealed: Vec<Sealed>) -> Self {
        Self {
            state: Mutex::new(MaintenanceState {
                spare: None,
                wanted: 0,
                next_len: SEGMENT_BYTES_FIRST,
                full: None,
                written: Vec::new(),
                sealed,
                active: None,
                is_closing: false,
                is_writer_done: false,
            }),
            changed: Condvar::new(),
            is_full: AtomicBool::new(false),
            sweeping: Mutex::new(()),
        }
    }

    /// Returns whether new claims must be refused, because the remaining room is reserved for records in flight.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub(super) fn seal(&self, written: FullSegment) {
        lock(&self.state).written.push(written);
        self.changed.notify_all();
    }

    pub(super) fn close(&self, last: Option<FullSegment>) {
        let mut state = lock(&self.state);
        state.written.extend(last);
        state.is_closing = true;
        state.is_writer_done = true;
        self.changed.notify_all();
    }

    /// The sealed segments, and the number of the active one.
    pub(super) fn sealed(&self) -> (Vec<Sealed>, Option<u32>) {
        let state = lock(&self.state);
        let active = state.active.as_ref().map(|segment| segment.number);
        (state.sealed.clone(), active)
    }

    /// Replaces deleted segments with `new`.
    pub(super) fn replace_sealed(&self, gone: &[u32], new: Option<Sealed>) {
        let mut state = lock(&self.state);
        state
            .sealed
            .retain(|sealed| !gone.contains(&sealed.segment.number));
        state.sealed.extend(new);
    }

    /// Marks a segment as damaged, so that it is never swept.
    pub(super) fn mark_damaged(&self, number: u32) {
        let mut state = lock(&self.state);
        let sealed = state
            .sealed
            .iter_mut()
            .find(|sealed| sealed.segment.number == number);
        if let Some(sealed) = sealed {
            sealed.is_damaged = true;
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, MaintenanceState>,
        at_most: Duration,
    ) -> MutexGuard<'a, MaintenanceState> {
        let waited = self.changed.wait_timeout(state, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl EmbeddedState {
    pub(super) fn start_threads(
        self: &Arc<Self>,
        epoch: u32,
        previous: Option<(u32, u64)>,
    ) -> Result<Vec<JoinHandle<()>>> {
        let (writer, allocator, maintenance) = (self.clone(), self.clone(), self.clone());
        let write = move || Writer::new(writer, epoch, previous).run();
        Ok(vec![
            self.spawn("refrain-alloc", move || allocator.allocate_ahead())?,
            self.spawn("refrain-keep", move || maintenance.keep())?,
            self.spawn("refrain-write", write)?,
        ])
    }

    /// Starts a thread. If it panics, the store shuts down, and no caller waits forever.
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let shared = self.clone();
        commit::spawn(name, work, move || {
            shared.shut(&"one of its threads panicked");
            shared.queue.close();
            drop(shared.queue.drain());
            shared.maintenance.close(None);
        })
    }

    /// Waits for a spare segment, or until its allocation has failed.
    pub(super) fn wait_for_spare(&self) {
        let mut state = lock(&self.maintenance.state);
        while state.spare.is_none() && state.full.is_none() && self.latch.get().is_none() {
            state = self.maintenance.wait(state, RETRY_EVERY);
        }
    }

    pub(super) fn check_room(&self) -> Result<()> {
        if !self.maintenance.is_full() {
            return Ok(());
        }
        let why = lock(&self.maintenance.state).full.clone();
        Err(no_room(&self.folder.path, &why.unwrap_or_default()))
    }

    /// Returns the next segment, at least `len_min` bytes long. Waits while it is being allocated.
    pub(super) fn next_segment(&self, len_min: u64) -> Result<(Arc<Segment>, u64)> {
        let mut state = lock(&self.maintenance.state);
        loop {
            self.check_open()?;
            state.wanted = len_min;
            match state.spare.take() {
                Some((segment, len)) if len >= len_min => {
                    state.wanted = 0;
                    state.active = Some(segment.clone());
                    self.maintenance.changed.notify_all();
                    return Ok((segment, len));
                }
                // Too short for this frame: seal it empty. The next sweep deletes it.
                Some((segment, _)) => state.written.push(FullSegment {
                    segment,
                    len: HEADER_LEN as u64,
                    latest: Timestamp::default(),
                    noted: Vec::new(),
                    previous: None,
                }),
                None => {}
            }
            if let Some(why) = &state.full {
                let refused = no_room(&self.folder.path, why);
                // A shorter segment may be easier to allocate, and is enough for other frames.
                state.wanted = 0;
                return Err(refused);
            }
            self.maintenance.changed.notify_all();
            state = self.maintenance.wait(state, RETRY_EVERY);
        }
    }

    fn allocate_ahead(&self) {
        let mut state = lock(&self.maintenance.state);
        loop {
            if state.is_closing {
                let spare = state.spare.take();
                drop(state);
                return self.give_back(spare);
            }
            if state.spare.is_some() {
                state = self.maintenance.wait(state, RETRY_EVERY);
                if self.options.durability == Durability::Relaxed {
                    let active = state.active.clone();
                    drop(state);
                    self.sync_relaxed(active);
                    state = lock(&self.maintenance.state);
                }
                continue;
            }
            let len = state
                .next_len
                .min(self.options.segment_bytes_max)
                .max(state.wanted);
            drop(state);
            let made = self.allocate(len);
            state = lock(&self.maintenance.state);
            match made {
                Ok(segment) => {
                    state.spare = Some((segment, len));
                    state.next_len = (state.next_len * 2).min(self.options.segment_bytes_max);
                    state.full = None;
                    self.maintenance.is_full.store(false, Ordering::Relaxed);
                    self.maintenance.changed.notify_all();
                }
                Err(error) if is_temporary_error(&error) => {
                    if state.full.is_none() {
                        tracing::error!(folder = %self.folder.path.display(), %error, "cannot allocate a segment: refusing new claims");
                    }
                    // Try the shortest length next.
                    state.next_len = SEGMENT_BYTES_FIRST;
                    state.full = Some(describe_obstacle(&error));
                    self.maintenance.is_full.store(true, Ordering::Relaxed);
                    self.maintenance.changed.notify_all();
                    state = self.maintenance.wait(state, RETRY_EVERY);
                }
                Err(error) => {
                    self.shut(&format!("cannot allocate a segment: {error}"));
                    self.maintenance.changed.notify_all();
                    return;
                }
            }
        }
    }

    /// Allocates a segment, and adds it to the manifest.
    fn allocate(&self, len: u64) -> io::Result<Arc<Segment>> {
        let number = self.take_number();
        let (disk, folder) = (&*self.options.disk, &self.folder.path);
        let segment = Segment::create(disk, folder, &self.folder.secret, number, false, len)?;
        let admitted = disk.sync_folder(folder).and_then(|()| {
            self.edit_manifest(|manifest| {
                let extent = Extent::allocated(len);
                manifest.segments.insert(number, Some(extent));
            })
        });
        if let Err(error) = admitted {
            // After any other error, the manifest on disk may already list the segment: keep its file.
            if is_temporary_error(&error) {
                let _ = disk.remove(&segment.path);
            }
            return Err(error);
        }
        let segment = Arc::new(segment);
        self.add_segment(&segment);
        Ok(segment)
    }

    fn give_back(&self, spare: Option<(Arc<Segment>, u64)>) {
        let Some((segment, _)) = spare else { return };
        let gone = |manifest: &mut super::Manifest| {
            manifest.segments.remove(&segment.number);
        };
        if self.latch.get().is_none() && self.edit_manifest(gone).is_ok() {
            let _ = self.options.disk.remove(&segment.path);
        }
    }

    fn sync_relaxed(&self, active: Option<Arc<Segment>>) {
        if let Some(Err(error)) = active.map(|segment| segment.file.sync()) {
            self.shut(&error);
        }
    }

    pub(super) fn take_number(&self) -> u32 {
        let mut manifest = lock(&self.manifest);
        manifest.next += 1;
        manifest.next - 1
    }

    pub(super) fn add_segment(&self, segment: &Arc<Segment>) {
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        segments.insert(segment.number, segment.clone());
    }

    /// Changes the manifest on disk, then in memory. Also records the durable end of the log.
    pub(super) fn edit_manifest(&self, edit: impl FnOnce(&mut super::Manifest)) -> io::Result<()> {
        let mut manifest = lock(&self.manifest);
        let mut next = manifest.clone();
        edit(&mut next);
        if let Some(active) = lock(&self.maintenance.state).active.clone()
            && let Some(Some(extent)) = next.segments.get_mut(&active.number)
        {
            extent.written = extent.written.max(active.durable());
        }
        next.time = self.clock.now();
        next.write(&*self.options.disk, &self.folder.path)?;
        *manifest = next;
        Ok(())
    }

    fn keep(&self) {
        // Sweep at once: a process that keeps crashing early must sweep, too.
        let mut is_first = true;
        let mut seen = None;
        loop {
            let mut state = lock(&self.maintenance.state);
            if state.written.is_empty() && !state.is_closing && !std::mem::take(&mut is_first) {
                state = self.maintenance.wait(state, SWEEP_EVERY);
            }
            let written = std::mem::take(&mut state.written);
            let is_last = state.is_writer_done;
            drop(state);
            for written in written {
                self.seal_written(written);
            }
            if is_last {
                return;
            }
            if let Err(error) = self.sweep(u32::MAX) {
                tracing::warn!(%error, "sweeping failed");
            }
            seen = self.record_end(seen);
        }
    }

    /// Records the durable end of the log once the store is idle, so that a later loss of that end counts as damage.
    ///
    /// A busy store records it with each new segment, so it needs no extra write here.
    fn record_end(&self, seen: Option<(u32, u64)>) -> Option<(u32, u64)> {
        let active = lock(&self.maintenance.state).active.clone()?;
        let end = (active.number, active.durable());
        let extent = lock(&self.manifest).extent(active.number);
        if seen == Some(end) && extent.is_some_and(|extent| extent.written < end.1) {
            match self.edit_manifest(|_| ()) {
                Err(error) if !is_temporary_error(&error) => self.shut(&error),
                _ => {}
            }
        }
        Some(end)
    }

    /// Records the end of the segment, truncates the file there, and writes its snapshot.
    /// Without the snapshot, the store only opens more slowly.
    fn seal_written(&self, written: FullSegment) {
        let FullSegment {
            segment,
            len,
            latest,
            noted,
            previous,
        } = written;
        let snapshot = Snapshot {
            ends: previous.into_iter().collect(),
            ..Snapshot::new(len, latest, &noted)
        };
        let file = &segment.file;
        // Sync before the manifest records the end, and record the end before truncating the file.
        let sealed = file.sync().map_err(io::Error::other).and_then(|()| {
            self.edit_manifest(|manifest| {
                let extent = Extent::sealed(len);
                manifest.segments.insert(segment.number, Some(extent));
            })?;
            file.set_len(len)?;
            file.sync()?;
            snapshot.write(&*self.options.disk, &segment)
        });
        match sealed {
            Ok(()) => {}
            Err(error) if is_temporary_error(&error) => {
                tracing::warn!(segment = segment.number, %error, "cannot truncate the segment");
            }
            Err(error) => self.shut(&error),
        }
        let sealed = Sealed {
            segment,
            len,
            compact_at: snapshot.compact_at,
            drop_at: snapshot.drop_at,
            is_damaged: false,
        };
        self.maintenance.replace_sealed(&[], Some(sealed));
    }
}
