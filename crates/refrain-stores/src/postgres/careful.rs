//! The careful lane: whatever takes a look at the record first, decided by [`step`] while the record is held.

use std::collections::{BTreeMap, HashMap};

use refrain::{
    Error, Fence, RecordId, Result,
    clock::Timestamp,
    record::{Change, Record, Reply, Settled, Verdict, step},
    store::Watches,
};
use tokio::{
    sync::mpsc::{Receiver, Sender, error::TrySendError},
    time::timeout,
};
use tokio_postgres::{Client, Statement};

use super::{
    Time,
    connect::{ANSWER_TIMEOUT, Link, Prepared, Session},
    job::{Ask, Job, refuse_all},
    quick::{BATCH_MAX, session_silent},
    rows::{self, Held, Id, Rows},
    sql::Sql,
    trouble::Trouble,
};

/// How often something is tried again that somebody else got in the way of.
const TRIES_MAX: u32 = 8;

/// The statements of this lane.
#[derive(Debug)]
pub(super) struct Careful {
    peek: Statement,
    hold: Statement,
    clock: Statement,
    insert: Statement,
    update: Statement,
    delete: Statement,
    notify: Statement,
}

impl Prepared for Careful {
    async fn prepare(client: &Client, sql: &Sql) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            peek: client.prepare(&sql.peek).await?,
            hold: client.prepare(&sql.hold).await?,
            clock: client.prepare(&sql.clock).await?,
            insert: client.prepare(&sql.insert).await?,
            update: client.prepare(&sql.update).await?,
            delete: client.prepare(&sql.delete).await?,
            notify: client.prepare(&sql.notify).await?,
        })
    }
}

/// Passes a job on to the careful lane.
pub(super) fn hand_over(careful: &Sender<Job>, job: Job) {
    match careful.try_send(job) {
        Ok(()) => {}
        Err(TrySendError::Full(job)) => {
            job.refuse("too much waits for the PostgreSQL store; try again");
        }
        Err(TrySendError::Closed(job)) => job.refuse("the PostgreSQL store is closed"),
    }
}

/// The worker of this lane.
pub(super) struct Lane {
    pub(super) link: Link<Careful>,
    pub(super) watches: Watches,
    pub(super) time: Time,
    /// Which handle this is.
    pub(super) node: i64,
}

impl Lane {
    /// Ends when nobody can ask any more.
    pub(super) async fn run(mut self, mut jobs: Receiver<Job>) {
        let mut batch = Vec::new();
        while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let (mut left, unwanted): (Vec<_>, Vec<_>) = batch
                .drain(..)
                .partition(|job| job.is_wanted(ANSWER_TIMEOUT));
            for job in unwanted {
                job.refuse("the PostgreSQL store did not get to this claim in time");
            }
            for _ in 0..TRIES_MAX {
                if left.is_empty() {
                    break;
                }
                left = self.work(left).await;
            }
            for job in left {
                job.refuse("others kept changing the record; try again");
            }
        }
    }

    /// Answers what can be answered, and returns what is to be tried again.
    async fn work(&mut self, batch: Vec<Job>) -> Vec<Job> {
        let session = match self.link.session().await {
            Ok(session) => session,
            Err(error) => {
                refuse_all(batch, &error);
                return Vec::new();
            }
        };
        let left = match self.peek(&session, batch).await {
            Ok(left) => left,
            Err((batch, trouble)) => return self.failed(batch, trouble),
        };
        if left.is_empty() {
            return left;
        }
        let decided = timeout(ANSWER_TIMEOUT, self.decide(&session, &left)).await;
        let decided = decided.unwrap_or_else(|_| Err(Trouble::Lost(session_silent())));
        match decided {
            Ok(decided) => self.answer(left, decided),
            Err(trouble @ Trouble::Lost(_)) => self.failed(left, trouble),
            Err(trouble) => {
                // The transaction stands open: a connection in that state is not used again.
                self.link.drop_session();
                self.one_by_one(left, trouble).await
            }
        }
    }

    /// Connections break: what was asked is asked once more, and only once.
    fn failed(&mut self, batch: Vec<Job>, trouble: Trouble) -> Vec<Job> {
        let is_lost = matches!(trouble, Trouble::Lost(_));
        let error = trouble.into_error();
        if is_lost {
            self.link.drop_session();
        }
        let (again, over): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|job| is_lost && !job.is_repeated);
        refuse_all(over, &error);
        let mut again = again;
        again.iter_mut().for_each(|job| job.is_repeated = true);
        again
    }

    /// One of them is to blame: the others must not suffer from it.
    async fn one_by_one(&mut self, batch: Vec<Job>, trouble: Trouble) -> Vec<Job> {
        if batch.len() == 1 {
            refuse_all(batch, &trouble.into_error());
            return Vec::new();
        }
        let mut again = Vec::new();
        for job in batch {
            let session = match self.link.session().await {
                Ok(session) => session,
                Err(error) => {
                    refuse_all([job], &error);
                    continue;
                }
            };
            let one = [job];
            let decided = timeout(ANSWER_TIMEOUT, self.decide(&session, &one)).await;
            match decided.unwrap_or_else(|_| Err(Trouble::Lost(session_silent()))) {
                Ok(decided) => again.extend(self.answer(one.into(), decided)),
                Err(Trouble::Refused(error)) => {
                    self.link.drop_session();
                    refuse_all(one, &error);
                }
                Err(trouble) => again.extend(self.failed(one.into(), trouble)),
            }
        }
        again
    }

    /// Answers claims that change nothing from what is there, without holding it: replays, for the most part.
    async fn peek(
        &self,
        session: &Session<Careful>,
        batch: Vec<Job>,
    ) -> Result<Vec<Job>, (Vec<Job>, Trouble)> {
        let ids: Vec<_> = batch
            .iter()
            .filter(|job| matches!(job.ask, Ask::Claim(_)))
            .map(|job| Id(job.id().0))
            .collect();
        if ids.is_empty() {
            return Ok(batch);
        }
        let now = self.time.now();
        let (client, peek) = (&session.wire.client, &session.statements.peek);
        let rows = match timeout(ANSWER_TIMEOUT, client.query(peek, &[&now, &ids])).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => return Err((batch, error.into())),
            Err(_) => return Err((batch, Trouble::Lost(session_silent()))),
        };
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            if let (Ok(id), Ok(now)) = (rows::id(row), row.try_get::<_, i64>(20)) {
                found.insert(id, (rows::read(row), Timestamp(now.cast_unsigned())));
            }
        }
        let mut left = Vec::new();
        for job in batch {
            match self.known(&job, &found) {
                Some(answer) => job.answer(answer),
                None => left.push(job),
            }
        }
        Ok(left)
    }

    /// The answer to a claim that changes nothing.
    fn known(
        &self,
        job: &Job,
        found: &HashMap<RecordId, (Result<Held>, Timestamp)>,
    ) -> Option<Result<Reply>> {
        let Ask::Claim(claim) = &job.ask else {
            return None;
        };
        let (held, now) = found.get(&claim.id)?;
        let held = match held {
            Ok(held) => held,
            Err(error) => return Some(Err(Error::new(error.kind(), error.to_string()))),
        };
        let fence = next_fence(Some(&held.record), NO_FENCE);
        let stepped = step(Some(held.record.clone()), job.command(fence), *now);
        let is_told = !self.has_to_be_told(held, &stepped.reply);
        (stepped.change == Change::Nothing && is_told).then_some(Ok(stepped.reply))
    }

    /// Whether the holder does not know yet that somebody waits here.
    fn has_to_be_told(&self, held: &Held, reply: &Reply) -> bool {
        let waits = matches!(reply, Reply::Verdict(Verdict::InFlight { .. }));
        waits && !held.waited && held.holder != Some(self.node)
    }

    /// One transaction: hold the records, read the clock, decide, write, commit.
    async fn decide(&self, session: &Session<Careful>, batch: &[Job]) -> Result<Decided, Trouble> {
        let client = &session.wire.client;
        let statements = &session.statements;
        let mut ids: Vec<_> = batch.iter().map(Job::id).collect();
        ids.sort_unstable();
        ids.dedup();
        let ids: Vec<_> = ids.into_iter().map(|id| Id(id.0)).collect();
        let fences = i32::try_from(batch.len()).unwrap_or(i32::MAX);
        // Sent together: the first answer is waited for once, and the clock is read behind the locks.
        let now = self.time.now();
        let (begun, rows, clock) = tokio::join!(
            biased;
            client.batch_execute("BEGIN"),
            async { client.query(&statements.hold, &[&ids]).await },
            async { client.query_one(&statements.clock, &[&now, &fences]).await },
        );
        begun?;
        let (rows, clock) = (rows?, clock?);
        let now = Timestamp(clock.try_get::<_, i64>(0)?.cast_unsigned());
        let mut decisions = Decisions::new(self, session.epoch, now, clock.try_get(1)?);
        for row in &rows {
            decisions.found(rows::id(row)?, rows::read(row));
        }
        for job in batch {
            decisions.decide(job);
        }
        decisions.write(client, statements).await
    }

    /// Tells everybody, and returns those whose record somebody else was faster to make.
    fn answer(&self, batch: Vec<Job>, decided: Decided) -> Vec<Job> {
        let mut again = Vec::new();
        for (job, answer) in batch.into_iter().zip(decided.answers) {
            if decided.lost.contains(&job.id()) {
                again.push(job);
                continue;
            }
            if matches!(job.ask, Ask::Settle(..)) {
                self.watches.settled(job.id());
            }
            job.answer(answer);
        }
        again
    }
}

/// What a transaction came to.
struct Decided {
    answers: Vec<Result<Reply>>,
    /// What could not be made because it was there by then.
    lost: Vec<RecordId>,
}

pub(super) const NO_FENCE: Fence = Fence {
    epoch: 0,
    counter: 0,
    nonce: 0,
};

/// The candidate, or one above the last fence if a restored or failed-over server counts from below it.
pub(super) fn next_fence(record: Option<&Record>, candidate: Fence) -> Fence {
    match record.and_then(Record::fence) {
        Some(last) if last >= candidate => Fence {
            counter: last.counter.saturating_add(1),
            nonce: rand::random(),
            ..last
        },
        _ => candidate,
    }
}

/// Records that are held while it is decided about them.
struct Decisions<'a> {
    lane: &'a Lane,
    epoch: u32,
    now: Timestamp,
    counters: Vec<i64>,
    records: BTreeMap<RecordId, Slot>,
    answers: Vec<Result<Reply>>,
    /// Settled records that somebody waits for in another process.
    told: Vec<String>,
}

/// What stands under an identity, and what stood there.
struct Slot {
    /// An error where it cannot be read: such a record is never written over.
    held: Result<Option<Held>>,
    was_there: bool,
    is_changed: bool,
}

impl<'a> Decisions<'a> {
    fn new(lane: &'a Lane, epoch: u32, now: Timestamp, counters: Vec<i64>) -> Self {
        Self {
            lane,
            epoch,
            now,
            counters,
            records: BTreeMap::new(),
            answers: Vec::new(),
            told: Vec::new(),
        }
    }

    fn found(&mut self, id: RecordId, held: Result<Held>) {
        let slot = Slot {
            held: held.map(Some),
            was_there: true,
            is_changed: false,
        };
        self.records.insert(id, slot);
    }

    fn fence(&mut self) -> Fence {
        Fence {
            epoch: self.epoch,
            counter: self.counters.pop().unwrap_or_default().cast_unsigned(),
            nonce: rand::random(),
        }
    }

    fn decide(&mut self, job: &Job) {
        let candidate = self.fence();
        let slot = self.records.entry(job.id()).or_insert_with(|| Slot {
            held: Ok(None),
            was_there: false,
            is_changed: false,
        });
        let before = match &slot.held {
            Ok(held) => held.clone(),
            Err(error) => {
                let error = Error::new(error.kind(), error.to_string());
                return self.answers.push(Err(error));
            }
        };
        let record = before.as_ref().map(|held| held.record.clone());
        let fence = next_fence(record.as_ref(), candidate);
        let is_gone = record.is_none();
        let stepped = step(record, job.command(fence), self.now);
        let mut reply = stepped.reply;
        // Asked before, and the answer got lost: gone is what it was to be.
        if job.is_repeated && job.frees() && is_gone {
            reply = Reply::Settled(Settled::Applied);
        }
        let waits = before
            .as_ref()
            .is_some_and(|held| self.lane.has_to_be_told(held, &reply));
        if stepped.change != Change::Nothing || waits {
            if let (Ask::Settle(id, ..), Some(true)) =
                (&job.ask, before.as_ref().map(|held| held.waited))
            {
                self.told.push(uuid_text(*id));
            }
            let is_granted = matches!(reply, Reply::Verdict(Verdict::Granted(_)));
            let holder = match is_granted {
                true => Some(self.lane.node),
                false => before.as_ref().and_then(|held| held.holder),
            };
            let waited = waits || before.is_some_and(|held| held.waited);
            let held = stepped.record.map(|record| Held {
                record,
                holder,
                waited,
            });
            slot.held = Ok(held);
            slot.is_changed = true;
        }
        self.answers.push(Ok(reply));
    }

    /// Writes what is to be written and commits, all sent together.
    async fn write(self, client: &Client, statements: &Careful) -> Result<Decided, Trouble> {
        let (mut inserted, mut updated, mut deleted) = (Rows::default(), Rows::default(), vec![]);
        let mut new = Vec::new();
        for (id, slot) in &self.records {
            match (&slot.held, slot.was_there) {
                _ if !slot.is_changed => {}
                (Ok(Some(held)), true) => updated.push(*id, held),
                (Ok(Some(held)), false) => {
                    new.push(*id);
                    inserted.push(*id, held);
                }
                (Ok(None), true) => deleted.push(Id(id.0)),
                (Ok(None), false) | (Err(_), _) => {}
            }
        }
        let update = async {
            match updated.is_empty() {
                true => Ok(0),
                false => {
                    client
                        .execute(&statements.update, &updated.parameters())
                        .await
                }
            }
        };
        let insert = async {
            match inserted.is_empty() {
                true => Ok(Vec::new()),
                false => {
                    client
                        .query(&statements.insert, &inserted.parameters())
                        .await
                }
            }
        };
        let delete = async {
            match deleted.is_empty() {
                true => Ok(0),
                false => client.execute(&statements.delete, &[&deleted]).await,
            }
        };
        let notify = async {
            match self.told.is_empty() {
                true => Ok(0),
                false => client.execute(&statements.notify, &[&self.told]).await,
            }
        };
        let (updated, inserted, deleted, notified, committed) = tokio::join!(
            biased;
            update,
            insert,
            delete,
            notify,
            client.batch_execute("COMMIT"),
        );
        updated?;
        let inserted = inserted?;
        deleted?;
        notified?;
        committed?;
        let mut made = Vec::new();
        for row in &inserted {
            made.push(rows::id(row)?);
        }
        new.retain(|id| !made.contains(id));
        Ok(Decided {
            answers: self.answers,
            lost: new,
        })
    }
}

/// As PostgreSQL writes a `uuid`.
fn uuid_text(id: RecordId) -> String {
    let hex = id.to_string();
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// Reads what [`uuid_text`] or PostgreSQL wrote.
pub(super) fn from_uuid_text(text: &str) -> Option<RecordId> {
    text.replace('-', "").parse().ok()
}

/// What a record is once time has done its work.
pub(super) fn aged(record: Record, now: Timestamp) -> Option<Record> {
    step(Some(record), refrain::record::Command::Age, now).record
}
