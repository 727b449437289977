//! `store`: the embedded store against the raw log in the same run.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use refrain::{
    Claim, Fence, Fingerprint, Outcome, RecordId, Settled, Settlement, Store, Verdict,
    store::embedded::{Embedded, Options},
};

use crate::{
    Setup,
    harness::{self, Round, System},
    raw_log::RawLog,
    report::{Need, Report},
    work::{self, Engine, Plan},
};

const RATIO_MIN: f64 = 0.6;
const P99_MS_MAX: f64 = 5.0;
/// The targets apply from this many tasks on; with fewer, the disk's sync time dominates.
const TASKS_OF_TARGET: usize = 64;

/// Measures both in turns, for each number of tasks.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    for tasks in setup.options.tasks.clone() {
        let plan = setup.plan(tasks);
        let mut systems: [System<'_>; 2] = [
            ("the raw log", Box::new(|| raw_log_round(setup, plan))),
            ("the store", Box::new(|| store_round(setup, plan))),
        ];
        let mut rounds = harness::in_turns(setup, &mut systems)?;
        let (store, raw_log) = (rounds.pop(), rounds.pop());
        compare(
            report,
            tasks,
            &store.unwrap_or_default(),
            &raw_log.unwrap_or_default(),
        );
    }
    Ok(())
}

fn compare(report: &mut Report, tasks: usize, store: &[Round], raw_log: &[Round]) {
    for (name, rounds) in [("raw log", raw_log), ("store", store)] {
        describe(report, &format!("{name}, {tasks} tasks"), rounds);
    }
    let what = format!("store / raw log, {tasks} tasks");
    let ratios = harness::ratios(store, raw_log);
    report.figure(&what, "×", &ratios);
    if tasks >= TASKS_OF_TARGET {
        report.target(what, &ratios, Need::AtLeast(RATIO_MIN));
    }
    if tasks == TASKS_OF_TARGET {
        let p99 = harness::each(store, |round| harness::quantile_ms(&round.new, 0.99));
        let what = format!("p99 of new operations, {tasks} tasks, ms");
        report.target(what, &p99, Need::AtMost(P99_MS_MAX));
    }
}

/// Reports rate, latencies and CPU time of some rounds.
pub(crate) fn describe(report: &mut Report, what: &str, rounds: &[Round]) {
    report.figure(what, "op/s", &harness::each(rounds, Round::rate));
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        let latencies = harness::each(rounds, |round| harness::quantile_ms(&round.new, quantile));
        report.figure(format!("{what}, {name} of new"), "ms", &latencies);
    }
    let processor = harness::each(rounds, Round::processor_micros);
    report.figure(format!("{what}, processor time"), "µs/op", &processor);
}

impl Setup {
    pub(crate) fn plan(&self, tasks: usize) -> Plan {
        Plan {
            tasks,
            measured: Duration::from_secs_f64(self.options.seconds),
            loaded: 0,
            recent: u64::MAX,
        }
    }
}

fn raw_log_round(setup: &Setup, plan: Plan) -> Result<Round> {
    harness::in_folder(&setup.root, |folder| {
        let log = Arc::new(RawLog::open(folder)?);
        let round = harness::runtime()?.block_on(work::round(log.clone(), plan, 0))?;
        let log = Arc::into_inner(log).context("the raw log is still in use")?;
        log.close()?;
        Ok(round)
    })
}

/// Runs one round on a new store.
pub(crate) fn store_round(setup: &Setup, plan: Plan) -> Result<Round> {
    harness::in_folder(&setup.root, |folder| {
        let store = Arc::new(Subject::open(folder, Options::default())?);
        harness::runtime()?.block_on(work::round(store, plan, 0))
    })
}

/// A store as the workload uses it.
#[derive(Debug)]
pub(crate) struct Subject<S = Embedded> {
    pub(crate) store: S,
    /// Retention of an outcome, by record, so that some can be kept longer.
    pub(crate) retention: fn(RecordId) -> Duration,
    pub(crate) remember: Duration,
}

impl Subject {
    /// Opens a store in `folder` with full durability.
    pub(crate) fn open(folder: &Path, options: Options) -> Result<Self> {
        let store = Embedded::open(folder, options)?;
        ensure!(
            store.guarantees().survives_power,
            "the store is not durable"
        );
        Ok(Self::new(store))
    }
}

impl<S: Store> Subject<S> {
    /// A store that keeps outcomes for a day.
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            retention: |_| Duration::from_secs(24 * 3_600),
            remember: Duration::from_secs(7 * 24 * 3_600),
        }
    }

    async fn verdict(&self, id: RecordId) -> Result<Verdict> {
        let claim = Claim::new(id, Fingerprint([7; 16]));
        Ok(self.store.claim(claim).await?)
    }
}

impl<S: Store> Engine for Subject<S> {
    type Held = Fence;

    async fn begin(&self, id: RecordId) -> Result<Fence> {
        match self.verdict(id).await? {
            Verdict::Granted(grant) => Ok(grant.fence),
            other => Err(anyhow!("a new key was not granted: {other:?}")),
        }
    }

    async fn complete(&self, id: RecordId, fence: Fence, body: Vec<u8>) -> Result<()> {
        let end = Settlement::Complete {
            outcome: Outcome::new(200, body),
            retention: (self.retention)(id),
            remember: self.remember,
        };
        match self.store.settle(id, fence, end).await? {
            Settled::Applied => Ok(()),
            other => Err(anyhow!("a completion was refused: {other:?}")),
        }
    }

    async fn replay(&self, id: RecordId) -> Result<[u8; 16]> {
        match self.verdict(id).await? {
            Verdict::Replay(outcome) => outcome
                .body()
                .first_chunk()
                .copied()
                .context("the body is too short"),
            other => bail!("a completed key was not replayed: {other:?}"),
        }
    }
}
