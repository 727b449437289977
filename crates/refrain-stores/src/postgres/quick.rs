//! Quick lane: batches claims of new keys and completions of records in flight into one statement and one commit.
//!
//! Jobs that the statement does not apply to are unchanged, and go to the careful lane.

use std::collections::{HashMap, HashSet};

use refrain::{
    Fence, RecordId, Settlement,
    record::{Grant, Reply, Settled, Verdict},
    store::Watches,
};
use tokio::{
    sync::mpsc::{Receiver, Sender},
    time::timeout,
};
use tokio_postgres::{Client, Statement, types::ToSql};

use super::{
    Time,
    careful::hand_over,
    columns::{Claims, Completions},
    connect::{ANSWER_TIMEOUT, LaneConnection, Prepared, Session},
    errors::StatementError,
    job::{Ask, Job, refuse_all},
    rows::Id,
    sql::Sql,
};

/// Maximum jobs per batch, and bytes of outcomes after which a batch is closed.
pub(super) const BATCH_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Prepared statements of this lane.
#[derive(Debug)]
pub(super) struct Quick {
    claim: Statement,
    complete: Statement,
    both: Statement,
}

impl Prepared for Quick {
    async fn prepare(client: &Client, sql: &Sql) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            claim: client.prepare(&sql.claim).await?,
            complete: client.prepare(&sql.complete).await?,
            both: client.prepare(&sql.claim_and_complete).await?,
        })
    }
}

/// One writer: batches all the jobs that are queued.
pub(super) struct QuickLane {
    pub(super) link: LaneConnection<Quick>,
    pub(super) careful: Sender<Job>,
    pub(super) watches: Watches,
    pub(super) time: Time,
    /// Random identifier of this handle.
    pub(super) node: i64,
}

impl QuickLane {
    /// Runs until every sender is dropped.
    pub(super) async fn run(mut self, mut jobs: Receiver<Job>) {
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() && jobs.recv_many(&mut waiting, BATCH_MAX).await == 0 {
                return;
            }
            let (batch, others) = pick(&mut waiting);
            if !batch.is_empty() {
                self.work(batch).await;
            }
            // After the batch, so that two jobs for the same record run in order.
            others
                .into_iter()
                .for_each(|job| hand_over(&self.careful, job));
        }
    }

    async fn work(&mut self, mut batch: Vec<Job>) {
        for is_repeated in [false, true] {
            let session = match self.link.session().await {
                Ok(session) => session,
                Err(error) => return refuse_all(batch, &error),
            };
            let sent = timeout(ANSWER_TIMEOUT, self.send(&session, &batch)).await;
            match sent.unwrap_or_else(|_| Err(StatementError::Lost(timed_out()))) {
                Ok(done) => return self.answer(batch, &done),
                // Nothing was applied. One job may be the cause; the careful lane runs each job separately.
                Err(StatementError::Refused(_)) => {
                    return batch
                        .into_iter()
                        .for_each(|job| hand_over(&self.careful, job));
                }
                Err(StatementError::Lost(error)) => {
                    self.link.drop_session();
                    // Retried once: the same claimant gets the same grant, and the same completion is idempotent.
                    batch.iter_mut().for_each(|job| job.is_repeated = true);
                    if is_repeated {
                        return refuse_all(batch, &error);
                    }
                }
            }
        }
    }

    /// Returns the fence of each granted claim, and `None` for each completed record.
    async fn send(
        &self,
        session: &Session<Quick>,
        batch: &[Job],
    ) -> Result<HashMap<RecordId, Option<Fence>>, StatementError> {
        let (mut claims, mut completions) = (Claims::default(), Completions::default());
        let mut nonces = HashMap::new();
        for job in batch {
            match &job.ask {
                Ask::Claim(claim) => {
                    let nonce = rand::random();
                    nonces.insert(claim.id, nonce);
                    claims.push(claim, nonce);
                }
                Ask::Settle(
                    id,
                    fence,
                    Settlement::Complete {
                        outcome,
                        retention,
                        remember,
                    },
                ) => completions.push(*id, *fence, outcome, *retention, *remember),
                _ => {}
            }
        }
        let (now, epoch) = (self.time.now(), session.epoch.cast_signed());
        let head: [&(dyn ToSql + Sync); 3] = [&now, &epoch, &self.node];
        let (claimed, completed) = (claims.parameters(), completions.parameters());
        let statements = &session.statements;
        let (statement, parameters) = match (claims.ids.is_empty(), completions.ids.is_empty()) {
            (false, true) => (&statements.claim, [&head[..], &claimed].concat()),
            (true, _) => (&statements.complete, [&head[..1], &completed].concat()),
            (false, false) => (&statements.both, [&head[..], &claimed, &completed].concat()),
        };
        let asked = session.wire.client.query(statement, &parameters);
        let (planned, rows) = tokio::join!(biased; session.replan(), asked);
        planned?;
        let rows = rows?;
        let mut done = HashMap::with_capacity(rows.len());
        for row in rows {
            let id = RecordId(row.try_get::<_, Id>(0)?.0);
            let counter: Option<i64> = row.try_get(1)?;
            let fence = counter.map(|counter| Fence {
                epoch: session.epoch,
                counter: counter.cast_unsigned(),
                nonce: nonces.get(&id).copied().unwrap_or_default(),
            });
            done.insert(id, fence);
        }
        Ok(done)
    }

    fn answer(&self, batch: Vec<Job>, done: &HashMap<RecordId, Option<Fence>>) {
        for job in batch {
            match done.get(&job.id()) {
                Some(Some(fence)) => {
                    let (fence, attempt) = (*fence, 1);
                    let grant = Grant { fence, attempt };
                    job.answer(Ok(Reply::Verdict(Verdict::Granted(grant))));
                }
                Some(None) => {
                    self.watches.settled(job.id());
                    job.answer(Ok(Reply::Settled(Settled::Applied)));
                }
                None => hand_over(&self.careful, job),
            }
        }
    }
}

/// Selects the jobs for the next statement: each record once, in the order of identities, so that two writers cannot
/// deadlock. Also returns the jobs for the careful lane. Jobs beyond the byte limit stay in `waiting`.
fn pick(waiting: &mut Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let (mut batch, mut others, mut left) = (Vec::with_capacity(waiting.len()), vec![], vec![]);
    let mut ids = HashSet::with_capacity(waiting.len());
    let mut bytes = 0;
    for job in waiting.drain(..) {
        if !job.is_wanted(ANSWER_TIMEOUT) {
            job.refuse("the PostgreSQL store did not process this claim in time; try again");
        } else if !is_quick(&job) || ids.contains(&job.id()) {
            others.push(job);
        } else if bytes > BATCH_BYTES_MAX {
            left.push(job);
        } else {
            bytes += job.bytes();
            ids.insert(job.id());
            batch.push(job);
        }
    }
    *waiting = left;
    batch.sort_unstable_by_key(Job::id);
    (batch, others)
}

fn is_quick(job: &Job) -> bool {
    matches!(
        job.ask,
        Ask::Claim(_) | Ask::Settle(_, _, Settlement::Complete { .. })
    )
}

pub(super) fn timed_out() -> refrain::Error {
    refrain::Error::new(
        refrain::ErrorKind::Unavailable,
        "PostgreSQL did not respond in time",
    )
}
