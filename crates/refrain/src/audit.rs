//! Audit log: the results of all audited attempts and all operator decisions, in a tamper-evident hash chain.
//!
//! It is a directory of JSON Lines files.
//! Every line contains the SHA-256 of the previous line and of itself, so [`verify`] detects a line that was changed,
//! removed, moved or inserted. An attacker who can rewrite the whole directory can forge a chain: record the
//! [head](Verified::head) elsewhere, and a truncated or rewritten log no longer contains it.
//!
//! Keys, scopes, credentials and bodies are never written.
//!
//! An engine [with a log](crate::Engine::with_audit) writes the end of each audited attempt before it stores it, so
//! every outcome that a caller has seen is in the log. Conversely, an attempt that was granted and has no end in the
//! log was interrupted, and [`verify`] lists it.
//!
//! ```
//! use refrain::{AuditLog, Engine, Intent, Key, Outcome, Scope, audit, store::Memory};
//!
//! # let folder = std::env::temp_dir().join(format!("refrain-audit-doc-{}", std::process::id()));
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let engine = Engine::new(Memory::new()).with_audit(AuditLog::open(&folder)?);
//! let mut intent = Intent::new(Scope::none(), Key::new("order-7")?);
//! intent.audit = Some("POST /v1/payments".into());
//! engine.run(&intent, async |_| Outcome::new(201, "charged")).await?;
//!
//! let verified = audit::verify(&folder, &audit::Check::default(), &mut |_| ())?;
//! assert!(verified.damage.is_empty());
//! // Three entries: the log began, the claim was granted, the claim was completed.
//! assert_eq!(verified.entries, 3);
//! # Ok::<(), refrain::Error>(())
//! # }).unwrap();
//! # std::fs::remove_dir_all(folder).unwrap();
//! ```

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use crate::{
    Result,
    clock::{Clock, SystemClock},
    log::{
        commit,
        disk::{Disk, RealDisk},
    },
};

mod chain;
pub use chain::ChainHash;

mod entry;
pub use entry::{Entry, Event, LINE_BYTES_MAX, Written};

mod open;

mod segment;

mod trace;
pub use trace::{Attempt, Loose};

mod verify;
pub use verify::{Check, Damage, DamageKind, Verified, Visit, verify};

mod writer;
use writer::{AuditLogState, Writer};

/// Default maximum size of a file, in bytes; then the next file begins.
pub const SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// Default maximum number of queued entries, above which audited operations are rejected.
pub const QUEUE_MAX: usize = 16 << 10;

/// Options of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum size of a file, in bytes.
    pub segment_bytes_max: u64,
    /// Maximum number of entries that wait for the disk.
    pub queue_max: usize,
    /// File system.
    pub disk: Arc<dyn Disk>,
    /// Wall clock for the time of entries.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes_max: SEGMENT_BYTES_MAX,
            queue_max: QUEUE_MAX,
            disk: Arc::new(RealDisk),
            clock: Arc::new(SystemClock),
        }
    }
}

/// An audit log that this process writes. Clones share it.
#[derive(Clone)]
pub struct AuditLog {
    inner: Arc<AuditThread>,
}

struct AuditThread {
    shared: Arc<AuditLogState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens the log in this directory; creates it if it does not exist.
    ///
    /// # Errors
    /// [`Held`](crate::ErrorKind::Held) if another process writes it, [`Corrupt`](crate::ErrorKind::Corrupt) if its end
    /// has damage that a crash cannot explain, and [`Unaudited`](crate::ErrorKind::Unaudited) if the directory is not
    /// writable.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        Self::open_with(folder, Options::default())
    }

    /// Like [`open`](Self::open), with these options.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(folder: impl Into<PathBuf>, options: Options) -> Result<Self> {
        let shared = Arc::new(AuditLogState::new(folder.into(), options));
        let writer = Writer::open(&shared)?;
        Self::start(shared, Some(writer))
    }

    /// Creates a log that is opened with its first entry. If that fails permanently, the log rejects all entries.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn lazy(folder: impl Into<PathBuf>) -> Result<Self> {
        Self::start(
            Arc::new(AuditLogState::new(folder.into(), Options::default())),
            None,
        )
    }

    fn start(shared: Arc<AuditLogState>, writer: Option<Writer>) -> Result<Self> {
        let (its, failed) = (shared.clone(), shared.clone());
        let work = move || writer::run(&its, writer);
        let thread = commit::spawn("refrain-audit", work, move || failed.panicked())?;
        Ok(Self {
            inner: Arc::new(AuditThread {
                shared,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Checks that an audited operation may start.
    ///
    /// # Errors
    /// [`Unaudited`](crate::ErrorKind::Unaudited) if the log has failed permanently or is not writable,
    /// or while the queue is full.
    pub fn check(&self) -> Result<()> {
        self.inner.shared.check()
    }

    /// Queues an entry without waiting. After a permanent error, the entry is dropped.
    pub fn note(&self, entry: Entry) {
        // The permanent error was logged when it occurred.
        let _ = self.inner.shared.push(entry, false);
    }

    /// Writes an entry; completes when it is durable.
    ///
    /// # Errors
    /// [`Unaudited`](crate::ErrorKind::Unaudited) if the write failed: the entry may or may not be in the log.
    /// Unless the error is temporary, nothing is written after it.
    ///
    /// # Cancellation
    /// The entry is queued before this function returns: if the future is dropped, the entry is written anyway.
    pub fn write(&self, entry: Entry) -> impl Future<Output = Result<()>> + Send + use<> {
        let pushed = self.inner.shared.push(entry, true);
        async move {
            let Some(told) = pushed? else {
                return Ok(());
            };
            told.await.unwrap_or_else(|_| {
                let message = "the audit log was closed before an entry was written";
                Err(writer::unaudited(message.into()))
            })
        }
    }

    /// Closes the log, so that another process can write it. The next entry opens it again.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn release(&self) -> Result<()> {
        let entry =
            Entry::new(Event::Reopened).with_detail("closed: another process continues the log");
        let Some(told) = self.inner.shared.push_with(entry, true, true)? else {
            return Ok(());
        };
        told.await.unwrap_or_else(|_| {
            let message = "the audit log was closed before an entry was written";
            Err(writer::unaudited(message.into()))
        })
    }

    /// Returns the directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.inner.shared.folder
    }

    /// Number of entries that this process has made durable.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.inner.shared.written.load(Ordering::Relaxed)
    }

    /// Returns the permanent error of the log, or its current temporary error, if any.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.shared.trouble()
    }
}

impl Drop for AuditThread {
    fn drop(&mut self) {
        self.shared.close();
        let thread = self.thread.get_mut();
        // Write the queued entries before the process ends.
        if let Some(thread) = thread.unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuditLog").field(&self.folder()).finish()
    }
}
