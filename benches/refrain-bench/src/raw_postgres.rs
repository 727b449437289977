//! The upper bound for a PostgreSQL store: all waiting operations go in one statement, on two connections.
//!
//! It has the same durable commits, keys and bytes as a store, but only two transitions, no lapsing leases
//! and no clock: throw-away code, as fast as simple code can be.

use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut, BytesMut};
use refrain::RecordId;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{
    Client, NoTls, Statement,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use crate::work::Engine;

/// Number of connections; each key belongs to one of them, so that they never wait for each other's row locks.
const WRITERS: usize = 2;
const BATCH_MAX: usize = 1_024;

/// A low fillfactor leaves room in each page, so that completions update rows in the same page.
const TABLE: &str = "CREATE TABLE raw_records (\
    id uuid PRIMARY KEY, fingerprint uuid NOT NULL, fence int8 NOT NULL, \
    lease_ends int8 NOT NULL, retention_ends int8, body bytea) WITH (fillfactor = 10)";

/// A new table has no statistics, and plans without them scan the whole table.
const PLANS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET jit = off; SET plan_cache_mode = force_generic_plan";

/// Claims are in $1 and $2, completions in $3 to $5. The last part sees the table as it was before the
/// statement: the outcomes of duplicates.
const WORK: &str = "\
WITH done AS (\
    UPDATE raw_records r SET body = a.body, retention_ends = r.lease_ends + 86400000 \
    FROM unnest($3::uuid[], $4::int8[], $5::bytea[]) AS a(id, fence, body) \
    WHERE r.id = a.id AND r.fence = a.fence AND r.body IS NULL RETURNING r.id\
), new AS (\
    INSERT INTO raw_records (id, fingerprint, fence, lease_ends) \
    SELECT a.id, a.id, a.fence, floor(extract(epoch FROM now()) * 1000)::int8 + 30000 \
    FROM unnest($1::uuid[], $2::int8[]) AS a(id, fence) \
    ON CONFLICT (id) DO NOTHING RETURNING id\
) \
SELECT id, true, NULL::bytea FROM done UNION ALL SELECT id, false, NULL FROM new UNION ALL \
SELECT r.id, false, r.body FROM raw_records r WHERE r.id = ANY($1) AND r.body IS NOT NULL";

/// The connections, each with a queue of jobs.
#[derive(Debug)]
pub(crate) struct RawPostgres {
    writers: Vec<mpsc::UnboundedSender<Job>>,
    fences: AtomicI64,
}

#[derive(Debug)]
struct Job {
    id: RecordId,
    fence: i64,
    /// `None` for a claim.
    body: Option<Vec<u8>>,
    answer: oneshot::Sender<RowResult>,
}

/// The result of a job; none if the key exists without an outcome.
#[derive(Debug)]
enum RowResult {
    Done,
    Replay(Vec<u8>),
}

impl RawPostgres {
    pub(crate) async fn open(address: &str) -> Result<Self> {
        connect(address).await?.batch_execute(TABLE).await?;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            let client = connect(address).await?;
            client.batch_execute(PLANS).await?;
            let work = client.prepare(WORK).await?;
            let (writer, jobs) = mpsc::unbounded_channel();
            tokio::spawn(write(client, work, jobs));
            writers.push(writer);
        }
        Ok(Self {
            writers,
            fences: AtomicI64::new(0),
        })
    }

    async fn ask(&self, id: RecordId, fence: i64, body: Option<Vec<u8>>) -> Result<RowResult> {
        let (answer, answered) = oneshot::channel();
        let writer = &self.writers[usize::from(id.0[0]) % WRITERS];
        let job = Job {
            id,
            fence,
            body,
            answer,
        };
        writer.send(job).ok().context("a writer thread stopped")?;
        answered.await.context("a statement failed or refused")
    }
}

async fn connect(address: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Sends all waiting jobs, in a loop.
async fn write(client: Client, work: Statement, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut batch = Vec::new();
    while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
        // Sorted in index order, and so that answers can be matched to jobs.
        batch.sort_unstable_by_key(|job| (job.body.is_some(), job.id.0));
        if let Err(error) = write_batch(&client, &work, &mut batch).await {
            eprintln!("refrain-bench: the raw loop's statement failed: {error:#}");
            return;
        }
        batch.clear();
    }
}

async fn write_batch(client: &Client, work: &Statement, batch: &mut Vec<Job>) -> Result<()> {
    let first = batch.partition_point(|job| job.body.is_none());
    let mut completions = batch.split_off(first);
    let bodies: Vec<_> = completions.iter_mut().map(|job| job.body.take()).collect();
    let (claimed, completed) = (columns(batch), columns(&completions));
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&claimed.0, &claimed.1, &completed.0, &completed.1, &bodies];
    let rows = client.query(work, &parameters).await?;
    for row in rows {
        let (Id(id), is_completion): (Id, bool) = (row.get(0), row.get(1));
        let answer = row
            .get::<_, Option<_>>(2)
            .map_or(RowResult::Done, RowResult::Replay);
        let jobs = if is_completion {
            &mut completions
        } else {
            &mut *batch
        };
        let at = jobs.binary_search_by_key(&id, |job| job.id.0);
        let job = at.ok().map(|at| replace_answer(&mut jobs[at]));
        let _ = job.context("a reply without a request")?.send(answer);
    }
    Ok(())
}

/// Takes the answer channel out of a job; the job stays, because the search for other jobs needs the order.
fn replace_answer(job: &mut Job) -> oneshot::Sender<RowResult> {
    std::mem::replace(&mut job.answer, oneshot::channel().0)
}

fn columns(jobs: &[Job]) -> (Vec<Id>, Vec<i64>) {
    jobs.iter().map(|job| (Id(job.id.0), job.fence)).unzip()
}

impl Engine for RawPostgres {
    type Held = i64;

    async fn begin(&self, id: RecordId) -> Result<i64> {
        let fence = self.fences.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(id, fence, None).await?;
        ensure!(matches!(answer, RowResult::Done), "the key is not new");
        Ok(fence)
    }

    async fn complete(&self, id: RecordId, fence: i64, body: Vec<u8>) -> Result<()> {
        self.ask(id, fence, Some(body)).await.map(|_| ())
    }

    async fn replay(&self, id: RecordId) -> Result<[u8; 16]> {
        match self.ask(id, 0, None).await? {
            RowResult::Replay(body) => body.first_chunk().copied().context("the body is too short"),
            RowResult::Done => bail!("a completed key was granted"),
        }
    }
}

/// A record id as PostgreSQL's 128-bit `uuid`.
#[derive(Debug)]
struct Id([u8; 16]);

type SqlResult<T> = Result<T, Box<dyn std::error::Error + Sync + Send>>;

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> SqlResult<IsNull> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> SqlResult<Self> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}
