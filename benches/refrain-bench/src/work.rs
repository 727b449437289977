//! The workload: claim a new key durably, complete it durably with 1 KiB; one operation in five is a
//! duplicate of a completed one.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use refrain::RecordId;
use tokio::task::JoinSet;

use crate::{
    clock::{now, processor_time},
    harness::{self, Round},
};

/// Length of an outcome's body, in bytes.
pub(crate) const BODY_LEN: usize = 1_024;
/// One operation in this many is a duplicate.
const DUPLICATE_EVERY: u64 = 5;
/// Measurement starts after this time.
const WARM_UP: Duration = Duration::from_millis(500);
/// An engine that exceeds the round's duration by this much is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// A measured system that holds records.
pub(crate) trait Engine: Send + Sync + 'static {
    /// The result of a claim, needed to complete it.
    type Held: Send;

    /// Claims a new key; durable on return.
    fn begin(&self, id: RecordId) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Completes the claim; durable on return.
    fn complete(
        &self,
        id: RecordId,
        held: Self::Held,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Claims a completed key; returns the first 16 bytes of the replayed body.
    fn replay(&self, id: RecordId) -> impl Future<Output = Result<[u8; 16]>> + Send;
}

/// Amount of work, and the choice of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) tasks: usize,
    pub(crate) measured: Duration,
    /// If not zero, duplicates use this many keys that were completed before the round; otherwise keys of the round.
    pub(crate) loaded: u64,
    /// Duplicates use at most this many of the task's latest keys.
    pub(crate) recent: u64,
}

/// Runs one round.
pub(crate) async fn round<E: Engine>(engine: Arc<E>, plan: Plan, run: u64) -> Result<Round> {
    round_beside(engine, plan, run, || Duration::ZERO).await
}

/// Runs one round; `server_time` returns the CPU time so far of the server that the engine works on.
pub(crate) async fn round_beside<E: Engine>(
    engine: Arc<E>,
    plan: Plan,
    run: u64,
    server_time: impl Fn() -> Duration,
) -> Result<Round> {
    let counted_from = now() + WARM_UP;
    let end = counted_from + plan.measured;
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks as u64 {
        let keys = Keys::new(run, task);
        tasks.spawn(work(engine.clone(), plan, keys, counted_from..end));
    }
    let all = async {
        tokio::time::sleep_until(counted_from.into()).await;
        let (processor_before, server_before) = (processor_time(), server_time());
        let mut round = Round {
            seconds: plan.measured.as_secs_f64(),
            processor_seconds: 0.0,
            server_seconds: 0.0,
            new: harness::histogram(),
            duplicates: harness::histogram(),
        };
        while let Some(done) = tasks.join_next().await {
            let (new, duplicates) = done??;
            round.new += new;
            round.duplicates += duplicates;
        }
        round.processor_seconds = (processor_time() - processor_before).as_secs_f64();
        round.server_seconds = server_time().saturating_sub(server_before).as_secs_f64();
        Ok(round)
    };
    let limit = WARM_UP + plan.measured + STUCK_AFTER;
    let ended = tokio::time::timeout(limit, all).await;
    ended.context("the round did not finish: an operation is stuck")?
}

async fn work<E: Engine>(
    engine: Arc<E>,
    plan: Plan,
    mut keys: Keys,
    counted: Range<Instant>,
) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut new, mut duplicates) = (harness::histogram(), harness::histogram());
    loop {
        let start = now();
        if start >= counted.end {
            return Ok((new, duplicates));
        }
        let taken = match keys.duplicate(plan) {
            Some(id) => {
                ensure!(
                    engine.replay(id).await? == id.0,
                    "a different outcome was replayed"
                );
                &mut duplicates
            }
            None => {
                one(&*engine, keys.next()).await?;
                &mut new
            }
        };
        let end = now();
        if start >= counted.start && end <= counted.end {
            harness::record(taken, end - start);
        }
    }
}

async fn one<E: Engine>(engine: &E, id: RecordId) -> Result<()> {
    let held = engine.begin(id).await?;
    engine.complete(id, held, body(id)).await
}

/// Every body is different, as in production, and begins with its record's id.
fn body(id: RecordId) -> Vec<u8> {
    let mut body = vec![b'x'; BODY_LEN];
    body[..16].copy_from_slice(&id.0);
    body
}

/// Completes `records` new keys as fast as possible.
pub(crate) async fn load<E: Engine>(engine: Arc<E>, tasks: u64, records: u64) -> Result<()> {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let engine = engine.clone();
        running.spawn(async move {
            for number in (task..records).step_by(tasks as usize) {
                one(&*engine, loaded_id(number)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

/// The keys of one task, computed from numbers, so that they need not be stored.
struct Keys {
    seed: u64,
    made: u64,
    dice: u64,
}

impl Keys {
    fn new(run: u64, task: u64) -> Self {
        let seed = mix((run + 1) << 32 | task);
        Self {
            seed,
            made: 0,
            dice: seed,
        }
    }

    fn next(&mut self) -> RecordId {
        self.made += 1;
        id(self.seed, self.made - 1)
    }

    /// Returns a completed key if the next operation is to be a duplicate.
    fn duplicate(&mut self, plan: Plan) -> Option<RecordId> {
        self.dice = mix(self.dice);
        if self.made == 0 || !self.dice.is_multiple_of(DUPLICATE_EVERY) {
            return None;
        }
        let pick = self.dice / DUPLICATE_EVERY;
        if plan.loaded > 0 {
            return Some(loaded_id(pick % plan.loaded));
        }
        let back = pick % self.made.min(plan.recent);
        Some(id(self.seed, self.made - 1 - back))
    }
}

fn loaded_id(number: u64) -> RecordId {
    id(mix(0), number)
}

/// Evenly distributed, as the digests of real record identities are.
fn id(seed: u64, number: u64) -> RecordId {
    let high = mix(seed ^ mix(number));
    let both = u128::from(high) << 64 | u128::from(mix(high ^ number));
    RecordId(both.to_be_bytes())
}

/// The finaliser of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
