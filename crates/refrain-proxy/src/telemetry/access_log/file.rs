//! The file of an access log, and its rotation.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

/// Other users of the machine cannot read the file.
const FILE_MODE: u32 = 0o640;
/// Pause before a rotation that failed is tried again.
const ROTATION_RETRY: Duration = Duration::from_secs(60);
/// Ending of a file that is being rotated.
const ASIDE: &str = ".rotating";

/// A file that other programs may rename or remove at any time, as logrotate does.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    files_max: usize,
    open: OpenFile,
    /// When a rotation that failed is tried again.
    pub(super) retry_at: Option<Instant>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Device and inode, to notice that the path now leads to another file.
    identity: (u64, u64),
}

impl OpenFile {
    fn open(path: &Path) -> io::Result<Self> {
        // A named pipe would block here until it has a reader.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other("it is not a regular file"));
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(FILE_MODE)
            .open(path)?;
        let identity = identity(&file.metadata()?);
        let mut open = Self { file, identity };
        open.end_line()?;
        Ok(open)
    }

    /// Ends a line that an earlier process could not finish.
    fn end_line(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() == 0 {
            return Ok(());
        }
        let mut last = [0];
        self.file.seek(SeekFrom::End(-1))?;
        self.file.read_exact(&mut last)?;
        match last {
            [b'\n'] => Ok(()),
            _ => self.file.write_all(b"\n"),
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl LogFile {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path, bytes_max: usize, files_max: usize) -> io::Result<Self> {
        let opened = OpenFile::open(path).map_err(|error| {
            let message = format!(
                "cannot open the access log {}: {error}; check that its folder exists and is writable, \
                 or set access_log to another file or to stdout",
                path.display()
            );
            io::Error::new(error.kind(), message)
        });
        Ok(Self {
            path: path.into(),
            bytes_max: bytes_max as u64,
            files_max,
            open: opened?,
            retry_at: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares to append `len` bytes: follows the path if it leads to another file, and starts the next file
    /// if this one would become too large. Returns whether it is another file than before.
    pub(super) fn prepare(&mut self, len: usize) -> io::Result<bool> {
        let before = self.open.identity;
        match fs::metadata(&self.path) {
            Ok(found) if identity(&found) == before => {
                let is_full = found.len() > 0 && found.len() + len as u64 > self.bytes_max;
                if is_full {
                    self.try_rotate();
                }
            }
            Ok(_) => self.open = OpenFile::open(&self.path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.open = OpenFile::open(&self.path)?;
            }
            Err(error) => return Err(error),
        }
        Ok(self.open.identity != before)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open.file.write(bytes)
    }

    /// Rotates, unless that failed a short time ago. If it fails, the lines go on into the same file: a log that is
    /// too large is better than none.
    fn try_rotate(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.rotate() {
            Ok(()) => self.retry_at = None,
            Err(error) => {
                if self.retry_at.is_none() {
                    let log = self.path.display();
                    tracing::warn!(%log, %error, "cannot rotate the access log, which goes on in the same file; \
                        let the proxy's user rename the file and those beside it");
                }
                self.retry_at = Some(Instant::now() + ROTATION_RETRY);
            }
        }
    }

    /// Renames `FILE` to `FILE.1`, `FILE.1` to `FILE.2` and so on, and starts a new `FILE`.
    fn rotate(&mut self) -> io::Result<()> {
        if self.files_max == 1 {
            fs::remove_file(&self.path)?;
        } else {
            let aside = self.beside(ASIDE);
            // Left by a process that ended while it rotated.
            if fs::symlink_metadata(&aside).is_ok_and(|found| found.is_file()) {
                self.file_away(&aside)?;
            }
            // The one step that may be refused comes before the older files are touched.
            fs::rename(&self.path, &aside)?;
            if let Err(error) = self.file_away(&aside) {
                fs::rename(&aside, &self.path)?;
                return Err(error);
            }
        }
        self.open = OpenFile::open(&self.path)?;
        Ok(())
    }

    /// Renames `FILE.1` to `FILE.2` and so on, and this file to `FILE.1`.
    fn file_away(&self, aside: &Path) -> io::Result<()> {
        for number in (2..self.files_max).rev() {
            match fs::rename(self.numbered(number - 1), self.numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(aside, self.numbered(1))
    }

    fn numbered(&self, number: usize) -> PathBuf {
        self.beside(&format!(".{number}"))
    }

    /// The path of a file beside this one, with this ending.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(ending);
        name.into()
    }
}
