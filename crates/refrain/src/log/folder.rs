//! Folders that one process at a time writes to.

use std::{fs, io, os::unix::fs::DirBuilderExt as _, path::Path};

use super::{disk::Disk, lock::FileLock};
use crate::Result;

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
