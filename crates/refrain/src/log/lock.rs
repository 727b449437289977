//! Lock file that only one process at a time can hold.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use super::failure::denial_fix;
use crate::{Error, ErrorKind, Result};

/// A lock on a file. The operating system releases it when the process dies.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing the file is not enough: between fork and exec, a child process also has it open.
        let _ = self.0.unlock();
    }
}

impl FileLock {
    /// Takes the lock, or fails at once and names its holder. `held` is the name of the locked resource in messages.
    pub(crate) fn take(path: &Path, held: &str) -> Result<Self> {
        let trouble = |what: &str, error| {
            let fix = denial_fix(&error, "or use another folder for this process");
            let message = format!("{held}: cannot {what} {}{fix}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(path).map_err(|error| trouble("open", error))?;
        match file.try_lock() {
            Ok(()) => {
                // Only for the error message of the next process; nothing depends on it.
                let _ = file.set_len(0);
                let _ = write!(file, "{}", std::process::id());
                Ok(Self(file))
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let message = format!(
                    "{held} is held by another process (pid {holder}); \
                     stop that process, or use another folder for this one"
                );
                Err(Error::new(ErrorKind::Held, message))
            }
            Err(TryLockError::Error(error)) => Err(trouble("lock", error)),
        }
    }
}
