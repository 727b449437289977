//! `postgres-sweep`: latencies while a million records are swept.
//!
//! The records' retention has ended before the first round; the sweeping rounds remove them as fast as the
//! store can. A quiet round on the same server precedes each sweeping round.
//!
//! A few statements insert the records: completed records in the store's own schema, in the order of their
//! ends, with outcomes of the workload's size. Loading is not measured. Vacuum, statistics and a checkpoint
//! for the new rows run before the first round, so that they slow no quiet round.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use refrain::{Store, store::AnyStore};
use refrain_testkit::servers::PrivatePostgres;
use tokio_postgres::NoTls;

use crate::{
    Setup, folder,
    harness::{self, Round},
    postgres,
    report::{Need, Report},
    servers,
    store::{self, Subject},
    work::{self, Plan},
};

const TASKS: usize = 64;
const SLOWER_MAX: f64 = 2.0;
/// Records per INSERT statement.
const LOADED_AT_ONCE: u64 = 50_000;
/// Bytes of a stored outcome with a body of [`work::BODY_LEN`].
const OUTCOME_LEN: usize = work::BODY_LEN + 40;
/// The limit that the engine uses for a sweep.
const SWEEP_AT_MOST: u32 = 100_000;
/// The sweep starts when the measurement does.
const WARM_UP: Duration = Duration::from_millis(500);

/// Measures quiet and sweeping rounds in turns until all records are swept.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let server = postgres::start(setup)?;
    let runtime = harness::network_runtime()?;
    runtime.block_on(load(setup, report, &server))?;
    folder::settle(&setup.root)?;
    let mut rounds = Rounds::default();
    for number in 0..u64::from(setup.options.rounds) {
        runtime.block_on(rounds.pair(setup, &server, number))?;
        if rounds.is_all_swept(setup) {
            break;
        }
    }
    rounds.tell(setup, report);
    Ok(())
}

async fn load(setup: &Setup, report: &mut Report, server: &PrivatePostgres) -> Result<()> {
    // Creates the schema.
    drop(servers::open(&server.url()).await?);
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    let connection = tokio::spawn(connection);
    let start = crate::clock::now();
    let records = setup.options.records;
    for first in (1..=records).step_by(LOADED_AT_ONCE as usize) {
        let last = records.min(first + LOADED_AT_ONCE - 1);
        client.batch_execute(&completed(first, last)).await?;
    }
    let rate = records as f64 / start.elapsed().as_secs_f64();
    report.figure("loading", "records/s", &[rate]);
    for care in ["VACUUM (ANALYZE) refrain.records", "CHECKPOINT"] {
        client.batch_execute(care).await?;
    }
    drop(client);
    connection.await??;
    Ok(())
}

/// SQL that inserts these records, which ended one after another, at least an hour ago.
fn completed(first: u64, last: u64) -> String {
    format!(
        "INSERT INTO refrain.records (id, fingerprint, state, fence_epoch, fence_counter, fence_nonce, \
             retention_ends, remember_ends, outcome) \
         SELECT gen_random_uuid(), gen_random_uuid(), 2, 1, n, 1, m, m, decode(repeat('ab', {OUTCOME_LEN}), 'hex') \
         FROM (SELECT n, floor(extract(epoch FROM now()) * 1000)::int8 - 3600000 - (10000000 - n) AS m \
             FROM generate_series({first}, {last}) n) past"
    )
}

#[derive(Default)]
struct Rounds {
    quiet: Vec<Round>,
    sweeping: Vec<Round>,
    /// Number of records swept in each of these rounds.
    swept: Vec<f64>,
}

impl Rounds {
    async fn pair(&mut self, setup: &Setup, server: &PrivatePostgres, number: u64) -> Result<()> {
        let subject = Arc::new(servers::open(&server.url()).await?);
        let plan = setup.plan(TASKS);
        let quiet = work::round(subject.clone(), plan, 2 * number).await?;
        let (sweeping, swept) = sweeping_round(subject, plan, 2 * number + 1).await?;
        self.quiet.push(quiet);
        self.sweeping.push(sweeping);
        self.swept.push(swept as f64);
        Ok(())
    }

    fn is_all_swept(&self, setup: &Setup) -> bool {
        self.swept.iter().sum::<f64>() >= setup.options.records as f64
    }

    fn tell(&self, setup: &Setup, report: &mut Report) {
        store::describe(report, &format!("quiet, {TASKS} tasks"), &self.quiet);
        store::describe(report, &format!("sweeping, {TASKS} tasks"), &self.sweeping);
        report.figure("swept", "records a round", &self.swept);
        let share = self.swept.iter().sum::<f64>() / setup.options.records as f64;
        report.figure("swept in all", "of what was loaded", &[share]);
        let what = format!("p99 of all, sweeping / quiet, {TASKS} tasks");
        let pairs = self.sweeping.iter().zip(&self.quiet);
        let ratios: Vec<_> = pairs.map(|(busy, quiet)| p99(busy) / p99(quiet)).collect();
        report.figure(&what, "×", &ratios);
        report.target(what, &ratios, Need::AtMost(SLOWER_MAX));
    }
}

fn p99(round: &Round) -> f64 {
    harness::quantile_ms(&round.all(), 0.99)
}

/// Runs one round with a concurrent sweep; returns also how many records were swept.
async fn sweeping_round(
    subject: Arc<Subject<AnyStore>>,
    plan: Plan,
    run: u64,
) -> Result<(Round, u64)> {
    let store = subject.store.clone();
    let end = tokio::time::Instant::now() + WARM_UP + plan.measured;
    let sweep = tokio::spawn(async move {
        tokio::time::sleep(WARM_UP).await;
        sweep_until(&store, end).await
    });
    let round = work::round(subject, plan, run).await?;
    let swept = sweep.await??;
    ensure!(
        swept > 0,
        "no record was swept, although retention has ended"
    );
    Ok((round, swept))
}

async fn sweep_until(store: &AnyStore, end: tokio::time::Instant) -> Result<u64> {
    let mut swept = 0;
    while tokio::time::Instant::now() < end {
        match store.sweep(SWEEP_AT_MOST).await? {
            0 => break,
            gone => swept += u64::from(gone),
        }
    }
    Ok(swept)
}
