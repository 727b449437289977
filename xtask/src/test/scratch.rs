//! Where the tests' temporary files go, so that nothing is left behind.

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
/// Servers that do not run as root must get through.
const MODE: u32 = 0o755;

/// A folder for temporary files that is gone when this is dropped, or the process is gone.
///
/// Tests that are killed on purpose, or kill what they started, cannot tidy up behind themselves.
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
    //! A killed test leaves its folder; nobody looks, and a year later the disk is full of stores.

    use super::*;

    #[test]
    fn what_was_left_in_it_goes_with_it() {
        let scratch = Scratch::new("left").unwrap();
        let left = scratch.folder().join("store");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("manifest.new"), "half").unwrap();
        drop(scratch);
        assert!(!left.exists());
    }
}
