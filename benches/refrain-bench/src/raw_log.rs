//! The upper bound for the embedded store: a bare append-only log with an index in memory.
//!
//! It has the same durable writes, bytes, tasks and wake-ups as the embedded store, but no checksums,
//! recovery, leases or clock: throw-away code, as fast as simple code can be. Like the store it zeroes
//! files ahead on a second thread, because a growing log needs preallocated space.

use std::{
    collections::HashMap,
    fs::File,
    hash::{BuildHasherDefault, Hasher},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use refrain::RecordId;
use tokio::sync::oneshot;

use crate::work::Engine;

const FILE_BYTES: usize = 64 << 20;
/// Bytes zeroed between syncs, so that the writer's sync never waits for a whole file.
const ZEROED_BETWEEN_SYNCS: usize = 1 << 20;
/// Bytes that the embedded store writes for a claim, and for a completion in addition to the body.
const CLAIM_LEN: usize = 58;
const COMPLETION_LEN: usize = 85;
/// Capacity of the index, larger than a round needs, so that it never grows during a measurement.
const INDEX_ROOM: usize = 1 << 21;

type Index = HashMap<RecordId, Option<FramePosition>, BuildHasherDefault<IdHasher>>;

/// A log and its index.
#[derive(Debug)]
pub(crate) struct RawLog {
    shared: Arc<LogState>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct LogState {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// Position of each body; `None` while the key is claimed.
    index: RwLock<Index>,
    files: RwLock<Vec<Arc<File>>>,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: Vec<Job>,
    is_closed: bool,
}

#[derive(Debug)]
struct Job {
    id: RecordId,
    /// `None` for a claim.
    body: Option<Vec<u8>>,
    /// Whether the job succeeded; a claim of an existing key does not.
    answer: oneshot::Sender<bool>,
}

#[derive(Debug, Clone, Copy)]
struct FramePosition {
    file: u32,
    offset: u32,
}

impl RawLog {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let shared = Arc::new(LogState {
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            index: RwLock::new(Index::with_capacity_and_hasher(
                INDEX_ROOM,
                Default::default(),
            )),
            files: RwLock::default(),
        });
        let (ready, files) = mpsc::sync_channel(0);
        let folder = folder.to_owned();
        let writer = Writer::new(shared.clone(), files);
        let threads = vec![
            thread::spawn(move || make_files(&folder, &ready)),
            thread::spawn(move || writer.run()),
        ];
        Ok(Self { shared, threads })
    }

    async fn ask(&self, id: RecordId, body: Option<Vec<u8>>) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        self.push(Job { id, body, answer });
        answered.await.context("the raw log thread stopped")
    }

    fn push(&self, job: Job) {
        let mut waiting = lock(&self.shared.waiting);
        waiting.jobs.push(job);
        if waiting.jobs.len() == 1 {
            self.shared.arrived.notify_one();
        }
    }

    /// Ends the threads and returns their errors.
    pub(crate) fn close(mut self) -> Result<()> {
        lock(&self.shared.waiting).is_closed = true;
        self.shared.arrived.notify_one();
        for thread in self.threads.drain(..).rev() {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    }
}

impl Engine for RawLog {
    type Held = ();

    async fn begin(&self, id: RecordId) -> Result<()> {
        anyhow::ensure!(self.ask(id, None).await?, "the key is not new");
        Ok(())
    }

    async fn complete(&self, id: RecordId, (): (), body: Vec<u8>) -> Result<()> {
        self.ask(id, Some(body)).await.map(|_| ())
    }

    async fn replay(&self, id: RecordId) -> Result<[u8; 16]> {
        let place = read(&self.shared.index).get(&id).copied().flatten();
        let place = place.context("a completed key is not there")?;
        let file = read(&self.shared.files)[place.file as usize].clone();
        let mut body = vec![0; crate::work::BODY_LEN];
        file.read_exact_at(&mut body, place.offset.into())?;
        body.first_chunk().copied().context("the body is too short")
    }
}

/// Creates zeroed and synced files, one ahead of the writer.
fn make_files(folder: &Path, ready: &mpsc::SyncSender<File>) -> Result<()> {
    let zeros = vec![0; 256 << 10];
    for number in 0.. {
        let path: PathBuf = folder.join(format!("{number}.raw"));
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(path)?;
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at as u64)?;
            if (at + zeros.len()).is_multiple_of(ZEROED_BETWEEN_SYNCS) {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        if ready.send(file).is_err() {
            break;
        }
    }
    Ok(())
}

/// The writer thread.
struct Writer {
    shared: Arc<LogState>,
    files: mpsc::Receiver<File>,
    file: Option<Arc<File>>,
    number: u32,
    end: usize,
    batch: Vec<u8>,
    /// The index changes of the batch.
    placed: Vec<(RecordId, Option<usize>)>,
    answers: Vec<(oneshot::Sender<bool>, bool)>,
}

impl Writer {
    fn new(shared: Arc<LogState>, files: mpsc::Receiver<File>) -> Self {
        Self {
            shared,
            files,
            file: None,
            number: 0,
            end: FILE_BYTES,
            batch: Vec::new(),
            placed: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn run(mut self) -> Result<()> {
        let mut jobs = Vec::new();
        while self.take(&mut jobs) {
            self.fill(&mut jobs);
            self.append()?;
            self.publish();
            for (answer, done) in self.answers.drain(..) {
                let _ = answer.send(done);
            }
        }
        Ok(())
    }

    fn take(&self, jobs: &mut Vec<Job>) -> bool {
        let mut waiting = lock(&self.shared.waiting);
        while waiting.jobs.is_empty() {
            if waiting.is_closed {
                return false;
            }
            let woken = self.shared.arrived.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut waiting.jobs, jobs);
        true
    }

    fn fill(&mut self, jobs: &mut Vec<Job>) {
        self.batch.clear();
        self.placed.clear();
        let index = read(&self.shared.index);
        for Job { id, body, answer } in jobs.drain(..) {
            let is_due = body.is_some() == index.contains_key(&id);
            self.answers.push((answer, is_due));
            if !is_due {
                continue;
            }
            let head = body.as_ref().map_or(CLAIM_LEN, |_| COMPLETION_LEN);
            let start = self.batch.len();
            self.batch.extend_from_slice(&id.0);
            self.batch.resize(start + head, 1);
            let at = body.is_some().then_some(self.batch.len());
            self.batch.extend_from_slice(&body.unwrap_or_default());
            self.placed.push((id, at));
        }
    }

    fn append(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let file = match self.file.take() {
            Some(file) if self.end + self.batch.len() <= FILE_BYTES => file,
            _ => self.next_file()?,
        };
        file.write_all_at(&self.batch, self.end as u64)?;
        file.sync_data()?;
        self.file = Some(file);
        Ok(())
    }

    fn next_file(&mut self) -> Result<Arc<File>> {
        let file = Arc::new(self.files.recv().context("cannot create a file")?);
        let mut files = write(&self.shared.files);
        self.number = files.len() as u32;
        files.push(file.clone());
        self.end = 0;
        Ok(file)
    }

    fn publish(&mut self) {
        let mut index = write(&self.shared.index);
        for (id, at) in self.placed.drain(..) {
            let place = |at| FramePosition {
                file: self.number,
                offset: (self.end + at) as u32,
            };
            index.insert(id, at.map(place));
        }
        self.end += self.batch.len();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Record ids are evenly distributed, so their own bytes serve as the hash.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(word) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*word);
        }
    }
}
