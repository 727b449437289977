//! Outcomes that are no longer in the page cache: a replay waits for the disk, and the other connections of its
//! thread must not wait with it.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use refrain::{
    Store, Verdict,
    store::embedded::{
        Embedded, Options,
        disk::{Disk, DiskFile, DiskFolder, RealDisk},
    },
};
use refrain_testkit::wait::PATIENCE;

use crate::common::{claim, complete, id, wait};

/// A disk whose cache is empty, and whose reads wait while it is stuck.
#[derive(Debug, Clone, Default)]
struct ColdDisk(Arc<Device>);

#[derive(Debug, Default)]
struct Device {
    is_stuck: Mutex<bool>,
    changed: Condvar,
}

impl ColdDisk {
    fn set_stuck(&self, is_stuck: bool) {
        *self.0.is_stuck.lock().unwrap() = is_stuck;
        self.0.changed.notify_all();
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let device = self.0.clone();
        Arc::new(ColdFile { file, device })
    }
}

impl Disk for ColdDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.create(path).map(|file| self.file(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(path).map(|file| self.file(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>> {
        RealDisk.open_folder(folder)
    }
}

#[derive(Debug)]
struct ColdFile {
    file: Arc<dyn DiskFile>,
    device: Arc<Device>,
}

impl DiskFile for ColdFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let is_stuck = self.device.is_stuck.lock().unwrap();
        let waited = self
            .device
            .changed
            .wait_timeout_while(is_stuck, PATIENCE, |is_stuck| *is_stuck);
        assert!(
            !waited.unwrap().1.timed_out(),
            "the thread waited for the disk"
        );
        self.file.read_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

#[test]
fn a_cold_replay_does_not_stop_other_requests_of_its_thread() {
    let folder = tempfile::tempdir().unwrap();
    let disk = ColdDisk::default();
    let options = Options {
        disk: Arc::new(disk.clone()),
        ..Options::default()
    };
    let store = Embedded::open(folder.path(), options).unwrap();
    complete(&store, 1, b"cold");
    disk.set_stuck(true);
    wait(async {
        let mut replay = Box::pin(store.claim(claim(1)));
        let mut reading = Box::pin(store.read(id(1)));
        // One thread polls all of these: each would stop it if it read from the disk itself.
        let granted = tokio::select! {
            biased;
            early = &mut replay => panic!("decided without the disk: {early:?}"),
            early = &mut reading => panic!("read without the disk: {early:?}"),
            granted = store.claim(claim(2)) => granted,
        };
        assert!(matches!(granted, Ok(Verdict::Granted(_))), "{granted:?}");
        disk.set_stuck(false);
        let Ok(Verdict::Replay(outcome)) = replay.await else {
            panic!("not replayed");
        };
        assert_eq!(&outcome.body()[..], b"cold");
        assert!(reading.await.unwrap().is_some());
    });
}

#[test]
fn a_file_reads_from_the_page_cache_or_says_that_it_would_wait() {
    let folder = tempfile::tempdir().unwrap();
    let file = RealDisk.create(&folder.path().join("file")).unwrap();
    file.write_at(b"cached", 0).unwrap();
    let mut bytes = [0; 6];
    match file.read_cached_at(&mut bytes, 0) {
        Ok(read) => assert_eq!(&bytes[..read], &b"cached"[..read]),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
    }
}
