//! Atomic replacement of a file: after a crash it has the old or the new content, never a part of it.

use std::{io, path::Path, sync::Arc};

use super::{
    disk::{Disk, DiskFile},
    failure::Failure,
    folder::parent,
};

/// Replaces a file by one with these bytes. The temporary file has the extension `new`.
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
