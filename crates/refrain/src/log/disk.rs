//! File operations as traits, so that tests can make each of them fail.
//!
//! The embedded store, the audit log and the client's journal reach the disk only through them.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

#[cfg(target_os = "linux")]
use rustix::io::{Errno, ReadWriteFlags};

static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// A file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Creates an empty file; an existing file is truncated.
    ///
    /// # Errors
    /// Any error of the file system.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file; an existing target is replaced.
    ///
    /// # Errors
    /// Any error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; succeeds if there is no such file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Opens an existing folder.
    ///
    /// # Errors
    /// Any error of the file system.
    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>>;

    /// Makes the directory entries of a folder durable.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.open_folder(folder)?.sync()
    }
}

/// An open folder.
pub trait DiskFolder: Debug + Send + Sync + 'static {
    /// Makes the directory entries of the folder durable.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Writes some of `bytes` at `offset`; returns how many.
    ///
    /// # Errors
    /// Any error of the file system.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Reads up to `bytes.len()` bytes at `offset`; returns how many, 0 at the end of the file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Like [`read_at`](Self::read_at), but returns [`WouldBlock`](ErrorKind::WouldBlock) instead of waiting for the
    /// device, or if the file cannot tell whether it would wait.
    ///
    /// # Errors
    /// Any error of the file system.
    fn read_cached_at(&self, _bytes: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    /// Makes all writes to the file durable.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync(&self) -> io::Result<()>;

    /// The length of the file, in bytes.
    ///
    /// # Errors
    /// Any error of the file system.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file is empty.
    ///
    /// # Errors
    /// Any error of the file system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates or extends the file to `len` bytes.
    ///
    /// # Errors
    /// Any error of the file system.
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

    /// Fills `bytes` from `offset`; returns how many bytes there were.
    pub(crate) fn read_full_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(bytes, offset, |bytes, offset| self.read_at(bytes, offset))
    }

    /// Like [`read_full_at`](Self::read_full_at), but does not wait for the device: `WouldBlock` instead.
    pub(crate) fn read_cached_full_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(bytes, offset, |bytes, offset| {
            self.read_cached_at(bytes, offset)
        })
    }

    pub(crate) fn read_whole(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        let filled = self.read_full_at(&mut bytes, 0)?;
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Overwrites a range with zeros, with a sync after every `sync_every` bytes of the file.
    pub(crate) fn zero(&self, stretch: Range<u64>, sync_every: u64) -> io::Result<()> {
        let mut at = stretch.start;
        while at < stretch.end {
            let chunk = ZEROS.len().min((stretch.end - at) as usize);
            self.write_all_at(&ZEROS[..chunk], at)?;
            at += chunk as u64;
            if at.is_multiple_of(sync_every) {
                self.sync()?;
            }
        }
        Ok(())
    }
}

fn fill(
    bytes: &mut [u8],
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The file system of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        // Outcomes contain user data: only the owner may read them.
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

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut buffers = [io::IoSliceMut::new(bytes)];
        let read = rustix::io::preadv2(self, &mut buffers, offset, ReadWriteFlags::NOWAIT);
        read.map_err(|errno| match errno {
            // The file system, or the system, has no reads that do not wait.
            Errno::OPNOTSUPP | Errno::NOSYS => ErrorKind::WouldBlock.into(),
            errno => errno.into(),
        })
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
