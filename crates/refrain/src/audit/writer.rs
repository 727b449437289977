//! The only thread that writes: it writes all queued entries as lines, syncs once, and completes their waiters.
//!
//! A permanent error latches the log shut, because the content of the disk is unknown: nothing is written after it.
//! After a temporary error, such as a full disk, the incomplete write is truncated and retried.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
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
    log::{
        commit::{Appender, Queue, lock},
        failure::{Failure, denial_fix, is_temporary_error},
        folder::{self, FileLock},
    },
};

/// Interval of retries after a temporary error.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// State shared by callers and the writer thread.
#[derive(Debug)]
pub(super) struct AuditLogState {
    pub(super) folder: PathBuf,
    pub(super) options: Options,
    queue: Queue<WaitingEntry>,
    /// Error that latched the log shut.
    shut: OnceLock<String>,
    /// Temporary error, which is retried.
    hindrance: Mutex<Option<String>>,
    /// Number of entries that this process has made durable.
    pub(super) written: AtomicU64,
}

/// A queued entry.
#[derive(Debug)]
struct WaitingEntry {
    at: Timestamp,
    entry: Entry,
    /// Completes the caller that waits for it.
    told: Option<oneshot::Sender<Result<()>>>,
    /// Whether the log is closed after this entry, until the next one.
    is_last: bool,
}

/// Completes when an entry is durable, or fails.
pub(super) type EntryWritten = oneshot::Receiver<Result<()>>;

impl AuditLogState {
    pub(super) fn new(folder: PathBuf, options: Options) -> Self {
        Self {
            folder,
            options,
            queue: Queue::default(),
            shut: OnceLock::new(),
            hindrance: Mutex::default(),
            written: AtomicU64::new(0),
        }
    }

    /// Returns the permanent or temporary error, if any.
    pub(super) fn trouble(&self) -> Option<String> {
        let shut = self.shut.get().cloned();
        shut.or_else(|| self.hindrance().clone())
    }

    fn hindrance(&self) -> MutexGuard<'_, Option<String>> {
        lock(&self.hindrance)
    }

    /// Checks for capacity before an attempt starts. Entries for the end of an attempt are always accepted,
    /// because there are no more of them than started attempts.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(why) = self.trouble() {
            return Err(unaudited(why));
        }
        let max = self.options.queue_max;
        match self.queue.len() >= max {
            true => Err(unaudited(format!(
                "the audit log {} has {max} entries waiting for the disk; retry shortly",
                self.folder.display()
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn push(&self, entry: Entry, is_waited_for: bool) -> Result<Option<EntryWritten>> {
        self.push_with(entry, is_waited_for, false)
    }

    /// As [`push`](Self::push); closes the log after the entry, if it `is_last`.
    pub(super) fn push_with(
        &self,
        entry: Entry,
        is_waited_for: bool,
        is_last: bool,
    ) -> Result<Option<EntryWritten>> {
        if let Some(why) = self.shut.get() {
            return Err(unaudited(why.clone()));
        }
        let (told, receiver) = is_waited_for.then(oneshot::channel).unzip();
        let mut waiting = self.waiting(entry, told);
        waiting.is_last = is_last;
        // Fail waiters at once during a temporary error.
        let hindrance = self.hindrance().clone();
        let is_kept = hindrance.as_deref().is_none_or(|why| waiting.refuse(why));
        if is_kept && self.queue.push(waiting, usize::MAX).is_err() {
            let why = format!("the audit log {} has been closed", self.folder.display());
            return Err(unaudited(why));
        }
        Ok(receiver)
    }

    fn waiting(&self, entry: Entry, told: Option<oneshot::Sender<Result<()>>>) -> WaitingEntry {
        let at = self.options.clock.wall();
        WaitingEntry {
            at,
            entry,
            told,
            is_last: false,
        }
    }

    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Handles a failure. Returns whether the writer continues: after a temporary error, unless the log is closed.
    fn failed(&self, error: &Error, is_temporary: bool, unwritten: Vec<WaitingEntry>) -> bool {
        if !is_temporary {
            self.latch(error, unwritten);
            return false;
        }
        let is_open = self.pause_after(error, unwritten);
        if !is_open {
            self.latch(error, Vec::new());
        }
        is_open
    }

    /// Fails all waiters and pauses after a temporary error; returns `false` if the log is closed and there is no
    /// retry.
    ///
    /// Notes and ends of attempts stay queued, because they describe what has happened, and are written after recovery.
    fn pause_after(&self, error: &Error, unwritten: Vec<WaitingEntry>) -> bool {
        let why = format!(
            "{error}; audited operations are rejected until the write succeeds; it is retried every second"
        );
        let mut kept = Vec::new();
        if self.hindrance().replace(why.clone()).is_none() {
            tracing::error!(%error, "cannot write the audit log: rejecting audited operations and retrying");
            // Records the pause in the log itself. This entry is retried until it succeeds.
            let entry = Entry::new(Event::Reopened).with_detail(format!("paused: {error}"));
            kept.push(self.waiting(entry, None));
        }
        for mut waiting in unwritten.into_iter().chain(self.queue.drain()) {
            if waiting.refuse(&why) {
                kept.push(waiting);
            }
        }
        self.queue.retry_after(kept, RETRY_EVERY)
    }

    /// Ends a temporary error.
    fn recovered(&self) {
        if self.hindrance().take().is_some() {
            tracing::info!("the audit log is writable again: accepting audited operations");
        }
    }

    /// Latches the log shut, and fails all waiters.
    fn latch(&self, error: &Error, unwritten: Vec<WaitingEntry>) {
        let why = format!(
            "{error}; audited operations are rejected until the disk is repaired and the process is restarted"
        );
        tracing::error!(%error, "the audit log failed permanently: rejecting audited operations");
        let _ = self.shut.set(why.clone());
        // Only callers that checked just before the latch can still push.
        self.queue.close();
        for mut waiting in unwritten.into_iter().chain(self.queue.drain()) {
            waiting.refuse(&why);
        }
    }

    /// Latches the log shut after a panic of the writer.
    pub(super) fn panicked(&self) {
        let why = format!(
            "the writer thread of the audit log {} panicked",
            self.folder.display()
        );
        self.latch(&unaudited(why), Vec::new());
    }
}

impl WaitingEntry {
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
    /// End of the current file; `None` before the first.
    file: Option<Appender>,
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
    unwritten: Vec<WaitingEntry>,
    count: u64,
}

/// Writes until the log is closed. `opened` is `None` if the log is opened with its first entry.
pub(super) fn run(shared: &Arc<AuditLogState>, mut opened: Option<Writer>) {
    let mut waiting = Vec::new();
    while shared.queue.take(&mut waiting) {
        let mut writer = match opened.take().map_or_else(|| Writer::open(shared), Ok) {
            Ok(writer) => writer,
            Err(error) => {
                let unwritten = std::mem::take(&mut waiting);
                match shared.failed(&error, is_passing(&error), unwritten) {
                    true => continue,
                    false => return,
                }
            }
        };
        let is_last = waiting.iter().any(|it| it.is_last);
        match writer.write(waiting.drain(..)) {
            Ok(()) => {
                shared.recovered();
                if is_last {
                    continue;
                }
                // Let more entries queue up, so that they share one sync.
                shared.queue.let_others_go_first();
            }
            Err(failure) => {
                let is_temporary = matches!(failure, Failure::Unchanged(_));
                let error = trouble(&shared.folder, failure.into());
                if !shared.failed(&error, is_temporary, writer.roll_back()) {
                    return;
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
    source.is_some_and(is_temporary_error)
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
            let detail = format!(
                "{} bytes of an unfinished write were removed from the end",
                tail.torn
            );
            entry = entry.with_detail(detail);
        }
        let begun = writer.write([shared.waiting(entry, None)]);
        begun.map_err(|failure| trouble(path, failure.into()))?;
        Ok(writer)
    }

    fn write(&mut self, waiting: impl IntoIterator<Item = WaitingEntry>) -> Result<(), Failure> {
        let mut waiting = waiting.into_iter();
        while let Some(next) = waiting.next() {
            let added = self.add(next.at, &next.entry);
            self.unwritten.push(next);
            if added.is_err() {
                self.unwritten.extend(waiting);
                return added;
            }
        }
        self.flush()
    }

    /// Returns to the durable end of the log; returns the entries after it.
    fn roll_back(&mut self) -> Vec<WaitingEntry> {
        self.lines.clear();
        self.count = 0;
        (self.seq, self.head) = self.durable;
        std::mem::take(&mut self.unwritten)
    }

    fn add(&mut self, at: Timestamp, entry: &Entry) -> Result<(), Failure> {
        let place = ChainPosition {
            seq: self.seq,
            at,
            node: &self.node,
            prev: self.head,
        };
        let (line, hash) = entry.line(place).map_err(Failure::Unknown)?;
        let len = self.file.as_ref().map_or(0, Appender::end);
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
    fn begin_file(&mut self) -> Result<(), Failure> {
        let (folder, disk) = (&self.shared.folder, &self.shared.options.disk);
        // Opened before the create, so that only the sync can fail after it.
        let names = disk.open_folder(folder).map_err(Failure::of)?;
        let path = folder.join(segment::name(self.seq));
        let file = disk.create(&path).map_err(Failure::of)?;
        // The file name must be durable before an entry in the file is acknowledged.
        names.sync().map_err(Failure::Unknown)?;
        self.file = Some(Appender::new(file, 0, false));
        Ok(())
    }

    /// Makes the added lines durable, and completes their waiters.
    fn flush(&mut self) -> Result<(), Failure> {
        if let Some(file) = &mut self.file
            && !self.lines.is_empty()
        {
            file.append(&self.lines, true)?;
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
