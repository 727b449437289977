//! The audit log: what became of every audited attempt and who decided about records, in a chain that shows when it was changed.
//!
//! It is a folder of files with one JSON object in each line, for any tool to read.
//! Every line carries the SHA-256 of the line before it and of itself, so that a line that is changed, removed, moved or
//! put in is found by [`verify`]. Who can rewrite the whole folder can make up a chain: note the [head](Verified::head) elsewhere,
//! and a log that was cut off or rewritten does not hold it any more.
//!
//! Keys, scopes, credentials and bodies are never written.
//!
//! An engine that [has a log](crate::Engine::with_audit) writes the end of each audited attempt before it stores it:
//! an outcome that anybody has seen stands in the log. The other way round, an attempt that was granted and has no end in the
//! log was cut off, and [`verify`] lists it.
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
//! // The log began, it was granted, it was completed.
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
    Error, ErrorKind, Result,
    clock::{Clock, SystemClock},
    store::embedded::disk::{Disk, RealDisk},
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
use writer::{Shared, Writer};

/// A file is closed, and the next one begun, once it would be longer than this.
pub const SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// So many entries may wait for the disk before what is audited is refused.
pub const QUEUE_MAX: usize = 16 << 10;

/// How a log is kept.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest file, in bytes.
    pub segment_bytes_max: u64,
    /// How many entries may wait for the disk.
    pub queue_max: usize,
    /// Where it is written to.
    pub disk: Arc<dyn Disk>,
    /// Whose wall clock dates the entries.
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

/// A log that this process writes. Clones share it.
#[derive(Clone)]
pub struct AuditLog {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens the log in this folder, and begins one where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while another process writes it, [`ErrorKind::Corrupt`] where its end is damaged in a way that no
    /// crash explains, and [`ErrorKind::Unaudited`] where the folder cannot be written.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        Self::open_with(folder, Options::default())
    }

    /// As [`open`](Self::open), kept otherwise.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(folder: impl Into<PathBuf>, options: Options) -> Result<Self> {
        let shared = Arc::new(Shared::new(folder.into(), options));
        let writer = Writer::open(&shared)?;
        Self::start(shared, Some(writer))
    }

    /// A log that is opened with the first entry, and not made before. What hinders that shuts it, unless it passes.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn lazy(folder: impl Into<PathBuf>) -> Result<Self> {
        Self::start(
            Arc::new(Shared::new(folder.into(), Options::default())),
            None,
        )
    }

    fn start(shared: Arc<Shared>, writer: Option<Writer>) -> Result<Self> {
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("refrain-audit".into());
        let thread = thread.spawn(move || writer::run_caught(&its, writer));
        let thread = thread.map_err(|error| {
            let message = "no thread can be started for the audit log";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Whether something that must be audited may begin.
    ///
    /// # Errors
    /// [`ErrorKind::Unaudited`] once the log is shut, while it cannot be written, and while too many entries wait for the disk.
    pub fn check(&self) -> Result<()> {
        self.inner.shared.check()
    }

    /// Writes an entry and does not wait for it. Once the log is shut it is lost.
    pub fn note(&self, entry: Entry) {
        // Why it is shut was told when it was.
        let _ = self.inner.shared.push(entry, false);
    }

    /// Writes an entry, and answers once it is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Unaudited`] when it could not be written: whether it is there is not known, and after anything but
    /// trouble that passes nothing is written behind it.
    ///
    /// # Cancellation
    /// The entry is on its way when this returns: dropped, it is written all the same.
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

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.inner.shared.folder
    }

    /// How many entries this process has made durable.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.inner.shared.written.load(Ordering::Relaxed)
    }

    /// Why nothing is written any more, or cannot be written now, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.shared.trouble()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
        let thread = self.thread.get_mut();
        // What was not waited for is written before the process ends.
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
