//! Where the measured files lie.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::machine;

/// The folder beneath which everything is made: the one that was asked for, or the build's own.
pub(crate) fn root(asked: Option<&Path>) -> Result<PathBuf> {
    let root = match asked {
        Some(folder) => folder.to_owned(),
        None => beside_build()?,
    };
    fs::create_dir_all(&root)
        .with_context(|| format!("the folder {} cannot be made", root.display()))?;
    let root = root.canonicalize()?;
    let system = machine::file_system(&root);
    if ["tmpfs", "ramfs"].contains(&system.as_str()) {
        bail!(
            "{} lies in memory ({system}); name a folder on a disk with --folder",
            root.display()
        );
    }
    Ok(root)
}

/// `target/bench`, seen from `target/dist/refrain-bench`.
fn beside_build() -> Result<PathBuf> {
    let binary = std::env::current_exe()?;
    let target = binary
        .parent()
        .and_then(Path::parent)
        .context("the binary lies in no build folder")?;
    Ok(target.join("bench"))
}

/// A new folder beneath `root` that is removed when it goes out of scope.
pub(crate) fn fresh(root: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("run-").tempdir_in(root);
    made.with_context(|| format!("no folder can be made in {}", root.display()))
}

/// Lets what others wrote, or what was removed, reach the disk before a round starts.
pub(crate) fn settle(root: &Path) -> Result<()> {
    let folder = fs::File::open(root)?;
    rustix::fs::syncfs(&folder)?;
    Ok(())
}

/// How many bytes the files of a folder take on the disk.
pub(crate) fn bytes_on_disk(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        sum += entry?.metadata()?.blocks() * 512;
    }
    Ok(sum)
}

/// Makes the next reader of these files read from the disk.
pub(crate) fn forget_cached(folder: &Path) -> Result<()> {
    settle(folder)?;
    for entry in fs::read_dir(folder)? {
        let file = fs::File::open(entry?.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads these files, so that the next reader finds them in memory.
pub(crate) fn cache(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        std::io::copy(&mut fs::File::open(entry?.path())?, &mut std::io::sink())?;
    }
    Ok(())
}
