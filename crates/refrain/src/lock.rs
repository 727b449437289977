//! A file that one process at a time holds.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// A lock on a file; the system lets go of it when the process dies.
#[derive(Debug)]
pub(crate) struct FileLock(File);

/// Why a lock could not be had.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// Another process has it; its number, as far as it could be read.
    Held(String),
    /// The file cannot be opened.
    Open(io::Error),
    /// It cannot be locked.
    Lock(io::Error),
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that is being started just now has the file open, too.
        let _ = self.0.unlock();
    }
}

impl FileLock {
    /// Takes the lock, or says at once who has it.
    pub(crate) fn take(path: &Path) -> Result<Self, NotLocked> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(path).map_err(NotLocked::Open)?;
        match file.try_lock() {
            Ok(()) => {
                // For the message that the next one gets; nothing depends on it.
                let _ = file.set_len(0);
                let _ = write!(file, "{}", std::process::id());
                Ok(Self(file))
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                Err(NotLocked::Held(holder))
            }
            Err(TryLockError::Error(error)) => Err(NotLocked::Lock(error)),
        }
    }
}
