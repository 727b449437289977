//! The only thread that writes: it writes all queued entries as lines, syncs once, and completes their waiters.
//!
//! A permanent error latches the log shut, because the content of the disk is unknown: nothing is written after it.
//! After a temporary error, such as a full disk, the incomplete write is truncated and retried.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    Options,
    chain::ChainHash,
    entry::{ChainPosition, Entry, Event},
    open::{self, WRITE_BYTES_MAX},
    segment,
};
use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    lock::{FileLock, denial_fix},
    store::embedded::{
        disk::{DiskFile, passes},
        folder,
    },
};

/// Interval of retries after a temporary error.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// State shared by callers and the writer thread.
#[derive(Debug)]
pub(super) struct AuditLogState {
    pub(super) folder: PathBuf,
    pub(super) options: Options,
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Error that latched the log shut.
    shut: OnceLock<String>,
    /// Temporary error, which is retried.
    hindrance: Mutex<Option<String>>,
    /// Number of entries that this process has made durable.
    pub(super) written: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    is_closed: bool,
}

/// A queued entry.
#[derive(Debug)]
struct Waiting {
    at: Timestamp,
    entry: Entry,
    /// Completes the caller that waits for it.
    told: Option<oneshot::Sender<Result<()>>>,
}

/// Completes when an entry is durable, or fails.
pub(super) type Told = oneshot::Receiver<Result<()>>;

impl AuditLogState {
    pub(super) fn new(folder: PathBuf, options: Options) -> Self {
        Self {
            folder,
            options,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            shut: OnceLock::new(),
            hindrance: Mutex::default(),
            written: AtomicU64::new(0),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the permanent or temporary error, if any.
    pub(super) fn trouble(&self) -> Option<String> {
        let shut = self.shut.get().cloned();
        shut.or_else(|| self.hindrance().clone())
    }

    fn hindrance(&self) -> MutexGuard<'_, Option<String>> {
        let hindrance = self.hindrance.lock();
        hindrance.unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks for capacity before an attempt starts. Ends are always accepted, because there are no more ends than
    /// starts.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(why) = self.trouble() {
            return Err(unaudited(why));
        }
        let max = self.options.queue_max;
        match self.queue().waiting.len() >= max {
            true => Err(unaudited(format!(
                "the audit log {}: {max} entries wait for the disk already; try again shortly",
                self.folder.display()
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn push(&self, entry: Entry, is_waited_for: bool) -> Result<Option<Told>> {
        if let Some(why) = self.shut.get() {
            return Err(unaudited(why.clone()));
        }
        let (told, receiver) = match is_waited_for {
            true => {
                let (told, receiver) = oneshot::channel();
                (Some(told), Some(receiver))
            }
            false => (None, None),
        };
        let at = self.options.clock.wall();
        let mut queue = self.queue();
        if queue.is_closed {
            let why = format!("the audit log {} has been closed", self.folder.display());
            return Err(unaudited(why));
        }
        let mut waiting = Waiting { at, entry, told };
        // Fail waiters at once during a temporary error.
        let hindrance = self.hindrance().clone();
        let is_kept = hindrance.as_deref().is_none_or(|why| waiting.refuse(why));
        if is_kept {
            queue.waiting.push(waiting);
        }
        if queue.waiting.len() == 1 {
            self.arrived.notify_one();
        }
        Ok(receiver)
    }

    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        self.arrived.notify_all();
    }

    /// Waits for entries; returns `false` when the log is closed and the queue is empty.
    fn wait(&self) -> bool {
        let mut queue = self.queue();
        while queue.waiting.is_empty() {
            if queue.is_closed {
                return false;
            }
            let woken = self.arrived.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Fails all waiters and pauses after a temporary error; returns `false` if the log is closed and there is no
    /// retry.
    ///
    /// Notes and ends of attempts stay queued, because they describe what has happened, and are written after recovery.
    fn hinder(&self, error: &Error, unwritten: Vec<Waiting>) -> bool {
        let why = format!(
            "{error}; nothing that must be audited runs until this has passed, it is tried again every second"
        );
        let mut queue = self.queue();
        let later = std::mem::take(&mut queue.waiting);
        let known = self.hindrance().replace(why.clone());
        if known.is_none() {
            tracing::error!(%error, "the audit log cannot be written now: what must be audited is refused");
            // Records the pause in the log itself. This entry is retried until it succeeds.
            let entry = Entry::new(Event::Reopened).with_detail(format!("paused: {error}"));
            let (at, told) = (self.options.clock.wall(), None);
            queue.waiting.push(Waiting { at, entry, told });
        }
        for mut waiting in unwritten.into_iter().chain(later) {
            if waiting.refuse(&why) {
                queue.waiting.push(waiting);
            }
        }
        let is_open = |queue: &mut Queue| !queue.is_closed;
        let waited = self.arrived.wait_timeout_while(queue, RETRY_EVERY, is_open);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !queue.is_closed
    }

    /// Ends a temporary error.
    fn recovered(&self) {
        if self.hindrance().take().is_some() {
            tracing::info!("the audit log can be written again");
        }
    }

    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.queue().waiting)
    }

    /// Latches the log shut, and fails all waiters.
    fn latch(&self, error: &Error) {
        let why = format!(
            "{error}; nothing that must be audited runs until it is mended and the process started again"
        );
        tracing::error!(%error, "the audit log is shut: what must be audited is refused from now on");
        let _ = self.shut.set(why);
        // Only callers that checked just before the latch can still push.
        let mut queue = self.queue();
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.refuse(waiting);
    }

    fn refuse(&self, waiting: Vec<Waiting>) {
        let why = self.shut.get().cloned().unwrap_or_default();
        for mut waiting in waiting {
            waiting.refuse(&why);
        }
    }
}

impl Waiting {
    /// Fails the waiter; returns whether the entry stays queued.
    ///
    /// An announced action that is now cancelled must not be in the log.
    fn refuse(&mut self, why: &str) -> bool {
        let Some(told) = self.told.take() else {
            return true;
        };
        let _ = told.send(Err(unaudited(why.to_owned())));
        matches!(
            self.entry.event,
            Event::Completed | Event::Released | Event::Doubted | Event::Erased | Event::Refused
        )
    }
}

pub(super) fn unaudited(message: String) -> Error {
    Error::new(ErrorKind::Unaudited, message)
}

/// State of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<AuditLogState>,
    /// Current file and its length; `None` before the first.
    file: Option<(Arc<dyn DiskFile>, u64)>,
    /// Number of the next entry.
    seq: u64,
    head: ChainHash,
    node: String,
    /// Held as long as the writer lives.
    _lock: FileLock,
    /// Number and hash of the durable end of the log.
    durable: (u64, ChainHash),
    /// Lines that are not written yet, and their entries.
    lines: Vec<u8>,
    unwritten: Vec<Waiting>,
    count: u64,
}

/// Writes until the log is closed. `opened` is `None` if the log is opened with its first entry.
pub(super) fn run_caught(shared: &Arc<AuditLogState>, opened: Option<Writer>) {
    // A panic must not leave callers waiting for a dead writer.
    let ran = catch_unwind(AssertUnwindSafe(|| run(shared, opened)));
    if ran.is_err() {
        let why = format!(
            "the writer of the audit log {} failed",
            shared.folder.display()
        );
        shared.latch(&unaudited(why));
    }
}

fn run(shared: &Arc<AuditLogState>, opened: Option<Writer>) {
    let mut opened = opened;
    while shared.wait() {
        let mut writer = match opened.take().map_or_else(|| Writer::open(shared), Ok) {
            Ok(writer) => writer,
            Err(error) if is_passing(&error) && shared.hinder(&error, Vec::new()) => continue,
            Err(error) => return shared.latch(&error),
        };
        // Let more entries queue up, so that they share one sync.
        std::thread::yield_now();
        match writer.write(shared.take()) {
            Ok(()) => shared.recovered(),
            Err(error) => {
                let may_pass = passes(&error) && writer.roll_back().is_ok();
                let error = trouble(&shared.folder, error);
                let unwritten = std::mem::take(&mut writer.unwritten);
                if !may_pass {
                    shared.latch(&error);
                    return shared.refuse(unwritten);
                }
                if !shared.hinder(&error, unwritten) {
                    return shared.latch(&error);
                }
            }
        }
        opened = Some(writer);
    }
}

/// Whether the error of opening is temporary.
fn is_passing(error: &Error) -> bool {
    use std::error::Error as _;
    let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    source.is_some_and(passes)
}

fn trouble(folder: &Path, error: io::Error) -> Error {
    let fix = denial_fix(&error, "or name another folder with audit_log = \"DIR\"");
    let message = format!("the audit log {} cannot be written{fix}", folder.display());
    Error::new(ErrorKind::Unaudited, message).with_source(error)
}

impl Writer {
    /// Opens the log at its end, and writes an entry about that.
    pub(super) fn open(shared: &Arc<AuditLogState>) -> Result<Self> {
        let (path, disk) = (&shared.folder, &*shared.options.disk);
        folder::make(disk, path).map_err(|error| trouble(path, error))?;
        let lock = folder::take_lock(path, "the audit log")?;
        let tail = open::find(path)?;
        let mut writer = Self {
            shared: shared.clone(),
            file: tail.file(disk).map_err(|error| trouble(path, error))?,
            seq: tail.seq,
            head: tail.head,
            node: node(),
            _lock: lock,
            durable: (tail.seq, tail.head),
            lines: Vec::new(),
            unwritten: Vec::new(),
            count: 0,
        };
        let event = match tail.seq {
            1 => Event::Began,
            _ => Event::Reopened,
        };
        let mut entry = Entry::new(event);
        if tail.torn > 0 {
            let detail = format!("{} unfinished bytes were cut off its end", tail.torn);
            entry = entry.with_detail(detail);
        }
        let at = shared.options.clock.wall();
        let told = None;
        let begun = writer.write(vec![Waiting { at, entry, told }]);
        begun.map_err(|error| trouble(path, error))?;
        Ok(writer)
    }

    fn write(&mut self, waiting: Vec<Waiting>) -> io::Result<()> {
        let mut waiting = waiting.into_iter();
        while let Some(next) = waiting.next() {
            let added = self.add(next.at, &next.entry);
            self.unwritten.push(next);
            if let Err(error) = added {
                self.unwritten.extend(waiting);
                return Err(error);
            }
        }
        self.flush()
    }

    /// Returns to the durable end of the log, and truncates the rest of a failed write.
    fn roll_back(&mut self) -> io::Result<()> {
        self.lines.clear();
        self.count = 0;
        (self.seq, self.head) = self.durable;
        match &self.file {
            Some((file, len)) => file.set_len(*len),
            None => Ok(()),
        }
    }

    fn add(&mut self, at: Timestamp, entry: &Entry) -> io::Result<()> {
        let place = ChainPosition {
            seq: self.seq,
            at,
            node: &self.node,
            prev: self.head,
        };
        let (line, hash) = entry.line(place)?;
        let len = self.file.as_ref().map_or(0, |(_, len)| *len);
        let ends = len + (self.lines.len() + line.len()) as u64;
        let is_full = ends > self.shared.options.segment_bytes_max && len > 0;
        if self.lines.len() + line.len() > WRITE_BYTES_MAX || is_full {
            self.flush()?;
        }
        if is_full || self.file.is_none() {
            self.begin_file()?;
        }
        self.lines.extend_from_slice(&line);
        (self.seq, self.head) = (self.seq + 1, hash);
        self.count += 1;
        Ok(())
    }

    /// Starts a new file.
    fn begin_file(&mut self) -> io::Result<()> {
        let (folder, disk) = (&self.shared.folder, &self.shared.options.disk);
        // Opened before the create, so that only the sync can fail after it.
        let names = disk.open_folder(folder)?;
        let file = disk.create(&folder.join(segment::name(self.seq)))?;
        // The file name must be durable before an entry in the file is acknowledged.
        names.sync().map_err(io::Error::other)?;
        self.file = Some((file, 0));
        Ok(())
    }

    /// Makes the added lines durable, and completes their waiters.
    fn flush(&mut self) -> io::Result<()> {
        if let Some((file, len)) = &mut self.file
            && !self.lines.is_empty()
        {
            file.write_all_at(&self.lines, *len)?;
            // After a failed sync the content of the disk is unknown, so this error is always permanent.
            file.sync().map_err(io::Error::other)?;
            *len += self.lines.len() as u64;
            self.lines.clear();
        }
        self.shared.written.fetch_add(self.count, Ordering::Relaxed);
        self.count = 0;
        self.durable = (self.seq, self.head);
        for told in self.unwritten.drain(..).filter_map(|it| it.told) {
            let _ = told.send(Ok(()));
        }
        Ok(())
    }
}

/// Returns the host name.
fn node() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
