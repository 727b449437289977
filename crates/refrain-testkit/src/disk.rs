//! [`FaultDisk`]: a disk with fault injection and simulated power loss.
//!
//! It writes to real files, so any program that reads the folder sees the written bytes.
//! In memory it tracks, for each file and for the names in the folder, which changes are synced and which are only
//! written. [`FaultDisk::crash`] creates a folder in the state that a power loss may leave: every synced byte and
//! name, a random subset of the unsynced sectors, and a random prefix of the unsynced name changes.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use refrain::store::embedded::disk::Disk;
//! use refrain_testkit::disk::FaultDisk;
//! # let base = std::env::temp_dir().join(format!("refrain-disk-doc-{}", std::process::id()));
//! # let (folder, after) = (base.join("a"), base.join("b"));
//! # std::fs::create_dir_all(&folder)?;
//! let disk = FaultDisk::over(&folder)?;
//! let file = disk.create(&folder.join("kept"))?;
//! file.write_at(b"kept", 0)?;
//! file.sync()?;
//! disk.sync_folder(&folder)?;
//! disk.crash(1, &after)?;
//! assert_eq!(std::fs::read(after.join("kept"))?, b"kept");
//! # std::fs::remove_dir_all(base)
//! # }
//! ```

use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use refrain::store::embedded::disk::{Disk, DiskFile, DiskFolder, RealDisk};

mod dice;
pub use dice::Dice;

mod durable;
use durable::Durable;

/// A disk operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Create a file.
    Create,
    /// Open a file or a folder.
    Open,
    /// Write bytes.
    Write,
    /// Read bytes.
    Read,
    /// Sync a file's bytes.
    Sync,
    /// Change a file's length.
    SetLen,
    /// Rename a file.
    Rename,
    /// Remove a file.
    Remove,
    /// Sync the names in a folder.
    SyncFolder,
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this errno. After a failed sync the unsynced bytes stay readable but never become durable.
    Errno(i32),
    /// Short read or write: only the first byte is transferred.
    Short,
}

impl Fault {
    /// I/O error of the device.
    pub const EIO: Self = Self::Errno(5);
    /// Interrupted by a signal.
    pub const EINTR: Self = Self::Errno(4);
    /// No space left on the device.
    pub const ENOSPC: Self = Self::Errno(28);
    /// The process has no free file descriptor.
    pub const EMFILE: Self = Self::Errno(24);
    /// The system has no free file descriptor.
    pub const ENFILE: Self = Self::Errno(23);
    /// Out of memory.
    pub const ENOMEM: Self = Self::Errno(12);
}

/// Selects operations to fail, and how they fail.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Operation to fail.
    pub operation: Operation,
    /// Suffix of the file name; empty matches every file.
    pub name_ends: &'static str,
    /// Number of matching operations that succeed first.
    pub skip: u32,
    /// Number of matching operations that then fail.
    pub times: u32,
    /// How they fail.
    pub fault: Fault,
}

impl Rule {
    /// Fails every `operation` on files whose name ends with `name_ends`.
    #[must_use]
    pub fn always(operation: Operation, name_ends: &'static str, fault: Fault) -> Self {
        Self {
            operation,
            name_ends,
            skip: 0,
            times: u32::MAX,
            fault,
        }
    }

    /// Fails only the next `operation` on a file whose name ends with `name_ends`.
    #[must_use]
    pub fn once(operation: Operation, name_ends: &'static str, fault: Fault) -> Self {
        Self {
            times: 1,
            ..Self::always(operation, name_ends, fault)
        }
    }
}

/// A disk that fails on command. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    durable: Durable,
    rules: Vec<Rule>,
    /// Number of operations that modify the disk, failed ones included.
    changes: u64,
    /// The value of `changes` at which the simulated end comes; `u64::MAX` for never.
    ends_at: u64,
    end: End,
    /// Number of operations that failed because of a rule.
    hits: u32,
}

/// How a process that uses the disk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Power loss: unsynced changes may be lost, and the operation in progress may have been applied in part.
    Power,
    /// The process is killed: the operation in progress is not applied; all earlier changes are readable.
    Kill,
}

impl FaultDisk {
    /// Returns a fault-injecting disk over this folder; the files already in it count as durable.
    ///
    /// # Errors
    /// When the file system returns an error.
    pub fn over(folder: &Path) -> io::Result<Self> {
        let state = State {
            durable: Durable::of(folder)?,
            rules: Vec::new(),
            changes: 0,
            ends_at: u64::MAX,
            end: End::Power,
            hits: 0,
        };
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// Adds a rule that makes operations fail.
    pub fn fail(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// Removes all rules; returns how many operations they made fail, and resets that count.
    pub fn mend(&self) -> u32 {
        let mut state = self.lock();
        state.rules.clear();
        std::mem::take(&mut state.hits)
    }

    /// Returns how many operations failed because of a rule.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.lock().hits
    }

    /// Returns how many operations modified the disk or tried to.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Ends the process or the power at the `changes`-th modification from now: it and every later operation fail.
    pub fn end_after(&self, changes: u64, end: End) {
        let mut state = self.lock();
        state.ends_at = state.changes + changes;
        state.end = end;
    }

    /// Lets operations succeed again, as after a restart of a killed process.
    pub fn revive(&self) {
        self.lock().ends_at = u64::MAX;
    }

    /// Runs `work` while no operation can change the disk, for example to copy the folder.
    pub fn still<R>(&self, work: impl FnOnce() -> R) -> R {
        let _state = self.lock();
        work()
    }

    /// Writes to `into` the files as a power loss at this moment may leave them.
    /// `seed` decides which unsynced changes survive.
    ///
    /// # Errors
    /// When the file system returns an error.
    pub fn crash(&self, seed: u64, into: &Path) -> io::Result<()> {
        fs::create_dir_all(into)?;
        self.lock().durable.crash(&mut Dice::new(seed), into)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts the operation; returns the fault to inject, or `None` if it succeeds.
    fn fault(&mut self, operation: Operation, name: &str) -> Option<Fault> {
        if !matches!(operation, Operation::Open | Operation::Read) {
            self.changes += 1;
        }
        if self.has_ended() {
            return Some(Fault::EIO);
        }
        let fits = |rule: &&mut Rule| {
            rule.operation == operation && rule.times > 0 && name.ends_with(rule.name_ends)
        };
        let rule = self.rules.iter_mut().find(fits)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        self.hits += 1;
        Some(rule.fault)
    }

    fn has_ended(&self) -> bool {
        self.changes >= self.ends_at
    }

    /// Whether the power was lost during the operation that just failed.
    fn goes_off(&self) -> bool {
        self.changes == self.ends_at && self.end == End::Power
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().map(OsString::from).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Errno(number) => io::Error::from_raw_os_error(number),
        Fault::Short => io::ErrorKind::WriteZero.into(),
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let name = name_of(path);
        let mut state = self.lock();
        if let Some(fault) = state.fault(Operation::Create, &name) {
            if state.goes_off() {
                state.durable.create(&name);
            }
            return Err(error(fault));
        }
        let file = RealDisk.create(path)?;
        let number = state.durable.create(&name);
        Ok(self.file(file, number, name))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let name = name_of(path);
        let mut state = self.lock();
        if let Some(fault) = state.fault(Operation::Open, &name) {
            return Err(error(fault));
        }
        let file = RealDisk.open(path)?;
        let number = state.durable.number(&name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(file, number, name))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (old, new) = (name_of(from), name_of(to));
        let mut state = self.lock();
        if let Some(fault) = state.fault(Operation::Rename, &new) {
            if state.goes_off() {
                state.durable.rename(&old, &new);
            }
            return Err(error(fault));
        }
        RealDisk.rename(from, to)?;
        state.durable.rename(&old, &new);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let name = name_of(path);
        let mut state = self.lock();
        if let Some(fault) = state.fault(Operation::Remove, &name) {
            if state.goes_off() {
                state.durable.remove(&name);
            }
            return Err(error(fault));
        }
        RealDisk.remove(path)?;
        state.durable.remove(&name);
        Ok(())
    }

    fn open_folder(&self, _folder: &Path) -> io::Result<Arc<dyn DiskFolder>> {
        match self.lock().fault(Operation::Open, "") {
            Some(fault) => Err(error(fault)),
            None => Ok(Arc::new(FaultFolder(self.clone()))),
        }
    }
}

/// The folder of a [`FaultDisk`].
#[derive(Debug)]
struct FaultFolder(FaultDisk);

impl DiskFolder for FaultFolder {
    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.fault(Operation::SyncFolder, "") {
            Some(fault) => Err(error(fault)),
            None => {
                state.durable.sync_names();
                Ok(())
            }
        }
    }
}

impl FaultDisk {
    fn file(&self, file: Arc<dyn DiskFile>, number: usize, name: String) -> Arc<dyn DiskFile> {
        Arc::new(FaultFile {
            disk: self.clone(),
            file,
            number,
            name,
        })
    }
}

/// A file on a [`FaultDisk`].
#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    file: Arc<dyn DiskFile>,
    number: usize,
    name: String,
}

impl DiskFile for FaultFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.lock();
        let bytes = match state.fault(Operation::Write, &self.name) {
            None => bytes,
            Some(Fault::Short) => &bytes[..1.min(bytes.len())],
            Some(fault) => {
                if state.goes_off() {
                    state.durable.write(self.number, bytes, offset);
                }
                return Err(error(fault));
            }
        };
        let written = self.file.write_at(bytes, offset)?;
        state.durable.write(self.number, &bytes[..written], offset);
        Ok(written)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.lock();
        match state.fault(Operation::Read, &self.name) {
            None => self.file.read_at(bytes, offset),
            Some(Fault::Short) => {
                let len = 1.min(bytes.len());
                self.file.read_at(&mut bytes[..len], offset)
            }
            Some(fault) => Err(error(fault)),
        }
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        match state.fault(Operation::Sync, &self.name) {
            None => {
                state.durable.sync(self.number);
                Ok(())
            }
            Some(fault) => {
                if !state.has_ended() {
                    state.durable.lose(self.number);
                }
                Err(error(fault))
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        if let Some(fault) = state.fault(Operation::SetLen, &self.name) {
            if state.goes_off() {
                state.durable.set_len(self.number, len);
            }
            return Err(error(fault));
        }
        self.file.set_len(len)?;
        state.durable.set_len(self.number, len);
        Ok(())
    }
}
