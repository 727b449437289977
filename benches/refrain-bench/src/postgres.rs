//! `postgres`: the PostgreSQL store against raw batched statements, in turns.

use std::io;

use anyhow::Result;
use refrain_testkit::servers::PrivatePostgres;

use crate::{
    Setup,
    harness::{self, System},
    raw_postgres::RawPostgres,
    report::Report,
    servers::{self, TASKS},
};

const RATIO_MIN: f64 = 0.6;

/// Measures both in turns, for each number of tasks.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    for tasks in TASKS {
        let plan = setup.plan(tasks);
        let raw = async |address: &str| RawPostgres::open(address).await;
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
        let what = format!("{tasks} tasks");
        servers::compare(report, &what, &rounds[0], &rounds[1], RATIO_MIN);
    }
    Ok(())
}

/// A server with default settings, every commit synced, on the measured disk.
pub(crate) fn start(setup: &Setup) -> io::Result<PrivatePostgres> {
    PrivatePostgres::start_beneath(&setup.root, &[])
}
