//! The few file operations that the embedded store stands on, as traits, so that tests can make each of them fail.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use rustix::io::Errno;

/// A file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes an empty file, in place of one that may be there.
    ///
    /// # Errors
    /// As the file system says.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// As the file system says.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, in place of one that may have it.
    ///
    /// # Errors
    /// As the file system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; one that is not there is fine.
    ///
    /// # Errors
    /// As the file system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Opens a folder that is there.
    ///
    /// # Errors
    /// As the file system says.
    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>>;

    /// Makes names in a folder durable.
    ///
    /// # Errors
    /// As the file system says.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.open_folder(folder)?.sync()
    }
}

/// An open folder.
pub trait DiskFolder: Debug + Send + Sync + 'static {
    /// Makes the names in it durable.
    ///
    /// # Errors
    /// As the file system says.
    fn sync(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Writes some of `bytes` at `offset`; answers how many.
    ///
    /// # Errors
    /// As the file system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Reads up to `bytes.len()` at `offset`; answers how many, 0 at the end.
    ///
    /// # Errors
    /// As the file system says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As the file system says.
    fn sync(&self) -> io::Result<()>;

    /// How long the file is.
    ///
    /// # Errors
    /// As the file system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    ///
    /// # Errors
    /// As the file system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file.
    ///
    /// # Errors
    /// As the file system says.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

impl dyn DiskFile {
    pub(crate) fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `bytes` from `offset` on; answers how many there were.
    pub(crate) fn read_full_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    pub(crate) fn read_whole(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        let filled = self.read_full_at(&mut bytes, 0)?;
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// Puts a whole file in place at once: it is there entirely or not at all.
///
/// An error that [passes] means that nothing was replaced.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Opened first: once the name is changed, nothing but the sync itself may fail.
    let folder = match path.parent() {
        Some(folder) => Some(disk.open_folder(folder)?),
        None => None,
    };
    let fresh = path.with_extension("new");
    let file = disk.create(&fresh)?;
    file.write_all_at(bytes, 0)?;
    file.sync()?;
    disk.rename(&fresh, path)?;
    match folder {
        // Which of the two will be found after a loss of power is not known: never taken for trouble that passes.
        Some(folder) => folder.sync().map_err(io::Error::other),
        None => Ok(()),
    }
}

/// Whether the trouble passes without a restart: no room on the disk, no descriptor free, no memory.
///
/// A sync that failed is never among it, whatever the reason: what of the bytes is on the disk is not known.
/// Where it matters it is told apart by [`io::Error::other`].
pub(crate) fn passes(error: &io::Error) -> bool {
    let is_short = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory
    );
    is_short || lacks_descriptor(error)
}

/// Whether the process, or the system, has no descriptor free.
pub(crate) fn lacks_descriptor(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE]
        .map(|it| Some(it.raw_os_error()))
        .contains(&number)
}

/// The machine's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        // Outcomes are other people's data: nobody else on the machine reads them.
        let file = options.mode(0o600).open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>> {
        Ok(Arc::new(RealFolder(File::open(folder)?)))
    }
}

#[derive(Debug)]
struct RealFolder(File);

impl DiskFolder for RealFolder {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }
}
