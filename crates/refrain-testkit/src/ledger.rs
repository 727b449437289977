//! [`Ledger`]: records the effects that really happened, independent of the system under test.
//!
//! The operation itself writes to the ledger at the moment of its effect.
//! A ledger in a file survives processes that are killed, and several processes can append to it.
//! [`Audit`] compares the ledger with what clients observed.
//!
//! ```
//! use refrain_testkit::Ledger;
//!
//! let ledger = Ledger::in_memory();
//! ledger.record("order-7", "1.1.00000007")?;
//! assert_eq!(ledger.effects("order-7")?.len(), 1);
//! # Ok::<(), refrain::Error>(())
//! ```

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use refrain::{Error, ErrorKind, Result};

mod audit;
pub use audit::{Audit, Seen, Violation};

mod points;
pub(crate) use points::Fall;
use points::Points;

/// Maximum length of a line in a ledger file, in bytes: short enough for one write.
const LINE_BYTES_MAX: usize = 1_024;

/// Records effects. Clones share the same ledger.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Book>);

#[derive(Debug)]
struct Book {
    kept: Kept,
    /// Points at which the crash harness can inject a crash.
    points: Points,
}

#[derive(Debug)]
enum Kept {
    Memory(Mutex<Vec<Effect>>),
    File(File, PathBuf),
}

/// One effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Effect {
    /// Idempotency key of the operation.
    pub key: String,
    /// The attempt that had the effect: its fence, or another unique name.
    pub attempt: String,
}

impl Ledger {
    /// Returns a ledger in memory, for one process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(Kept::Memory(Mutex::default()))
    }

    /// Opens a ledger file that other processes can share; creates it if it does not exist.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let file = opened.map_err(|error| convert_error("cannot open", &path, error))?;
        Ok(Self::new(Kept::File(file, path)))
    }

    fn new(kept: Kept) -> Self {
        Self(Arc::new(Book {
            kept,
            points: Points::default(),
        }))
    }

    /// Reads every effect from a ledger file, in the order in which they happened.
    ///
    /// # Errors
    /// When the file cannot be read, or contains an invalid line.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Effect>> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| convert_error("cannot read", path, error))?;
        let lines = (1..).zip(text.split_inclusive('\n'));
        let parse = |(number, line)| Effect::parse(line).ok_or_else(|| damaged(path, number));
        lines.map(parse).collect()
    }

    /// Records one effect. Call it exactly where the effect happens.
    ///
    /// # Errors
    /// When key or attempt contain a tab or a line break or are too long, or the file cannot be written.
    pub fn record(&self, key: &str, attempt: impl ToString) -> Result<()> {
        let effect = Effect {
            key: key.to_owned(),
            attempt: attempt.to_string(),
        };
        let line = effect.line()?;
        match &self.0.kept {
            Kept::Memory(effects) => {
                let mut effects = effects.lock().unwrap_or_else(PoisonError::into_inner);
                effects.push(effect);
                Ok(())
            }
            // One write for the whole line, so that lines of several processes do not interleave.
            Kept::File(file, path) => (&*file)
                .write_all(line.as_bytes())
                .map_err(|error| convert_error("cannot write to", path, error)),
        }
    }

    /// Returns every effect so far, from all processes.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn all(&self) -> Result<Vec<Effect>> {
        match &self.0.kept {
            Kept::Memory(effects) => {
                let effects = effects.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(effects.clone())
            }
            Kept::File(_, path) => Self::read(path),
        }
    }

    /// Returns the effects under one key.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn effects(&self, key: &str) -> Result<Vec<Effect>> {
        let mut effects = self.all()?;
        effects.retain(|effect| effect.key == key);
        Ok(effects)
    }
}

impl Effect {
    fn line(&self) -> Result<String> {
        let Self { key, attempt } = self;
        let line = format!("{key}\t{attempt}\n");
        match Self::parse(&line).as_ref() == Some(self) && line.len() <= LINE_BYTES_MAX {
            true => Ok(line),
            false => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "key {key:?} with attempt {attempt:?} does not fit into a line of the ledger: remove tabs and line breaks, and use fewer than {LINE_BYTES_MAX} bytes"
                ),
            )),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (key, attempt) = line.strip_suffix('\n')?.split_once('\t')?;
        let is_plain = |text: &str| !text.contains(['\t', '\n', '\r']);
        (is_plain(key) && is_plain(attempt)).then(|| Self {
            key: key.to_owned(),
            attempt: attempt.to_owned(),
        })
    }
}

fn convert_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("{what} the ledger {}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

fn damaged(path: &Path, number: usize) -> Error {
    let message = format!(
        "line {number} of the ledger {} is invalid; expected key, tab, attempt",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
