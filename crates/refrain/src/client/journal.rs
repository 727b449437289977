//! Where a client keeps its calls, so that they outlive its process.
//!
//! A file to which records are appended: what is meant to be done under a key, before the first byte of it is sent;
//! and how it ended, before anybody is told.
//! Each record has a checksum. What was cut off in the middle of being written was never acknowledged, and is dropped at the next opening;
//! anything else that cannot be read is damage, and the journal is not opened.
//!
//! The file holds requests and answers as they are, keys and bodies included: it has mode 0600, and belongs where secrets may lie.
//! Headers that carry credentials are [not kept](crate::Client::with_headers_not_kept).
//!
//! ```
//! # fn main() -> refrain::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("calls.journal");
//! use refrain::client::Journal;
//! let journal = Journal::open(&path)?;
//! // One process, and one journal in it, at a time.
//! assert!(Journal::open(&path).is_err());
//! # drop(journal);
//! # Ok(())
//! # }
//! ```

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use super::moment::Moment;
use crate::{
    Error, ErrorKind, Fingerprint, Key, Result, Secret,
    clock::{Clock, SystemClock},
    lock::FileLock,
    store::embedded::disk::{Disk, RealDisk},
};

pub(super) mod codec;
mod file;
mod frame;
mod index;
mod keeper;

use codec::{Intent, Record};
use file::LogFile;
use index::Index;
pub(super) use keeper::Done;
use keeper::{Job, Keeper, What, Write};

/// So many changes may wait for the disk; who comes then waits for room.
const QUEUE_MAX: usize = 1_024;
/// The longest body that a journal can be set to take.
const BODY_BYTES_MAX: usize = 1 << 30;

/// How a journal is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most calls that may be open: more are refused before they are sent.
    pub open_calls_max: usize,
    /// The longest body of a request.
    pub request_bytes_max: usize,
    /// The longest body of an answer. A longer one leaves its call open, for it cannot be kept.
    pub answer_bytes_max: usize,
    /// How long the answers of finished calls are kept.
    pub retention: Duration,
    /// The most finished calls that are kept; the oldest go first.
    pub finished_calls_max: usize,
    /// How much finished calls may take; the oldest go first.
    pub finished_bytes_max: u64,
    /// Up to this length the file is not written anew while it is open.
    pub rewrite_bytes_min: u64,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where files are.
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            open_calls_max: 10_000,
            request_bytes_max: 8 << 20,
            answer_bytes_max: 8 << 20,
            retention: Duration::from_secs(24 * 60 * 60),
            finished_calls_max: 100_000,
            finished_bytes_max: 64 << 20,
            rewrite_bytes_min: 1 << 20,
            clock: Arc::new(SystemClock),
            disk: Arc::new(RealDisk),
        }
    }
}

/// A client's calls in a file. See [the module](self).
pub struct Journal {
    /// `None` once it is being closed.
    jobs: Option<mpsc::Sender<Job>>,
    keeper: Option<JoinHandle<()>>,
    options: Arc<Options>,
    /// What fingerprints in it are made with.
    secret: Secret,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Drop for Journal {
    /// Waits until what was asked of the disk is done: who opens the file next finds it.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Journal {
    /// Opens the journal in this file, and makes it if there is none.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Opens the journal with limits of one's own. Blocks while the file is read.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another process has it, [`ErrorKind::Corrupt`] when it is damaged,
    /// [`ErrorKind::Unsupported`] when the file is not a journal or one of another version,
    /// [`ErrorKind::Unavailable`] when it cannot be read or written.
    pub fn open_with(path: impl AsRef<Path>, mut options: Options) -> Result<Self> {
        let path = &resolved(path.as_ref())?;
        // Lengths in the file are 32 bits wide.
        options.request_bytes_max = options.request_bytes_max.min(BODY_BYTES_MAX);
        options.answer_bytes_max = options.answer_bytes_max.min(BODY_BYTES_MAX);
        let options = Arc::new(options);
        let lock = take_lock(path)?;
        let (file, records) = LogFile::open(options.disk.clone(), path)?;
        let (mut index, read) = (Index::default(), records.len());
        for (place, bytes) in records {
            let record = Record::decode(&bytes).ok_or_else(|| file.damaged(place.offset))?;
            index.apply(&record, place);
        }
        let secret = file.secret().clone();
        let mut keeper = Keeper::new(file, index, options.clone(), lock);
        keeper.tidy(read);
        let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new().name("refrain-journal".into());
        let keeper = thread.spawn(move || keeper.run(waiting)).map_err(|error| {
            let message = "no thread could be started for the journal";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        Ok(Self {
            jobs: Some(jobs),
            keeper: Some(keeper),
            options,
            secret,
        })
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn now(&self) -> Moment {
        Moment::now(&*self.options.clock)
    }

    /// Writes down what is meant to be done, unless it is done already.
    pub(super) async fn begin(&self, intent: Intent) -> Result<Done> {
        let what = What::Begin(intent.fingerprint);
        let key = intent.key.clone();
        self.write(key, what, Record::Intent(intent.into())).await
    }

    /// Writes down how a call ended.
    pub(super) async fn end(&self, key: &Key, record: Record) -> Result<Done> {
        self.write(key.clone(), What::End, record).await
    }

    async fn write(&self, key: Key, what: What, record: Record) -> Result<Done> {
        let bytes = record.encode();
        let job = |answer| {
            Job::Write(Write {
                key,
                what,
                record,
                bytes,
                answer,
            })
        };
        self.ask(job).await
    }

    /// The intent of a call, if it is open.
    pub(super) async fn load(&self, key: &Key) -> Result<Option<Box<Intent>>> {
        self.ask(|answer| Job::Load(key.clone(), answer)).await
    }

    /// Every open call, the oldest first, without the bodies of their requests.
    pub(super) async fn list(&self) -> Result<Vec<Intent>> {
        self.ask(Job::List).await
    }

    async fn ask<R>(&self, job: impl FnOnce(oneshot::Sender<Result<R>>) -> Job) -> Result<R> {
        let closed = || Error::new(ErrorKind::Unavailable, "the journal has been closed");
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(closed)?;
        jobs.send(job(answer)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// The fingerprint of a request under this journal.
    pub(super) fn fingerprint(&self, request: &http::Request<bytes::Bytes>) -> Fingerprint {
        super::request::fingerprint(&self.secret, request)
    }
}

/// The one name of the file, whatever it is called by and wherever the process goes: the lock is beside that.
fn resolved(path: &Path) -> Result<PathBuf> {
    let trouble = |error| {
        let message = format!("the journal {} cannot be found", path.display());
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    match path.canonicalize() {
        Ok(path) if path.is_dir() => {
            let message = format!("{} is a folder; name a file", path.display());
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = std::path::absolute(path).map_err(trouble)?;
            match (path.parent(), path.file_name()) {
                (Some(folder), Some(name)) => {
                    Ok(folder.canonicalize().map_err(trouble)?.join(name))
                }
                _ => Err(trouble(error)),
            }
        }
        Err(error) => Err(trouble(error)),
    }
}

fn take_lock(path: &Path) -> Result<FileLock> {
    let held = format!("the journal {}", path.display());
    FileLock::take(&file::beside(path, ".lock"), &held)
}

#[cfg(test)]
mod tests;
