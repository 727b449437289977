//! The oracle outside the system under test: what really took effect.
//!
//! The operation itself writes to the ledger, at the moment of its effect, past everything that is being tested.
//! Kept in a file, it outlives processes that are killed, and many can write to it at once.
//! [`Audit`] then holds it against what clients were told.
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

/// The longest line of a ledger file: short enough to be written in one piece.
const LINE_BYTES_MAX: usize = 1_024;

/// Counts effects. Clones count into the same ledger.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Book>);

#[derive(Debug)]
struct Book {
    kept: Kept,
    /// Where the crash harness may strike.
    points: Points,
}

#[derive(Debug)]
enum Kept {
    Memory(Mutex<Vec<Effect>>),
    File(File, PathBuf),
}

/// Something that took effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Effect {
    /// Under which key.
    pub key: String,
    /// By which attempt: its fence, or whatever else tells attempts apart.
    pub attempt: String,
}

impl Ledger {
    /// A ledger for one process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(Kept::Memory(Mutex::default()))
    }

    /// A ledger in a file, to be shared with other processes; begun if there is none.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let file = opened.map_err(|error| trouble("cannot open", &path, error))?;
        Ok(Self::new(Kept::File(file, path)))
    }

    fn new(kept: Kept) -> Self {
        Self(Arc::new(Book {
            kept,
            points: Points::default(),
        }))
    }

    /// Every effect in a ledger file, in the order in which they happened.
    ///
    /// # Errors
    /// When the file cannot be read, or holds a line that is no effect.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Effect>> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| trouble("cannot read", path, error))?;
        let lines = (1..).zip(text.split_inclusive('\n'));
        let parse = |(number, line)| Effect::parse(line).ok_or_else(|| damaged(path, number));
        lines.map(parse).collect()
    }

    /// Notes one effect. To be called where the effect happens, and nowhere else.
    ///
    /// # Errors
    /// When key or attempt hold a tab or a line break or are too long, or the file cannot be written.
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
            // One write of the whole line: lines of several processes do not run into each other.
            Kept::File(file, path) => (&*file)
                .write_all(line.as_bytes())
                .map_err(|error| trouble("cannot write to", path, error)),
        }
    }

    /// Every effect so far, by whatever process.
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

    /// The effects under one key.
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
                    "key {key:?} with attempt {attempt:?} does not fit into a line of the ledger: \
                     leave out tabs and line breaks, and stay under {LINE_BYTES_MAX} bytes"
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

fn trouble(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("{what} the ledger {}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

fn damaged(path: &Path, number: usize) -> Error {
    let message = format!(
        "line {number} of the ledger {} is no effect: key, tab, attempt",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
