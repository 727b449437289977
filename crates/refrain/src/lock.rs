//! A file that one process at a time holds.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::{Error, ErrorKind, Result};

/// What to do about a file that the system denies, to be put behind what cannot be done; empty for any other trouble.
pub(crate) fn denial_fix(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!(" (run as the owner, {otherwise})"),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!(" (the file system is read-only; mount it for writing, {otherwise})")
        }
        _ => String::new(),
    }
}

/// A lock on a file; the system lets go of it when the process dies.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that is being started just now has the file open, too.
        let _ = self.0.unlock();
    }
}

impl FileLock {
    /// Takes the lock, or says at once who has it. `held` is what messages call that which it stands for.
    pub(crate) fn take(path: &Path, held: &str) -> Result<Self> {
        let trouble = |what: &str, error| {
            let fix = denial_fix(&error, "or give this process a place of its own");
            let message = format!("{held}: {} cannot be {what}{fix}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options
            .open(path)
            .map_err(|error| trouble("opened", error))?;
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
                let message = format!(
                    "{held} is held by another process (pid {holder}); \
                     stop that one, or give this one a place of its own"
                );
                Err(Error::new(ErrorKind::Held, message))
            }
            Err(TryLockError::Error(error)) => Err(trouble("locked", error)),
        }
    }
}
