//! Test fixture: a store with its own folder, fault-injecting disk and manual clock, and the expected records.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::{
    Claim, Error, ErrorKind, Fence, Fingerprint, Guarantee, Outcome, RecordId, Settled, Settlement,
    Store, Verdict,
    clock::{Clock, Steady, Timestamp},
    record::{Claimant, Record, State},
    store::embedded::{Embedded, Options},
};
use refrain_testkit::disk::FaultDisk;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A clock that advances only when the test turns it.
#[derive(Debug, Clone)]
pub(crate) struct HandClock(Arc<Mutex<Times>>);

#[derive(Debug)]
struct Times {
    wall: u64,
    steady: u64,
    boot: u8,
}

impl HandClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Times {
            wall: 1_800_000_000_000,
            steady: 5_000,
            boot: 1,
        })))
    }

    /// Advances both clocks.
    pub(crate) fn turn(&self, span: Duration) {
        let mut times = self.0.lock().unwrap();
        let millis = u64::try_from(span.as_millis()).unwrap();
        times.wall += millis;
        times.steady += millis;
    }

    /// Sets the wall clock forward; the monotonic clock stays.
    pub(crate) fn set_wall(&self, forward: Duration) {
        self.0.lock().unwrap().wall += u64::try_from(forward.as_millis()).unwrap();
    }

    /// Reboots the machine: the monotonic clock starts again, with another boot id.
    pub(crate) fn reboot(&self) {
        let mut times = self.0.lock().unwrap();
        times.boot += 1;
        times.steady = 7;
    }
}

impl Clock for HandClock {
    fn wall(&self) -> Timestamp {
        Timestamp(self.0.lock().unwrap().wall)
    }

    fn steady(&self) -> Steady {
        let times = self.0.lock().unwrap();
        Steady {
            boot: Some([times.boot; 16]),
            millis: times.steady,
        }
    }
}

/// A folder for a store, with its clock.
#[derive(Debug)]
pub(crate) struct Site {
    folder: tempfile::TempDir,
    /// The disk of the last opened store.
    disk: Mutex<Option<FaultDisk>>,
    pub(crate) clock: HandClock,
    pub(crate) segment_bytes_max: u64,
}

impl Site {
    pub(crate) fn new(segment_bytes_max: u64) -> Self {
        Self {
            folder: temporary(),
            disk: Mutex::default(),
            clock: HandClock::new(),
            segment_bytes_max,
        }
    }

    /// Another, empty folder with the same clock.
    pub(crate) fn beside(&self) -> Self {
        Self {
            clock: self.clock.clone(),
            ..Self::new(self.segment_bytes_max)
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn disk(&self) -> FaultDisk {
        FaultDisk::over(self.path()).unwrap()
    }

    pub(crate) fn open(&self) -> Embedded {
        self.try_open().unwrap()
    }

    pub(crate) fn try_open(&self) -> refrain::Result<Embedded> {
        self.try_open_on(&self.disk())
    }

    pub(crate) fn open_on(&self, disk: &FaultDisk) -> Embedded {
        self.try_open_on(disk).unwrap()
    }

    pub(crate) fn try_open_on(&self, disk: &FaultDisk) -> refrain::Result<Embedded> {
        let options = Options {
            segment_bytes_max: self.segment_bytes_max,
            clock: Arc::new(self.clock.clone()),
            disk: Arc::new(disk.clone()),
            ..Options::default()
        };
        *self.disk.lock().unwrap() = Some(disk.clone());
        Embedded::open(self.path(), options)
    }

    /// A copy of the folder, as a kill of the process would leave it now.
    pub(crate) fn killed(&self) -> Self {
        let copy = self.beside();
        for (name, bytes) in self.files() {
            copy.write(&name, &bytes);
        }
        copy
    }

    /// Like `killed`, with other bytes in one file.
    pub(crate) fn killed_with(&self, name: &str, bytes: &[u8]) -> Self {
        let copy = self.killed();
        copy.write(name, bytes);
        copy
    }

    /// Another folder with the state that a power failure may leave.
    pub(crate) fn crashed(&self, disk: &FaultDisk, seed: u64) -> Self {
        let after = self.beside();
        disk.crash(seed, after.path()).unwrap();
        after
    }

    /// All files but the lock.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        match &*self.disk.lock().unwrap() {
            Some(disk) => disk.still(|| self.files_now()),
            None => self.files_now(),
        }
    }

    fn files_now(&self) -> BTreeMap<String, Vec<u8>> {
        fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (file_name(&path), fs::read(path).unwrap()))
            .filter(|(name, _)| name != "lock")
            .collect()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path().join(name), bytes).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    /// The segments that contain frames, in order.
    pub(crate) fn written_logs(&self) -> Vec<String> {
        let logs = self.files().into_iter();
        logs.filter(|(name, bytes)| name.ends_with(".log") && !frames(bytes).is_empty())
            .map(|(name, _)| name)
            .collect()
    }
}

/// Creates the folder in memory if possible, because these tests open thousands of stores.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn file_name(path: &Path) -> String {
    let name = PathBuf::from(path.file_name().unwrap());
    name.to_string_lossy().into_owned()
}

/// The ranges of the frames of a segment.
pub(crate) fn frames(segment: &[u8]) -> Vec<Range<usize>> {
    let mut frames = Vec::new();
    let mut at = 32;
    while segment.get(at..at + 4) == Some(b"rFr1") {
        let len = u32::from_le_bytes(segment[at + 4..at + 8].try_into().unwrap());
        frames.push(at..at + len as usize);
        at += len as usize;
    }
    frames
}

/// The number of entries in the frame at `start`.
pub(crate) fn entries(segment: &[u8], start: usize) -> u32 {
    u32::from_le_bytes(segment[start + 8..start + 12].try_into().unwrap())
}

/// Sets a flag when dropped, also when a test panics.
#[derive(Debug)]
pub(crate) struct OnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Blocks on a future.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

pub(crate) fn id(number: u64) -> RecordId {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes());
    RecordId(bytes)
}

pub(crate) fn claim(number: u64) -> Claim {
    Claim::new(id(number), Fingerprint([1; 16]))
}

pub(crate) fn at_least_once(number: u64) -> Claim {
    Claim {
        guarantee: Guarantee::AtLeastOnce,
        ..claim(number)
    }
}

pub(crate) fn ask(store: &Embedded, claim: Claim) -> refrain::Result<Verdict> {
    wait(store.claim(claim))
}

pub(crate) fn grant(store: &Embedded, claim: Claim) -> Fence {
    match ask(store, claim) {
        Ok(Verdict::Granted(grant)) => grant.fence,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn completion(body: &[u8], retention: Duration, remember: Duration) -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(200, body),
        retention,
        remember,
    }
}

pub(crate) fn settle(store: &Embedded, number: u64, fence: Fence, end: Settlement) {
    let settled = wait(store.settle(id(number), fence, end)).unwrap();
    assert_eq!(settled, Settled::Applied);
}

/// Claims and completes a record, with a retention of one hour and a tombstone for another hour.
pub(crate) fn complete(store: &Embedded, number: u64, body: &[u8]) {
    let fence = grant(store, claim(number));
    settle(store, number, fence, completion(body, HOUR, HOUR));
}

pub(crate) fn sweep(store: &Embedded) -> u32 {
    wait(store.sweep(u32::MAX)).unwrap()
}

/// The expected records; `None` is absent.
pub(crate) type Known = BTreeMap<u64, Option<Record>>;

/// Reads these records.
pub(crate) fn observe(store: &Embedded, numbers: Range<u64>) -> Known {
    numbers
        .map(|number| (number, read(store, number).unwrap()))
        .collect()
}

/// Reads a record, and resets the fields that a restart changes.
pub(crate) fn read(store: &Embedded, number: u64) -> refrain::Result<Option<Record>> {
    let reading = wait(store.read(id(number)))?;
    Ok(reading.map(|reading| plain(reading.record)))
}

pub(crate) fn plain(mut record: Record) -> Record {
    if let State::InFlight { hold, .. } | State::Indeterminate { hold, .. } = &mut record.state {
        hold.claimant = Claimant::default();
        hold.settles = Timestamp(0);
    }
    if let State::InFlight { lease_ends, .. } = &mut record.state {
        *lease_ends = Timestamp(0);
    }
    record
}

/// Checks that each record is as expected, or that reading it returns an error; returns the number of errors.
///
/// An existing record must never read as absent, as another record, or with another outcome.
pub(crate) fn check(store: &Embedded, known: &Known, label: &dyn std::fmt::Display) -> usize {
    let mut errors = 0;
    for (number, right) in known {
        match read(store, *number) {
            Ok(answer) => assert_eq!(&answer, right, "{label}: record {number}"),
            Err(error) => {
                check_kind(&error, label);
                errors += 1;
            }
        }
    }
    errors
}

pub(crate) fn check_kind(error: &Error, label: &dyn std::fmt::Display) {
    let kinds = [ErrorKind::Corrupt, ErrorKind::Unavailable];
    assert!(kinds.contains(&error.kind()), "{label}: {error}");
}

/// The body of the outcome of a record.
pub(crate) fn body_of(record: &Record) -> Option<Vec<u8>> {
    match &record.state {
        State::Completed { outcome, .. } => Some(outcome.body().to_vec()),
        _ => None,
    }
}
