//! Folders that one process at a time writes to: creation, lock, and atomic replacement of a file.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    sync::Arc,
};

use super::{
    disk::{Disk, DiskFile},
    failure::{Failure, denial_fix},
};
use crate::{Error, ErrorKind, Result};

/// Name of the lock file in a folder.
pub(crate) const LOCK: &str = "lock";

/// Creates the folder if it does not exist, and makes its directory entry durable.
pub(crate) fn make(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|it| !it.exists()).collect();
    // Outcomes contain user data: only the owner may read them.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    for made in missing {
        match disk.sync_folder(parent(made)) {
            // A process that may create a folder may lack the permission to read its parent.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the folder of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Locks a folder that one process at a time writes to; `what` names the folder in messages.
pub(crate) fn take_lock(path: &Path, what: &str) -> Result<FileLock> {
    FileLock::take(&path.join(LOCK), &format!("{what} {}", path.display()))
}

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

/// Replaces a file by one with these bytes: after a crash it has the old or the new content, never a part of it.
/// The temporary file has the extension `new`.
///
/// A [temporary](super::failure::is_temporary_error) error means that nothing was replaced.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = |file: &Arc<dyn DiskFile>| file.write_all_at(bytes, 0);
    replace_with(disk, path, &path.with_extension("new"), write).map_err(io::Error::from)
}

/// Replaces a file by one that `write` fills; `fresh` is the path of the temporary file.
///
/// # Errors
/// [`Failure::Unchanged`] if nothing was replaced, for any reason.
pub(crate) fn replace_with<T>(
    disk: &dyn Disk,
    path: &Path,
    fresh: &Path,
    write: impl FnOnce(&Arc<dyn DiskFile>) -> io::Result<T>,
) -> Result<T, Failure> {
    let renamed = || -> io::Result<_> {
        // Open the folder first: after the rename, only the sync itself can fail.
        let folder = disk.open_folder(parent(path))?;
        let file = disk.create(fresh)?;
        let written = write(&file)?;
        file.sync()?;
        disk.rename(fresh, path)?;
        Ok((folder, written))
    };
    let (folder, written) = renamed().map_err(|error| {
        let _ = disk.remove(fresh);
        Failure::Unchanged(error)
    })?;
    // From here on it is unknown which of the two files a power failure leaves.
    folder.sync().map_err(Failure::Unknown)?;
    Ok(written)
}
