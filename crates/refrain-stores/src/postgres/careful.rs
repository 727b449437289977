//! Careful lane: commands for which [`step`](refrain::step) decides while the row is locked.

use std::collections::HashMap;

use refrain::{
    Error, RecordId, Result,
    record::{Change, Reply},
    store::Watches,
};
use tokio::{
    sync::mpsc::{Receiver, Sender, error::TrySendError},
    time::timeout,
};
use tokio_postgres::{Client, Statement};

use super::{
    Time,
    connect::{ANSWER_TIMEOUT, LaneConnection, Prepared, Session},
    decide::{Decided, Decisions, NO_FENCE, Writing, needs_notification, next_fence},
    errors::StatementError,
    job::{Ask, Job, refuse_all},
    pace::Now,
    quick::{BATCH_MAX, timed_out},
    rows::{self, Id, RecordRow},
    sql::Sql,
};

/// Maximum number of tries if other transactions change the same records.
const TRIES_MAX: u32 = 8;

/// Prepared statements of this lane.
#[derive(Debug)]
pub(super) struct Careful {
    peek: Statement,
    hold: Statement,
    clock: Statement,
    writing: Writing,
}

impl Prepared for Careful {
    async fn prepare(client: &Client, sql: &Sql) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            peek: client.prepare(&sql.peek).await?,
            hold: client.prepare(&sql.hold).await?,
            clock: client.prepare(&sql.clock).await?,
            writing: Writing::prepare(client, sql).await?,
        })
    }
}

/// Queues a job for the careful lane.
pub(super) fn hand_over(careful: &Sender<Job>, job: Job) {
    match careful.try_send(job) {
        Ok(()) => {}
        Err(TrySendError::Full(job)) => {
            job.refuse("the request queue of the PostgreSQL store is full; try again");
        }
        Err(TrySendError::Closed(job)) => job.refuse("the PostgreSQL store is closed"),
    }
}

/// Worker of the careful lane.
pub(super) struct CarefulLane {
    pub(super) link: LaneConnection<Careful>,
    pub(super) watches: Watches,
    pub(super) time: Time,
    /// Random identifier of this handle.
    pub(super) node: i64,
}

impl CarefulLane {
    /// Runs until every sender is dropped.
    pub(super) async fn run(mut self, mut jobs: Receiver<Job>) {
        let mut batch = Vec::new();
        while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let (mut left, unwanted): (Vec<_>, Vec<_>) = batch
                .drain(..)
                .partition(|job| job.is_wanted(ANSWER_TIMEOUT));
            for job in unwanted {
                job.refuse("the PostgreSQL store did not process this claim in time; try again");
            }
            for _ in 0..TRIES_MAX {
                if left.is_empty() {
                    break;
                }
                left = self.work(left).await;
            }
            for job in left {
                job.refuse("the record was changed concurrently too many times; try again");
            }
        }
    }

    /// Answers the jobs that can be answered, and returns those to retry.
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
            Err((batch, trouble)) => return self.handle_failure(batch, trouble),
        };
        if left.is_empty() {
            return left;
        }
        let decided = timeout(ANSWER_TIMEOUT, self.decide(&session, &left)).await;
        let decided = decided.unwrap_or_else(|_| Err(StatementError::Lost(timed_out())));
        match decided {
            Ok(decided) => self.answer(left, decided),
            Err(trouble @ StatementError::Lost(_)) => self.handle_failure(left, trouble),
            Err(trouble) => {
                // The transaction is still open: a connection in that state is not used again.
                self.link.drop_session();
                self.one_by_one(left, trouble).await
            }
        }
    }

    /// Handles a failed batch. If the connection broke, each job is retried once; the others fail.
    fn handle_failure(&mut self, batch: Vec<Job>, trouble: StatementError) -> Vec<Job> {
        let is_lost = matches!(trouble, StatementError::Lost(_));
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

    /// Retries each job of a rejected batch in its own transaction, so that only the job that caused the error fails.
    async fn one_by_one(&mut self, batch: Vec<Job>, trouble: StatementError) -> Vec<Job> {
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
            match decided.unwrap_or_else(|_| Err(StatementError::Lost(timed_out()))) {
                Ok(decided) => again.extend(self.answer(one.into(), decided)),
                Err(StatementError::Refused(error)) => {
                    self.link.drop_session();
                    refuse_all(one, &error);
                }
                Err(trouble) => again.extend(self.handle_failure(one.into(), trouble)),
            }
        }
        again
    }

    /// Answers claims that change nothing, mostly replays, from the current rows without locking them.
    async fn peek(
        &self,
        session: &Session<Careful>,
        batch: Vec<Job>,
    ) -> Result<Vec<Job>, (Vec<Job>, StatementError)> {
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
            Err(_) => return Err((batch, StatementError::Lost(timed_out()))),
        };
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            if let (Ok(id), Ok(now)) = (rows::id(row), row.try_get(21)) {
                found.insert(id, (rows::read(row), self.time.believe(now)));
            }
        }
        let mut left = Vec::new();
        for job in batch {
            match self.reply_without_lock(&job, &found) {
                Some(answer) => job.answer(answer),
                None => left.push(job),
            }
        }
        Ok(left)
    }

    /// Reply to a claim that changes nothing; `None` if the row has to be locked.
    fn reply_without_lock(
        &self,
        job: &Job,
        found: &HashMap<RecordId, (Result<RecordRow>, Now)>,
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
        let stepped = now.step(Some(held.record.clone()), job.command(fence));
        let is_told = !needs_notification(held, &stepped.reply, self.node);
        (stepped.change == Change::Nothing && is_told).then_some(Ok(stepped.reply))
    }

    /// Runs one transaction: lock the rows, read the clock, decide, write, commit.
    async fn decide(
        &self,
        session: &Session<Careful>,
        batch: &[Job],
    ) -> Result<Decided, StatementError> {
        let client = &session.wire.client;
        let statements = &session.statements;
        let mut ids: Vec<_> = batch.iter().map(Job::id).collect();
        ids.sort_unstable();
        ids.dedup();
        let ids: Vec<_> = ids.into_iter().map(|id| Id(id.0)).collect();
        let fences = i32::try_from(batch.len()).unwrap_or(i32::MAX);
        // Pipelined: one round trip for all four. The clock is read after the rows are locked.
        let now = self.time.now();
        let (planned, begun, rows, clock) = tokio::join!(
            biased;
            session.replan(),
            client.batch_execute("BEGIN"),
            async { client.query(&statements.hold, &[&ids]).await },
            async { client.query_one(&statements.clock, &[&now, &fences]).await },
        );
        planned?;
        begun?;
        let (rows, clock) = (rows?, clock?);
        let now = self.time.believe(clock.try_get(0)?);
        let mut decisions = Decisions::new(now, session.epoch, clock.try_get(1)?, self.node);
        for row in &rows {
            decisions.add_row(rows::id(row)?, rows::read(row));
        }
        for job in batch {
            decisions.decide(job);
        }
        decisions.write(client, &statements.writing).await
    }

    /// Sends the replies, and returns the jobs whose record another transaction inserted first.
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
