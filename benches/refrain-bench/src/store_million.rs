//! `store-million`: the embedded store with a million records: speed compared with an empty store, size and
//! opening time.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use refrain::store::embedded::Options;

use crate::{
    Setup,
    child::{self, Opening},
    clock::now,
    folder,
    harness::{self, Round, System},
    report::{Need, Report},
    store::{self, Subject},
    work::{self, Plan},
};

const TASKS: usize = 64;
/// Many concurrent tasks, so that loading shares syncs.
const LOADING_TASKS: u64 = 1_024;
const LOADING_MAX: Duration = Duration::from_secs(600);
/// How long a child writes before it is killed, in seconds; by then several segments are open or not fully sealed.
const WRITING_SECONDS: f64 = 2.0;

const RATIO_MIN: f64 = 0.85;
const DISK_BYTES_MAX: f64 = 1_200.0;
const MEMORY_BYTES_MAX: f64 = 96.0;
const READY_SECONDS_MAX: f64 = 3.0;

/// Loads the store, reports its size, opens it several times, and compares it with an empty store.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let folder = folder::fresh(&setup.root)?;
    let folder = folder.path();
    load(setup, report, folder)?;
    size(setup, report, folder)?;
    open_clean(setup, report, folder)?;
    open_unclean(setup, report, folder)?;
    compare(setup, report, folder)
}

fn load(setup: &Setup, report: &mut Report, folder: &Path) -> Result<()> {
    let records = setup.options.records;
    let start = now();
    let subject = Arc::new(Subject::open(folder, Options::default())?);
    let loading = work::load(subject, LOADING_TASKS, records);
    let limited = async { tokio::time::timeout(LOADING_MAX, loading).await };
    harness::runtime()?
        .block_on(limited)
        .context("loading took too long")??;
    let rate = records as f64 / start.elapsed().as_secs_f64();
    report.figure(
        format!("loading, {LOADING_TASKS} tasks, closing included"),
        "records/s",
        &[rate],
    );
    Ok(())
}

fn size(setup: &Setup, report: &mut Report, folder: &Path) -> Result<()> {
    let bytes = folder::bytes_on_disk(folder)? as f64 / setup.options.records as f64;
    report.figure(
        "on disk after closing, everything included",
        "B per record",
        &[bytes],
    );
    report.target(
        "bytes on disk per record",
        &[bytes],
        Need::AtMost(DISK_BYTES_MAX),
    );
    let opened = child::open(folder)?;
    let bytes = opened.resident_bytes / opened.records;
    report.figure("memory once open (resident)", "B per record", &[bytes]);
    report.target(
        "bytes of memory per record",
        &[bytes],
        Need::AtMost(MEMORY_BYTES_MAX),
    );
    Ok(())
}

fn open_clean(setup: &Setup, report: &mut Report, folder: &Path) -> Result<()> {
    let warm = openings(setup, || child::open(folder))?;
    ready(report, "opening after a clean end, cached", &warm);
    let cold = openings(setup, || {
        folder::forget_cached(folder)?;
        child::open(folder)
    })?;
    ready(report, "opening after a clean end, from the disk", &cold);
    Ok(())
}

fn open_unclean(setup: &Setup, report: &mut Report, folder: &Path) -> Result<()> {
    let killed = openings(setup, || {
        child::write_and_kill(folder, WRITING_SECONDS)?;
        folder::forget_cached(folder)?;
        child::open(folder)
    })?;
    ready(
        report,
        "opening after SIGKILL while writing, from the disk",
        &killed,
    );
    Ok(())
}

fn openings(setup: &Setup, mut open: impl FnMut() -> Result<Opening>) -> Result<Vec<Opening>> {
    // At most three: an opening takes long, and the durations vary little.
    let times = setup.options.rounds.min(3);
    (0..times).map(|_| open()).collect()
}

fn ready(report: &mut Report, what: &str, openings: &[Opening]) {
    let seconds: Vec<_> = openings.iter().map(|opening| opening.seconds).collect();
    let records = openings.last().map_or(0.0, |opening| opening.records);
    report.figure(format!("{what}, {records} records"), "s", &seconds);
    report.target(
        format!("{what}, s"),
        &seconds,
        Need::AtMost(READY_SECONDS_MAX),
    );
}

fn compare(setup: &Setup, report: &mut Report, folder: &Path) -> Result<()> {
    // Measuring cold starts emptied the page cache; a running store has its files cached.
    folder::cache(folder)?;
    let plan = setup.plan(TASKS);
    let full = Plan {
        loaded: setup.options.records,
        ..plan
    };
    let mut run = 0;
    let mut systems: [System<'_>; 2] = [
        (
            "the empty store",
            Box::new(|| store::store_round(setup, plan)),
        ),
        (
            "the full store",
            Box::new(|| {
                run += 1;
                full_round(folder, full, run)
            }),
        ),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    let names = [
        format!("empty, {TASKS} tasks"),
        format!("full, {TASKS} tasks"),
    ];
    for (name, rounds) in names.iter().zip(&rounds) {
        store::describe(report, name, rounds);
    }
    let ratios = harness::ratios(&rounds[1], &rounds[0]);
    report.figure("full / empty", "×", &ratios);
    report.target("full / empty", &ratios, Need::AtLeast(RATIO_MIN));
    Ok(())
}

/// Runs a round with new keys; duplicates use the loaded keys.
fn full_round(folder: &Path, plan: Plan, run: u64) -> Result<Round> {
    let subject = Arc::new(Subject::open(folder, Options::default())?);
    harness::runtime()?.block_on(work::round(subject, plan, run))
}
