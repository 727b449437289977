//! `redis`: the Redis store against raw scripts, in turns, with `appendfsync` set to `everysec` and `always`.

use std::io;

use anyhow::Result;
use refrain_testkit::servers::PrivateRedis;

use crate::{
    Setup,
    harness::{self, System},
    raw_redis::RawRedis,
    report::Report,
    servers::{self, TASKS},
};

const RATIO_MIN: f64 = 0.7;
const SYNCS: [&str; 2] = ["everysec", "always"];

/// Measures both in turns, for each number of tasks and each sync mode.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    for sync in SYNCS {
        for tasks in TASKS {
            compare(setup, report, sync, tasks)?;
        }
    }
    Ok(())
}

fn compare(setup: &Setup, report: &mut Report, sync: &str, tasks: usize) -> Result<()> {
    let plan = setup.plan(tasks);
    let start = |setup: &Setup| start(setup, sync);
    let raw = async |address: &str| RawRedis::open(address).await;
    let mut systems: [System<'_>; 2] = [
        (
            "the raw loop",
            Box::new(|| servers::round(setup, plan, start, raw)),
        ),
        (
            "the store",
            Box::new(|| servers::round(setup, plan, start, servers::open)),
        ),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    let what = format!("appendfsync {sync}, {tasks} tasks");
    servers::compare(report, &what, &rounds[0], &rounds[1], RATIO_MIN);
    Ok(())
}

fn start(setup: &Setup, sync: &str) -> io::Result<PrivateRedis> {
    // No rewrites of the append-only file: the child process would take a core in some rounds and not in others.
    let settings = [("appendfsync", sync), ("auto-aof-rewrite-percentage", "0")];
    PrivateRedis::start_beneath(&setup.root, &settings)
}
