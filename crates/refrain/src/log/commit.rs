//! Group commit: the queue of the one thread that writes a log, and the append that makes a batch durable.
//!
//! The thread takes all waiting jobs at once, and commits them with one write and one sync.
//! An append that fails leaves no trace, or the content of the disk is unknown.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{disk::DiskFile, failure::Failure};
use crate::{Error, ErrorKind, Result};

/// At this length a caller hands the processor back to the yielding writer: more jobs would hardly make the sync cheaper
/// for each of them, and can be queued while the disk works.
const ENOUGH: usize = 192;

/// Jobs that wait for the writer.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    waiting: Mutex<WaitingJobs<J>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct WaitingJobs<J> {
    jobs: Vec<J>,
    /// Whether the writer sleeps until the next job.
    is_asleep: bool,
    /// Whether the writer has yielded the processor, so that more jobs share one sync.
    is_yielding: bool,
    is_closed: bool,
}

/// Why a job was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotQueued {
    Closed,
    Full,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(WaitingJobs {
                jobs: Vec::new(),
                is_asleep: false,
                is_yielding: false,
                is_closed: false,
            }),
            arrived: Condvar::new(),
        }
    }
}

impl<J> Queue<J> {
    fn waiting(&self) -> MutexGuard<'_, WaitingJobs<J>> {
        lock(&self.waiting)
    }

    /// Queues a job, unless `jobs_max` jobs wait already.
    pub(crate) fn push(&self, job: J, jobs_max: usize) -> Result<(), NotQueued> {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(NotQueued::Closed);
        }
        if waiting.jobs.len() >= jobs_max {
            return Err(NotQueued::Full);
        }
        waiting.jobs.push(job);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        let is_enough = waiting.is_yielding && waiting.jobs.len() >= ENOUGH;
        if is_enough {
            waiting.is_yielding = false;
        }
        drop(waiting);
        if is_asleep {
            self.arrived.notify_one();
        }
        if is_enough {
            // Yield to the writer: later jobs are queued while the disk works.
            thread::yield_now();
        }
        Ok(())
    }

    /// The number of waiting jobs.
    pub(crate) fn len(&self) -> usize {
        self.waiting().jobs.len()
    }

    /// Yields the processor, until callers have queued enough jobs for a sync or have no more.
    pub(crate) fn let_others_go_first(&self) {
        self.waiting().is_yielding = true;
        thread::yield_now();
        self.waiting().is_yielding = false;
    }

    /// Takes all jobs into `jobs`, which is empty; waits for the first one.
    /// Returns `false` once the queue is closed and empty.
    pub(crate) fn take(&self, jobs: &mut Vec<J>) -> bool {
        let mut waiting = self.waiting();
        while waiting.jobs.is_empty() {
            if waiting.is_closed {
                return false;
            }
            waiting.is_asleep = true;
            let woken = self.arrived.wait(waiting);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
            // The caller that woke this thread may be about to queue more jobs for the same sync.
            self.let_others_go_first();
            waiting = self.waiting();
        }
        std::mem::swap(&mut waiting.jobs, jobs);
        true
    }

    /// Puts jobs back before all others, then waits for `pause`. Returns `false` if the queue is closed.
    pub(crate) fn retry_after(&self, jobs: Vec<J>, pause: Duration) -> bool {
        let mut waiting = self.waiting();
        waiting.jobs.splice(0..0, jobs);
        let is_open = |waiting: &mut WaitingJobs<J>| !waiting.is_closed;
        let waited = self.arrived.wait_timeout_while(waiting, pause, is_open);
        let (waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !waiting.is_closed
    }

    /// Closes the queue; the writer still takes the jobs in it.
    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.arrived.notify_all();
    }

    /// Takes all jobs without waiting.
    pub(crate) fn drain(&self) -> Vec<J> {
        std::mem::take(&mut self.waiting().jobs)
    }
}

/// The end of a log file that is appended to.
#[derive(Debug)]
pub(crate) struct Appender {
    file: Arc<dyn DiskFile>,
    end: u64,
    /// Whether the file was allocated in advance: zeros follow its end, and its length never changes.
    /// Otherwise it ends there, and each append makes it longer.
    is_allocated: bool,
    /// Number of bytes after the end that a failed write may have left.
    unclean: u64,
}

impl Appender {
    pub(crate) fn new(file: Arc<dyn DiskFile>, end: u64, is_allocated: bool) -> Self {
        Self {
            file,
            end,
            is_allocated,
            unclean: 0,
        }
    }

    /// The offset of the next append.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Appends these bytes, with one sync; without `is_synced` they are only in the operating system.
    pub(crate) fn append(&mut self, bytes: &[u8], is_synced: bool) -> Result<(), Failure> {
        self.clean()?;
        self.unclean = bytes.len() as u64;
        if let Err(error) = self.file.write_all_at(bytes, self.end) {
            return Err(self.failed(error));
        }
        if is_synced {
            self.file.sync().map_err(Failure::Unknown)?;
        }
        self.end += self.unclean;
        self.unclean = 0;
        Ok(())
    }

    /// After a temporary error, the written bytes are removed now, or else before the next append.
    fn failed(&mut self, error: io::Error) -> Failure {
        match Failure::of(error) {
            Failure::Unchanged(error) => match self.clean() {
                Err(failure @ Failure::Unknown(_)) => failure,
                _ => Failure::Unchanged(error),
            },
            failure => failure,
        }
    }

    /// Removes a torn write of this length, which a crash left after the end.
    pub(crate) fn remove_torn(&mut self, len: u64) -> Result<(), Failure> {
        self.unclean = len;
        self.clean()
    }

    /// Removes the bytes that a failed write may have left after the end.
    pub(crate) fn clean(&mut self) -> Result<(), Failure> {
        if self.unclean == 0 {
            return Ok(());
        }
        let stretch = self.end..self.end + self.unclean;
        let removed = match self.is_allocated {
            false => self.file.set_len(self.end),
            true => self.file.zero(stretch, u64::MAX),
        };
        removed.map_err(Failure::of)?;
        self.file.sync().map_err(Failure::Unknown)?;
        self.unclean = 0;
        Ok(())
    }
}

/// Starts a thread. If it panics, `failed` runs, so that no caller waits for a dead writer.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
    failed: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let guarded = move || {
        // Unwind safe: the thread's own state is not used after a panic.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            failed();
        }
    };
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(guarded).map_err(|error| {
        let message = format!("cannot start the thread {name}");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// Locks a mutex, ignoring poison: a panic cannot leave the data under these locks half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
