//! The disk fills up in the middle of a write, a sync fails, a writer thread panics.
//! If bytes of a failed append stayed in the file, the next start would report them as damage;
//! if a failed sync counted as temporary, data that is not on the disk would be acknowledged.

use std::{
    collections::VecDeque,
    fs, io,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use super::{
    commit::{Appender, NotQueued, Queue, lock, spawn},
    disk::{DiskFile, RealDisk},
    failure::{Failure, is_temporary_error},
    folder::{replace, replace_with},
};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Sync,
    SetLen,
}
use Operation::{SetLen, Sync, Write};

/// A file in memory whose operations fail as planned. A write that fails writes half of its bytes first.
#[derive(Debug, Default)]
struct FailingFile {
    bytes: Mutex<Vec<u8>>,
    /// The operations that fail, in order, with their error numbers.
    plan: Mutex<VecDeque<(Operation, i32)>>,
    /// The bytes at the last sync.
    durable: Mutex<Vec<u8>>,
}

impl FailingFile {
    fn fault(&self, operation: Operation) -> io::Result<()> {
        let mut plan = lock(&self.plan);
        match plan.front() {
            Some((planned, number)) if *planned == operation => {
                let error = io::Error::from_raw_os_error(*number);
                plan.pop_front();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn put(&self, bytes: &[u8], offset: u64) {
        let mut file = lock(&self.bytes);
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let len = file.len().max(end);
        file.resize(len, 0);
        file[start..end].copy_from_slice(bytes);
    }
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if let Err(error) = self.fault(Write) {
            self.put(&bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.put(bytes, offset);
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = lock(&self.bytes);
        let rest = file.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.fault(Sync)?;
        *lock(&self.durable) = lock(&self.bytes).clone();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.bytes).len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fault(SetLen)?;
        lock(&self.bytes).resize(len as usize, 0);
        Ok(())
    }
}

const GROWING: bool = false;
const ALLOCATED: bool = true;

/// Appends to a file with one earlier entry while the planned operations fail.
/// After a temporary failure, the next append must find no trace of the failed one.
fn check(is_allocated: bool, plan: &[(Operation, i32)], is_temporary: bool) {
    let label = format!("allocated: {is_allocated} {plan:?}");
    let file = Arc::new(FailingFile::default());
    let spare = if is_allocated { 64 } else { 5 };
    file.set_len(spare).unwrap();
    file.put(b"first", 0);
    let mut appender = Appender::new(file.clone(), 5, is_allocated);
    lock(&file.plan).extend(plan);
    let failure = appender.append(b"failed write", true).unwrap_err();
    let is_unchanged = matches!(failure, Failure::Unchanged(_));
    assert_eq!(is_unchanged, is_temporary, "{label}: {failure:?}");
    assert_eq!(is_temporary_error(&failure.into()), is_temporary, "{label}");
    assert_eq!(appender.end(), 5, "{label}");
    if is_temporary {
        assert!(lock(&file.plan).is_empty(), "{label}");
        appender.append(b"+next", true).unwrap();
        let mut expected = b"first+next".to_vec();
        if is_allocated {
            expected.resize(64, 0);
        }
        assert_eq!(*lock(&file.durable), expected, "{label}");
        assert_eq!(appender.end(), 10, "{label}");
    }
}

#[test]
fn append_that_fails_for_lack_of_room_leaves_no_trace() {
    for is_allocated in [GROWING, ALLOCATED] {
        check(is_allocated, &[(Write, ENOSPC)], true);
        check(is_allocated, &[(Write, EIO)], false);
    }
    // The written part cannot be removed at once either.
    check(GROWING, &[(Write, ENOSPC), (SetLen, ENOSPC)], true);
    check(ALLOCATED, &[(Write, ENOSPC), (Write, ENOSPC)], true);
    check(GROWING, &[(Write, ENOSPC), (SetLen, EIO)], false);
    check(ALLOCATED, &[(Write, ENOSPC), (Write, EIO)], false);
}

#[test]
fn failed_sync_is_never_temporary() {
    for is_allocated in [GROWING, ALLOCATED] {
        for number in [EIO, ENOSPC] {
            check(is_allocated, &[(Sync, number)], false);
            check(is_allocated, &[(Write, ENOSPC), (Sync, number)], false);
        }
    }
}

#[test]
fn torn_write_is_removed_before_the_next_append() {
    for (is_allocated, expected) in [(GROWING, &b"first"[..]), (ALLOCATED, &b"first\0\0\0\0"[..])] {
        let file = Arc::new(FailingFile::default());
        file.put(b"firsttorn", 0);
        let mut appender = Appender::new(file.clone(), 5, is_allocated);
        appender.remove_torn(4).unwrap();
        assert_eq!(*lock(&file.durable), expected);
    }
}

#[test]
fn replacement_is_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    let fresh = folder.path().join("list.new");
    replace(&RealDisk, &path, b"old").unwrap();
    let failed = replace_with(&RealDisk, &path, &fresh, |file| {
        file.write_all_at(b"ne", 0)?;
        Err::<(), _>(io::Error::from_raw_os_error(EIO))
    });
    assert!(matches!(failed, Err(Failure::Unchanged(_))), "{failed:?}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert!(!fresh.exists());
    replace(&RealDisk, &path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn taken(queue: &Queue<u32>) -> Option<Vec<u32>> {
    let mut jobs = Vec::new();
    queue.take(&mut jobs).then_some(jobs)
}

#[test]
fn queue_hands_over_all_jobs_in_order_up_to_its_limit() {
    let queue = Queue::default();
    for job in 0..3 {
        queue.push(job, 3).unwrap();
    }
    assert_eq!(queue.push(3, 3), Err(NotQueued::Full));
    assert_eq!(taken(&queue), Some(vec![0, 1, 2]));
    queue.push(4, 3).unwrap();
    // Jobs that are retried come before those that arrived meanwhile.
    assert!(queue.retry_after(vec![1, 2], Duration::ZERO));
    queue.close();
    assert_eq!(queue.push(5, 3), Err(NotQueued::Closed));
    assert!(!queue.retry_after(Vec::new(), Duration::from_secs(3_600)));
    assert_eq!(taken(&queue), Some(vec![1, 2, 4]));
    assert_eq!(taken(&queue), None);
}

#[test]
fn panic_of_a_writer_is_reported() {
    let (sender, receiver) = mpsc::channel();
    let failed = move || sender.send("failed").unwrap();
    let thread = spawn("refrain-test", || panic!("on purpose"), failed).unwrap();
    thread.join().unwrap();
    assert_eq!(receiver.recv(), Ok("failed"));
}
