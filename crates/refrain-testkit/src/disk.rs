//! A disk that fails when it is told to, and that knows what a loss of power would leave of it.
//!
//! It works on real files, so that whatever reads the folder sees what was written.
//! Beside them it keeps, for each file and for the folder's names, what has been synced and what has only been written.
//! [`FaultDisk::crash`] makes a folder as the machine may find it after the power came back:
//! all that was synced, and of the rest any sectors and any first part of the changes to names.
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

/// What a disk is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Make a file.
    Create,
    /// Open a file or a folder.
    Open,
    /// Write some bytes.
    Write,
    /// Read some bytes.
    Read,
    /// Make a file's bytes durable.
    Sync,
    /// Cut a file.
    SetLen,
    /// Give a file another name.
    Rename,
    /// Remove a file.
    Remove,
    /// Make the names in a folder durable.
    SyncFolder,
}

/// How an operation goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The system's error with this number. A failed sync leaves its bytes to be read and never makes them durable.
    Errno(i32),
    /// Only the first byte is written or read.
    Short,
}

impl Fault {
    /// The device failed.
    pub const EIO: Self = Self::Errno(5);
    /// A signal came in between.
    pub const EINTR: Self = Self::Errno(4);
    /// No room.
    pub const ENOSPC: Self = Self::Errno(28);
    /// The process has no descriptor free.
    pub const EMFILE: Self = Self::Errno(24);
    /// The system has no descriptor free.
    pub const ENFILE: Self = Self::Errno(23);
    /// No memory.
    pub const ENOMEM: Self = Self::Errno(12);
}

/// Which operations go wrong, and how.
#[derive(Debug, Clone)]
pub struct Rule {
    /// What is asked.
    pub operation: Operation,
    /// How the file's name ends; empty for every file.
    pub name_ends: &'static str,
    /// So many fitting operations go well first.
    pub skip: u32,
    /// So many go wrong then.
    pub times: u32,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// From now on, each such operation on files whose names end so.
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

    /// The next such operation alone.
    #[must_use]
    pub fn once(operation: Operation, name_ends: &'static str, fault: Fault) -> Self {
        Self {
            times: 1,
            ..Self::always(operation, name_ends, fault)
        }
    }
}

/// A disk that fails when it is told to. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    durable: Durable,
    rules: Vec<Rule>,
    /// How many operations that change something there were.
    changes: u64,
    /// The end comes at this one.
    ends_at: u64,
    end: End,
    /// How many operations a rule made fail.
    hits: u32,
}

/// What ends whoever works on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The power goes: what was not synced may be lost, a part of the change that was under way may be there.
    Power,
    /// The process is killed: the change that was under way has not begun, all before it can be read.
    Kill,
}

impl FaultDisk {
    /// The disk under this folder; what is in it counts as durable.
    ///
    /// # Errors
    /// As the file system says.
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

    /// Makes operations fail.
    pub fn fail(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// From now on nothing fails; answers how many operations did.
    pub fn mend(&self) -> u32 {
        let mut state = self.lock();
        state.rules.clear();
        std::mem::take(&mut state.hits)
    }

    /// How many operations a rule made fail.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.lock().hits
    }

    /// How many operations that change something there were.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// The end comes with this change, counted from now: it and everything behind it fail.
    pub fn end_after(&self, changes: u64, end: End) {
        let mut state = self.lock();
        state.ends_at = state.changes + changes;
        state.end = end;
    }

    /// After a kill: another process may go on.
    pub fn revive(&self) {
        self.lock().ends_at = u64::MAX;
    }

    /// Does something while nothing can change on the disk, such as to copy it.
    pub fn still<R>(&self, work: impl FnOnce() -> R) -> R {
        let _state = self.lock();
        work()
    }

    /// Makes in `into` what the machine may find after a loss of power at this moment.
    ///
    /// # Errors
    /// As the file system says.
    pub fn crash(&self, seed: u64, into: &Path) -> io::Result<()> {
        fs::create_dir_all(into)?;
        self.lock().durable.crash(&mut Dice::new(seed), into)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the operation goes well (`None`), or how it fails.
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

    /// Whether the operation that was just refused was under way when the power went.
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

/// The folder under it.
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

/// A file of it.
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
