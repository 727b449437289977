//! The writer thread. It takes all queued requests, decides each with `step`, writes the changes as one frame,
//! syncs once, and wakes all callers (group commit).
//!
//! The changes of a batch are visible only once they are durable. If a batch cannot be made durable, it is rejected.

use std::{collections::HashMap, hash::BuildHasherDefault, path::Path, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Durability, EmbeddedState, Slot,
    frame::{Builder, ImageKind, SegmentFrames},
    maintenance::FullSegment,
    segment::{HEADER_LEN, Location, Segment},
    snapshot::Noted,
};
use crate::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    key::RecordId,
    log::{
        commit::{Appender, NotQueued},
        failure::{Failure, describe_obstacle},
        frame::{Format as _, FramePosition},
    },
    record::{Change, Claim, Command, Fence, Record, Reply, Settlement, State, step},
    store::table::IdHasher,
    wakes,
};

/// A frame is closed once its images take this many bytes.
const FRAME_BYTES: usize = 4 << 20;
/// After a batch of this size, the writer yields before the next sync: its callers are about to queue more requests.
/// After a smaller batch it does not, because other threads may keep the processor for long.
const CROWD: usize = 64;
/// An upper bound of the length of the entry for the end of the previous segment.
const NOTE_LEN: usize = 64;

/// A request to the writer.
#[derive(Debug)]
pub(super) enum Request {
    Claim(Claim),
    Settle(Fence, Settlement),
    Renew(Fence, Duration),
    /// Rewrite a live record, if its image is in a segment below this number.
    Carry(u32),
}

/// A queued request.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    id: RecordId,
    request: Request,
    answer: oneshot::Sender<Result<Reply>>,
}

impl EmbeddedState {
    /// Queues a request, and waits for the writer's reply.
    pub(super) async fn submit(&self, id: RecordId, request: Request) -> Result<Reply> {
        let reply = self.enqueue(id, request)?.await;
        reply.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Queues a request to the writer.
    pub(super) fn enqueue(
        &self,
        id: RecordId,
        request: Request,
    ) -> Result<oneshot::Receiver<Result<Reply>>> {
        self.check_open()?;
        let (answer, receiver) = oneshot::channel();
        let job = QueuedRequest {
            id,
            request,
            answer,
        };
        let jobs_max = self.options.queue_max;
        match self.queue.push(job, jobs_max) {
            Ok(()) => Ok(receiver),
            Err(NotQueued::Closed) => Err(self.closed()),
            Err(NotQueued::Full) => {
                let message = format!(
                    "the store has {jobs_max} requests waiting for the disk; retry shortly"
                );
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

/// The state of the writer's thread.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<EmbeddedState>,
    active: Option<Active>,
    /// The end of the last segment written before this opening.
    previous: Option<(u32, u64)>,
    fence: Fence,
    builder: Builder,
    frame: Vec<u8>,
    /// The changes of this batch so far.
    pending: HashMap<RecordId, Pending, BuildHasherDefault<IdHasher>>,
    answers: Vec<(oneshot::Sender<Result<Reply>>, Result<Reply>)>,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: Appender,
    capacity: usize,
    /// The number of frames so far.
    ordinal: u64,
    latest: Timestamp,
    noted: Vec<Noted>,
    /// The end of the previous segment, to be recorded in the first frame.
    previous: Option<(u32, u64)>,
}

/// A record after this batch.
#[derive(Debug)]
struct Pending {
    record: Option<Record>,
    /// The index of its entry in the frame; `None` if only the lease changed.
    entry: Option<usize>,
    /// The segment of its image, if this frame has none.
    segment: u32,
    /// The position of its image in this frame, once it is written.
    at: Option<Location>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<EmbeddedState>,
        epoch: u32,
        previous: Option<(u32, u64)>,
    ) -> Self {
        Self {
            shared,
            active: None,
            previous,
            fence: Fence {
                epoch,
                counter: 0,
                nonce: rand::random(),
            },
            builder: Builder::default(),
            frame: Vec::new(),
            pending: HashMap::default(),
            answers: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        let mut jobs = Vec::new();
        while self.shared.queue.take(&mut jobs) {
            let is_crowd = jobs.len() >= CROWD;
            let now = self.shared.clock.now();
            for job in jobs.drain(..) {
                let reply = self.decide(job.id, job.request, now);
                self.answers.push((job.answer, reply));
                if self.builder.image_bytes() >= FRAME_BYTES {
                    self.commit(now);
                }
            }
            self.commit(now);
            if is_crowd {
                self.shared.queue.let_others_go_first();
            }
        }
        let last = self.active.take().map(Active::finish);
        self.shared.maintenance.close(last);
    }

    fn decide(&mut self, id: RecordId, request: Request, now: Timestamp) -> Result<Reply> {
        self.shared.check_open()?;
        let (record, segment) = self.find(id)?;
        let (command, is_claim) = match request {
            Request::Claim(claim) => {
                let counter = self.fence.counter + 1;
                (
                    Command::Claim(
                        claim,
                        Fence {
                            counter,
                            ..self.fence
                        },
                    ),
                    true,
                )
            }
            Request::Settle(fence, end) => (Command::Settle(fence, end), false),
            Request::Renew(fence, lease) => (Command::Renew(fence, lease), false),
            Request::Carry(below) => {
                self.leave_room();
                return Ok(self.carry(id, record, segment, below));
            }
        };
        let stepped = step(record, command, now);
        if stepped.change == Change::Record && is_claim {
            self.leave_room();
            self.shared.check_room()?;
            self.fence.counter += 1;
        }
        match stepped.change {
            Change::Nothing => {}
            Change::Lease => self.note(id, stepped.record, None, segment),
            Change::Record => self.write(id, stepped.record),
        }
        Ok(stepped.reply)
    }

    /// In the second half of a segment, waits until the next segment is allocated or its allocation has failed.
    /// Called before new claims and rewrites: the rest of the segment must suffice to settle the records in flight.
    fn leave_room(&self) {
        let len = self.builder.len_max();
        let is_past_middle = |active: &Active| active.end() + len > active.capacity / 2;
        if self.active.as_ref().is_some_and(is_past_middle) {
            self.shared.wait_for_spare();
        }
    }

    fn find(&self, id: RecordId) -> Result<(Option<Record>, u32)> {
        if let Some(pending) = self.pending.get(&id) {
            return Ok((pending.record.clone(), pending.segment));
        }
        // Most records are live or absent, and need no second lookup. Images on disk are read without the table's lock.
        let known = self.shared.table.with(id, |entry| match entry.get() {
            Some(Slot::Live(live)) => Some((Some(live.record.clone()), live.segment)),
            Some(_) => None,
            None => Some((None, 0)),
        });
        match known {
            Some((None, _)) => Ok((self.shared.check_absent(id)?, 0)),
            Some(live) => Ok(live),
            None => Ok((self.shared.find(id)?, 0)),
        }
    }

    fn write(&mut self, id: RecordId, record: Option<Record>) {
        let entry = self.builder.len();
        self.builder.push(id, record.as_ref());
        self.note(id, record, Some(entry), 0);
    }

    fn note(&mut self, id: RecordId, record: Option<Record>, entry: Option<usize>, segment: u32) {
        // A lease change after an image in the same batch keeps that image.
        let entry = entry.or_else(|| self.pending.get(&id).and_then(|pending| pending.entry));
        let pending = Pending {
            record,
            entry,
            segment,
            at: None,
        };
        self.pending.insert(id, pending);
    }

    fn carry(&mut self, id: RecordId, record: Option<Record>, segment: u32, below: u32) -> Reply {
        let is_in_frame = self
            .pending
            .get(&id)
            .is_some_and(|pending| pending.entry.is_some());
        if record.as_ref().is_some_and(is_live) && segment < below && !is_in_frame {
            self.write(id, record);
        }
        Reply::Aged
    }

    /// Makes the batch durable, publishes its changes, and responds to the callers.
    fn commit(&mut self, now: Timestamp) {
        let done = match self.builder.is_empty() {
            true => Ok(()),
            false => self.append(now),
        };
        match done {
            Ok(()) => self.publish(),
            Err(error) => self.refuse(&error),
        }
        self.builder.clear();
        self.pending.clear();
        let answers = self.answers.drain(..);
        wakes::batch_wakes(|| {
            for (answer, reply) in answers {
                // The caller may have dropped its future; the change stands.
                let _ = answer.send(reply);
            }
        });
    }

    /// Rejects all requests of the batch.
    fn refuse(&mut self, error: &Error) {
        for (_, reply) in &mut self.answers {
            if reply.is_ok() {
                *reply = Err(Error::new(error.kind(), error.to_string()));
            }
        }
    }

    fn append(&mut self, now: Timestamp) -> Result<()> {
        self.shared.check_open()?;
        // Also before a new segment starts: once another segment follows, leftover bytes here would count as damage.
        if let Some(Err(failure)) = self.active.as_mut().map(|active| active.file.clean()) {
            return Err(self.failed(failure));
        }
        self.make_room()?;
        let Some(active) = &mut self.active else {
            return Err(self.shared.closed());
        };
        if let (0, Some((number, len))) = (active.ordinal, active.previous) {
            self.builder.push_sealed(number, len);
        }
        let (number, start) = (active.segment.number, active.end());
        let place = FramePosition {
            seed: active.segment.seed,
            start,
            ordinal: active.ordinal,
        };
        let entries = self.builder.assemble(&mut self.frame, place, now);
        let is_synced = self.shared.options.durability == Durability::Full;
        if let Err(failure) = active.file.append(&self.frame, is_synced) {
            return Err(self.failed(failure));
        }
        if is_synced {
            active.segment.note_durable(active.file.end());
        }
        for (at, entry) in entries.iter().enumerate() {
            let pending = self
                .pending
                .get_mut(&entry.id)
                .filter(|it| it.entry == Some(at));
            let record = pending.as_ref().and_then(|pending| pending.record.as_ref());
            if entry.kind != ImageKind::Sealed {
                active.noted.push(entry.noted(record, start));
            }
            if let Some(pending) = pending {
                let offset = start + entry.offset;
                pending.at = Some(Location::new(number, offset, entry.len, entry.kind));
            }
        }
        active.ordinal += 1;
        active.latest = now;
        Ok(())
    }

    /// Continues in the next segment, if the frame does not fit into this one.
    fn make_room(&mut self) -> Result<()> {
        let needed = self.builder.len_max() + NOTE_LEN;
        let fits = |active: &Active| active.end() + needed <= active.capacity;
        if self.active.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let (segment, capacity) = self.shared.next_segment((HEADER_LEN + needed) as u64)?;
        let next = Active {
            file: Appender::new(
                segment.file.clone(),
                HEADER_LEN as u64,
                SegmentFrames::IS_ALLOCATED,
            ),
            segment,
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            ordinal: 0,
            latest: Timestamp::default(),
            noted: Vec::new(),
            previous: self.last_end(),
        };
        if let Some(full) = self.active.replace(next) {
            self.shared.maintenance.seal(full.finish());
        }
        Ok(())
    }

    /// The last segment with data, and its end.
    fn last_end(&self) -> Option<(u32, u64)> {
        match &self.active {
            Some(active) if active.ordinal > 0 => Some((active.segment.number, active.file.end())),
            Some(active) => active.previous,
            None => self.previous,
        }
    }

    /// Handles a failed write. A temporary error does not shut the store down: nothing was acknowledged,
    /// and the written bytes are zeroed before the next write.
    fn failed(&self, failure: Failure) -> Error {
        let shared = &self.shared;
        match (failure, &self.active) {
            (Failure::Unchanged(error), _) => {
                no_room(&shared.folder.path, &describe_obstacle(&error))
            }
            (Failure::Unknown(error), Some(active)) => {
                let name = active.segment.path.display();
                shared.shut(&format!("{name}: offset {}: {error}", active.end()));
                shared.closed()
            }
            (Failure::Unknown(error), None) => {
                shared.shut(&error);
                shared.closed()
            }
        }
    }

    fn publish(&mut self) {
        for (id, pending) in self.pending.drain() {
            let slot = match (pending.record, pending.at) {
                (None, _) => None,
                (Some(record), at) if is_live(&record) => Some(Slot::live(
                    record,
                    at.map_or(pending.segment, |at| at.segment),
                )),
                (Some(_), at) => at.map(Slot::Stored),
            };
            self.shared.table.with(id, |entry| match slot {
                Some(slot) => entry.put(slot),
                None => drop(entry.take()),
            });
        }
    }
}

fn is_live(record: &Record) -> bool {
    matches!(
        record.state,
        State::InFlight { .. } | State::Indeterminate { .. }
    )
}

impl Active {
    /// The offset of the next frame.
    fn end(&self) -> usize {
        self.file.end() as usize
    }

    fn finish(self) -> FullSegment {
        FullSegment {
            segment: self.segment,
            len: self.file.end(),
            latest: self.latest,
            noted: self.noted,
            previous: self.previous,
        }
    }
}

pub(super) fn no_room(folder: &Path, obstacle: &str) -> Error {
    let message = format!(
        "the store {} refuses new claims and serves only stored outcomes: {obstacle}",
        folder.display()
    );
    Error::new(ErrorKind::Full, message)
}
