//! Journal: durable storage of a client's calls, so that they survive the process.
//!
//! It is an append-only file of records: the intended request with its key, before its first byte is sent,
//! and the ending, before it is returned.
//! Each record has a checksum. A record that was cut while being written was never acknowledged, and is dropped at the
//! next open. Any other unreadable data is damage, and the journal is not opened.
//!
//! The file contains requests and responses unencrypted, with keys and bodies. It has mode 0600; store it where
//! secrets may be stored. Headers with credentials are [not kept](crate::Client::with_headers_not_kept).
//!
//! ```
//! # fn main() -> refrain::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("calls.journal");
//! use refrain::client::Journal;
//! let journal = Journal::open(&path)?;
//! // A journal can be opened once at a time, by one process.
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

use tokio::sync::{Semaphore, oneshot};

use super::moment::Moment;
use crate::{
    Error, ErrorKind, Fingerprint, Key, Result, Secret,
    clock::{Clock, SystemClock},
    log::{
        commit,
        disk::{Disk, RealDisk},
        folder::FileLock,
    },
};

pub(super) mod codec;
mod file;
mod index;
mod writer;

use codec::{Intent, Record};
use file::LogFile;
use index::Index;
pub(super) use writer::Done;
use writer::{ChangeKind, Jobs, JournalChange, JournalRequest, JournalWriter};

/// Maximum number of queued jobs; further callers wait.
const QUEUE_MAX: usize = 1_024;
/// Upper limit of the body sizes in [`Options`], in bytes.
const BODY_BYTES_MAX: usize = 1 << 30;

/// Options of a journal.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum number of open calls; further calls are rejected before they are sent.
    pub open_calls_max: usize,
    /// Maximum size of a request body, in bytes.
    pub request_bytes_max: usize,
    /// Maximum size of a response body, in bytes. A call with a larger one stays open, because it cannot be stored.
    pub answer_bytes_max: usize,
    /// Time for which answers of finished calls are kept.
    pub retention: Duration,
    /// Maximum number of finished calls; the oldest are dropped first.
    pub finished_calls_max: usize,
    /// Maximum size of finished calls, in bytes; the oldest are dropped first.
    pub finished_bytes_max: u64,
    /// Minimum file size, in bytes, at which the open file is rewritten.
    pub rewrite_bytes_min: u64,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// File system.
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

/// Journal of a client's calls in a file. See [the module](self).
pub struct Journal {
    jobs: Arc<Jobs>,
    /// A caller takes a permit for its job; without a free permit it waits.
    permits: Arc<Semaphore>,
    writer: Option<JoinHandle<()>>,
    options: Arc<Options>,
    /// Key of the fingerprints in this journal.
    secret: Secret,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Drop for Journal {
    /// Waits until all queued writes are done, so that the next open finds them.
    fn drop(&mut self) {
        self.jobs.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Journal {
    /// Opens the journal in this file; creates it if it does not exist.
    ///
    /// # Errors
    /// As for [`open_with`](Self::open_with).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// Opens the journal with these options. Blocks while the file is read.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] if another process has it open, [`ErrorKind::Corrupt`] if it is damaged,
    /// [`ErrorKind::Unsupported`] if the file is not a journal or has another version,
    /// [`ErrorKind::Unavailable`] if it cannot be read or written.
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
        let mut writer = JournalWriter::new(file, index, options.clone(), lock);
        writer.tidy(read);
        let jobs = Arc::new(Jobs::default());
        let (waiting, abandoned) = (jobs.clone(), jobs.clone());
        let failed = move || {
            abandoned.close();
            drop(abandoned.drain());
        };
        let writer = commit::spawn("refrain-journal", move || writer.run(&waiting), failed)?;
        Ok(Self {
            jobs,
            permits: Arc::new(Semaphore::new(QUEUE_MAX)),
            writer: Some(writer),
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

    /// Records an intent, unless the call is already finished.
    pub(super) async fn begin(&self, intent: Intent) -> Result<Done> {
        let what = ChangeKind::Begin(intent.fingerprint);
        let key = intent.key.clone();
        self.write(key, what, Record::Intent(intent.into())).await
    }

    /// Records the ending of a call.
    pub(super) async fn end(&self, key: &Key, record: Record) -> Result<Done> {
        self.write(key.clone(), ChangeKind::End, record).await
    }

    async fn write(&self, key: Key, what: ChangeKind, record: Record) -> Result<Done> {
        let bytes = record.encode();
        let job = |answer| {
            JournalRequest::Change(JournalChange {
                key,
                what,
                record,
                bytes,
                answer,
            })
        };
        self.request(job).await
    }

    /// Returns the intent of a call, if it is open.
    pub(super) async fn load(&self, key: &Key) -> Result<Option<Box<Intent>>> {
        self.request(|answer| JournalRequest::Load(key.clone(), answer))
            .await
    }

    /// Returns every open call, the oldest first, without request bodies.
    pub(super) async fn list(&self) -> Result<Vec<Intent>> {
        self.request(JournalRequest::List).await
    }

    async fn request<R>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<R>>) -> JournalRequest,
    ) -> Result<R> {
        let closed = || Error::new(ErrorKind::Unavailable, "the journal has been closed");
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        let pushed = self.jobs.push((job(answer), permit), QUEUE_MAX);
        pushed.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Returns the fingerprint of a request, keyed by this journal.
    pub(super) fn fingerprint(&self, request: &http::Request<bytes::Bytes>) -> Fingerprint {
        super::request::fingerprint(&self.secret, request)
    }
}

/// Canonical path of the file, independent of links and the working directory, so that the lock file is unique.
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
    FileLock::take(&file::with_suffix(path, ".lock"), &held)
}

#[cfg(test)]
mod tests;
