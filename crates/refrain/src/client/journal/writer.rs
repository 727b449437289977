//! The only thread that accesses a journal's file: it appends all queued changes as one frame, syncs once, and replies.
//!
//! Changes of a batch are visible only after they are durable. A batch has at most one change per call.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use http::Response;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Options,
    codec::{Intent, Record},
    file::LogFile,
    index::{CallState, Index, Kept},
};
use crate::{
    Error, ErrorKind, Fingerprint, Key, Result,
    client::moment::Moment,
    log::{
        commit::Queue,
        failure::{Failure, describe_obstacle},
        folder::FileLock,
    },
};

/// Size in bytes at which a batch is closed.
const BATCH_BYTES: usize = 4 << 20;

/// Jobs that wait for the writer thread. The permit of a job limits how many there are.
pub(super) type Jobs = Queue<(JournalRequest, OwnedSemaphorePermit)>;

/// Request to the writer thread.
#[derive(Debug)]
pub(super) enum JournalRequest {
    Change(JournalChange),
    /// Load the intent of a call, if it is open.
    Load(Key, oneshot::Sender<Result<Option<Box<Intent>>>>),
    /// List all open calls.
    List(oneshot::Sender<Result<Vec<Intent>>>),
}

/// Change of one call.
#[derive(Debug)]
pub(super) struct JournalChange {
    pub(super) key: Key,
    pub(super) what: ChangeKind,
    /// Encoded by the caller, so that this thread only writes.
    pub(super) record: Record,
    pub(super) bytes: Bytes,
    pub(super) answer: oneshot::Sender<Result<Done>>,
}

/// Kind of a change.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChangeKind {
    Begin(Fingerprint),
    /// Ends an open call. An answer is also stored for an unknown call.
    End,
}

/// Result of a change.
#[derive(Debug)]
pub(in crate::client) enum Done {
    /// The change is durable.
    Written,
    /// The change is durable, and the call was already open: it may have been sent before.
    Again,
    /// Nothing was written: the call is finished, with this answer.
    Finished(Response<Bytes>),
    /// Nothing was written: the call is not open.
    NotOpen,
}

/// State of the writer thread.
#[derive(Debug)]
pub(super) struct JournalWriter {
    pub(super) file: LogFile,
    pub(super) index: Index,
    pub(super) options: Arc<Options>,
    /// Error that latched the journal shut, if any.
    latch: Option<String>,
    /// File size below which the file is not rewritten.
    rewrite_from: u64,
    /// Held as long as the file is open.
    _lock: FileLock,
}

impl JournalWriter {
    pub(super) fn new(file: LogFile, index: Index, options: Arc<Options>, lock: FileLock) -> Self {
        Self {
            file,
            index,
            rewrite_from: options.rewrite_bytes_min,
            options,
            latch: None,
            _lock: lock,
        }
    }

    pub(super) fn run(mut self, queue: &Jobs) {
        let (mut jobs, mut batch) = (Vec::new(), Batch::default());
        while queue.take(&mut jobs) {
            for (job, _permit) in jobs.drain(..) {
                match job {
                    JournalRequest::Change(write) => self.write(write, &mut batch),
                    JournalRequest::Load(key, answer) => {
                        self.commit(&mut batch);
                        let _ = answer.send(self.load(&key));
                    }
                    JournalRequest::List(answer) => {
                        self.commit(&mut batch);
                        let _ = answer.send(self.list());
                    }
                }
            }
            self.commit(&mut batch);
            self.rewrite_if_worth_it();
        }
    }

    /// Decides a change after all earlier changes of the same call are durable.
    fn write(&mut self, write: JournalChange, batch: &mut Batch) {
        if batch.keys.contains(&write.key) || batch.bytes >= BATCH_BYTES {
            self.commit(batch);
        }
        self.sweep();
        self.decide(write, batch);
    }

    /// Adds the change to the batch, or replies at once.
    fn decide(&self, write: JournalChange, batch: &mut Batch) {
        let decided = match write.what {
            ChangeKind::Begin(fingerprint) => self.begin(&write.key, fingerprint, batch),
            ChangeKind::End => self.end(&write.key, &write.record),
        };
        match decided {
            Ok(done @ (Done::Written | Done::Again)) => batch.push(write, done),
            decided => {
                let _ = write.answer.send(decided);
            }
        }
    }

    fn begin(&self, key: &Key, fingerprint: Fingerprint, batch: &Batch) -> Result<Done> {
        self.check_open()?;
        let slot = self.index.get(key);
        if slot.is_some_and(|slot| slot.fingerprint != fingerprint) {
            return Err(mismatch());
        }
        match slot.map(|slot| (slot.state, slot.place)) {
            Some((CallState::Open, _)) => Ok(Done::Again),
            Some((CallState::Ended { .. }, place)) => match Record::decode(&self.file.read(place)?)
            {
                Some(Record::Answered(it)) if it.key == *key => Ok(Done::Finished(it.response)),
                _ => Err(self.file.damaged(place.offset)),
            },
            None if self.index.open() + batch.begun >= self.options.open_calls_max => {
                let message = format!(
                    "{} calls are open in the journal already (open_calls_max); resume or forget some of them",
                    self.options.open_calls_max
                );
                Err(Error::new(ErrorKind::Full, message))
            }
            None => Ok(Done::Written),
        }
    }

    fn end(&self, key: &Key, record: &Record) -> Result<Done> {
        self.check_open()?;
        match (self.index.get(key).map(|slot| slot.state), record) {
            (Some(CallState::Open), _) => Ok(Done::Written),
            // Forgotten while in flight: store its answer anyway.
            (None, Record::Answered(_)) => Ok(Done::Written),
            _ => Ok(Done::NotOpen),
        }
    }

    /// Makes the changes of the batch durable, and replies.
    fn commit(&mut self, batch: &mut Batch) {
        let batch = std::mem::take(batch);
        if batch.writes.is_empty() {
            return;
        }
        let records: Vec<_> = batch
            .writes
            .iter()
            .map(|(it, _)| it.bytes.clone())
            .collect();
        match self.file.append(&records) {
            Ok(places) => {
                for ((write, done), place) in batch.writes.into_iter().zip(places) {
                    self.index.apply(&write.record, place);
                    let _ = write.answer.send(Ok(done));
                }
            }
            Err(failure) => {
                let refuse = self.refusal(failure);
                for (write, _) in batch.writes {
                    let _ = write.answer.send(Err(refuse()));
                }
            }
        }
    }

    fn refusal(&mut self, failure: Failure) -> impl Fn() -> Error + use<> {
        let path = self.file.path().display();
        let (kind, message) = match failure {
            Failure::Unchanged(error) => {
                let obstacle = describe_obstacle(&error);
                let message = format!("the journal {path} rejects writes: {obstacle}");
                (ErrorKind::Full, message)
            }
            Failure::Unknown(error) => (ErrorKind::Unavailable, self.latch(&error)),
        };
        move || Error::new(kind, message.clone())
    }

    fn latch(&mut self, error: &std::io::Error) -> String {
        let message = format!(
            "the journal {} rejects all calls, because the content of its disk is unknown: {error}; \
             repair the disk, and open the journal again",
            self.file.path().display()
        );
        tracing::error!("{message}");
        self.latch.insert(message).clone()
    }

    fn check_open(&self) -> Result<()> {
        match &self.latch {
            None => Ok(()),
            Some(message) => Err(Error::new(ErrorKind::Unavailable, message)),
        }
    }

    fn sweep(&mut self) {
        let kept = Kept {
            retention: self.options.retention,
            calls_max: self.options.finished_calls_max,
            bytes_max: self.options.finished_bytes_max,
        };
        let now = Moment::now(&*self.options.clock);
        self.index.sweep(kept, now);
    }

    fn load(&self, key: &Key) -> Result<Option<Box<Intent>>> {
        self.check_open()?;
        let Some(slot) = self.index.get(key) else {
            return Ok(None);
        };
        match (slot.state, Record::decode(&self.file.read(slot.place)?)) {
            (CallState::Ended { .. }, _) => Ok(None),
            (CallState::Open, Some(Record::Intent(intent))) if intent.key == *key => {
                Ok(Some(intent))
            }
            _ => Err(self.file.damaged(slot.place.offset)),
        }
    }

    /// Returns the open calls, without request bodies.
    fn list(&self) -> Result<Vec<Intent>> {
        self.check_open()?;
        let read = |place| match Record::decode(&self.file.read(place)?) {
            Some(Record::Intent(mut intent)) => {
                *intent.request.body_mut() = Bytes::new();
                Ok(*intent)
            }
            _ => Err(self.file.damaged(place.offset)),
        };
        self.index.open_places().into_iter().map(read).collect()
    }

    /// Rewrites the file if live records take less than half of it.
    fn rewrite_if_worth_it(&mut self) {
        let is_long = self.file.len() > self.rewrite_from;
        if self.latch.is_none() && is_long && self.index.bytes() < self.file.len() / 2 {
            self.rewrite();
        }
    }

    /// Replaces the file by one with only the live records.
    pub(super) fn rewrite(&mut self) {
        self.sweep();
        let (keys, places): (Vec<_>, Vec<_>) = self.index.live().into_iter().unzip();
        match self.file.rewrite(&places) {
            Ok((file, places)) => {
                self.index.moved(keys.into_iter().zip(places));
                self.file = file;
                self.rewrite_from = self.options.rewrite_bytes_min;
            }
            Err(Failure::Unchanged(error)) => {
                tracing::warn!(%error, "cannot rewrite the journal; it keeps growing");
                self.rewrite_from = self.file.len().saturating_mul(2);
            }
            Err(Failure::Unknown(error)) => {
                self.latch(&error);
            }
        }
    }

    /// Rewrites the file after opening, if not all of the `read` records are live.
    pub(super) fn tidy(&mut self, read: usize) {
        self.sweep();
        if self.index.len() < read {
            self.rewrite();
        }
    }
}

fn mismatch() -> Error {
    Error::new(
        ErrorKind::Mismatch,
        "the key is in the journal with another request; another intent needs another key",
    )
}

/// Content of one frame.
#[derive(Debug, Default)]
struct Batch {
    writes: Vec<(JournalChange, Done)>,
    keys: HashSet<Key>,
    bytes: usize,
    /// Number of calls that it opens.
    begun: usize,
}

impl Batch {
    fn push(&mut self, write: JournalChange, done: Done) {
        self.bytes += write.bytes.len();
        self.begun += usize::from(matches!(
            (write.what, &done),
            (ChangeKind::Begin(_), Done::Written)
        ));
        self.keys.insert(write.key.clone());
        self.writes.push((write, done));
    }
}
