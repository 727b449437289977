//! Folders of the measured files.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::machine;

/// The parent of all measured folders: the given one, or one in the build folder.
pub(crate) fn root(asked: Option<&Path>) -> Result<PathBuf> {
    let root = match asked {
        Some(folder) => folder.to_owned(),
        None => beside_build()?,
    };
    fs::create_dir_all(&root)
        .with_context(|| format!("cannot create the folder {}", root.display()))?;
    let root = root.canonicalize()?;
    let system = machine::file_system(&root);
    if ["tmpfs", "ramfs"].contains(&system.as_str()) {
        bail!(
            "{} is in memory ({system}); pass a folder on a disk with --folder",
            root.display()
        );
    }
    Ok(root)
}

/// `target/bench`, derived from `target/dist/refrain-bench`.
fn beside_build() -> Result<PathBuf> {
    let binary = std::env::current_exe()?;
    let target = binary
        .parent()
        .and_then(Path::parent)
        .context("the binary is not in a build folder")?;
    Ok(target.join("bench"))
}

/// A new folder in `root`, removed on drop.
pub(crate) fn fresh(root: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("run-").tempdir_in(root);
    made.with_context(|| format!("cannot create a folder in {}", root.display()))
}

/// Flushes pending writes and deletions to the disk before a round starts.
pub(crate) fn settle(root: &Path) -> Result<()> {
    let folder = fs::File::open(root)?;
    rustix::fs::syncfs(&folder)?;
    Ok(())
}

/// Disk usage of a folder's files, in bytes.
pub(crate) fn bytes_on_disk(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        sum += entry?.metadata()?.blocks() * 512;
    }
    Ok(sum)
}

/// Drops these files from the page cache, so that the next reader reads from the disk.
pub(crate) fn forget_cached(folder: &Path) -> Result<()> {
    settle(folder)?;
    for entry in fs::read_dir(folder)? {
        let file = fs::File::open(entry?.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads these files into the page cache.
pub(crate) fn cache(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        std::io::copy(&mut fs::File::open(entry?.path())?, &mut std::io::sink())?;
    }
    Ok(())
}
