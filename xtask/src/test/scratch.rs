//! Temporary folder of the tests, removed at the end.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process,
};

use refrain_servers::Guard;

const REMOVE: &str = r#"rm -rf -- "$1""#;
/// Servers that do not run as root must be able to enter the folder.
const MODE: u32 = 0o755;

/// A folder for temporary files, removed on drop or when this process ends.
///
/// Tests that are killed on purpose, or that kill their children, cannot clean up themselves.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    _guard: Guard,
}

impl Scratch {
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let folder = env::temp_dir().join(format!("refrain-{name}-{}", process::id()));
        fs::create_dir(&folder)?;
        let guard = Guard::new(REMOVE, &[OsStr::new(&folder)])?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(MODE))?;
        Ok(Self {
            folder,
            _guard: guard,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    //! A killed test leaves its folder, and over time such folders fill the disk.

    use super::*;

    #[test]
    fn scratch_folder_is_deleted_with_its_files() {
        let scratch = Scratch::new("left").unwrap();
        let left = scratch.folder().join("store");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("manifest.new"), "half").unwrap();
        drop(scratch);
        assert!(!left.exists());
    }
}
