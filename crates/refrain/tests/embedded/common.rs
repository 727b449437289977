//! A store to break: its folder, its disk and its clock, and what is known of its records.

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

/// A clock that stands still unless it is turned.
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

    /// Time passes.
    pub(crate) fn turn(&self, span: Duration) {
        let mut times = self.0.lock().unwrap();
        let millis = u64::try_from(span.as_millis()).unwrap();
        times.wall += millis;
        times.steady += millis;
    }

    /// Somebody sets the wall clock.
    pub(crate) fn set_wall(&self, forward: Duration) {
        self.0.lock().unwrap().wall += u64::try_from(forward.as_millis()).unwrap();
    }

    /// The machine starts again: its steady clock is another one.
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
    /// The one that a store was opened on last.
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

    /// Another folder with the same clock, and nothing in it.
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

    /// The folder as a kill of the process would leave it now.
    pub(crate) fn killed(&self) -> Self {
        let copy = self.beside();
        for (name, bytes) in self.files() {
            copy.write(&name, &bytes);
        }
        copy
    }

    /// The same with other bytes in one file.
    pub(crate) fn killed_with(&self, name: &str, bytes: &[u8]) -> Self {
        let copy = self.killed();
        copy.write(name, bytes);
        copy
    }

    /// Another folder with what a loss of power may leave of this one.
    pub(crate) fn crashed(&self, disk: &FaultDisk, seed: u64) -> Self {
        let after = self.beside();
        disk.crash(seed, after.path()).unwrap();
        after
    }

    /// Every file but the lock.
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

    /// The segments in which something stands, in their order.
    pub(crate) fn written_logs(&self) -> Vec<String> {
        let logs = self.files().into_iter();
        logs.filter(|(name, bytes)| name.ends_with(".log") && !frames(bytes).is_empty())
            .map(|(name, _)| name)
            .collect()
    }
}

/// In memory where that can be had: these tests open thousands of stores.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn file_name(path: &Path) -> String {
    let name = PathBuf::from(path.file_name().unwrap());
    name.to_string_lossy().into_owned()
}

/// Where the frames of a segment lie.
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

/// How many entries the frame that starts there has.
pub(crate) fn entries(segment: &[u8], start: usize) -> u32 {
    u32::from_le_bytes(segment[start + 8..start + 12].try_into().unwrap())
}

/// Sets a flag when it goes, also when a test fails.
#[derive(Debug)]
pub(crate) struct OnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a future to its end.
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
    wait(store.claim(&[claim])).map(|mut verdicts| verdicts.remove(0))?
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

/// Claims and completes, kept for an hour and remembered for another.
pub(crate) fn complete(store: &Embedded, number: u64, body: &[u8]) {
    let fence = grant(store, claim(number));
    settle(store, number, fence, completion(body, HOUR, HOUR));
}

pub(crate) fn sweep(store: &Embedded) -> u32 {
    wait(store.sweep(u32::MAX)).unwrap()
}

/// What is known of some records; `None` is absent.
pub(crate) type Known = BTreeMap<u64, Option<Record>>;

/// What the store holds of these records.
pub(crate) fn observe(store: &Embedded, numbers: Range<u64>) -> Known {
    numbers
        .map(|number| (number, read(store, number).unwrap()))
        .collect()
}

/// A record without what a restart changes.
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

/// Each record answers what is known of it, or an error that says that it cannot be told; answers how many did the latter.
///
/// "Absent" for a record that is there, and another record or outcome than the right one, are what must not be.
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

/// The body with which a record was completed.
pub(crate) fn body_of(record: &Record) -> Option<Vec<u8>> {
    match &record.state {
        State::Completed { outcome, .. } => Some(outcome.body().to_vec()),
        _ => None,
    }
}
