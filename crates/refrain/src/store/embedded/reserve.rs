//! Reserved file descriptors, so that many connections in the same process cannot stop the store.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::lock;
use crate::log::{
    disk::{Disk, DiskFile, DiskFolder},
    failure::lacks_descriptor,
};

/// Enough to allocate a segment, seal another and write the manifest at the same time, with one segment to spare.
const DESCRIPTORS: usize = 8;

/// A disk that releases a reserved descriptor if no other is free.
#[derive(Debug)]
pub(super) struct ReservedDisk {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    reserve: Mutex<Vec<File>>,
}

impl ReservedDisk {
    /// Reserves descriptors for files in `folder`.
    pub(super) fn over(disk: Arc<dyn Disk>, folder: &Path) -> Self {
        let reserved = Self {
            disk,
            folder: folder.into(),
            reserve: Mutex::default(),
        };
        reserved.fill(&mut lock(&reserved.reserve));
        reserved
    }

    /// Refills the reserve as far as descriptors are free. Any file would do; the folder always exists.
    fn fill(&self, reserve: &mut Vec<File>) {
        while reserve.len() < DESCRIPTORS {
            match File::open(&self.folder) {
                Ok(file) => reserve.push(file),
                Err(_) => return,
            }
        }
    }

    fn open_with<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut reserve = lock(&self.reserve);
        self.fill(&mut reserve);
        loop {
            match open() {
                Err(error) if lacks_descriptor(&error) && reserve.pop().is_some() => {}
                opened => return opened,
            }
        }
    }
}

impl Disk for ReservedDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_with(|| self.disk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_with(|| self.disk.open(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>> {
        self.open_with(|| self.disk.open_folder(folder))
    }
}
