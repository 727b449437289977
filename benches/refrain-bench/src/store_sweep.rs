//! `store-sweep`: latencies while segments are dropped and compacted continuously.
//!
//! A store without anything to sweep is measured in turns with them, to tell the cost of the sweep from other costs.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use refrain::{RecordId, store::embedded::Options};

use crate::{
    Setup,
    harness::{self, Round, System},
    report::{Need, Report},
    store::{self, Subject},
    work::{self, Plan},
};

const TASKS: usize = 64;
const P999_MS_MAX: f64 = 20.0;
/// Short enough that segments are dropped during the round.
const RETENTION_SHORT: Duration = Duration::from_secs(1);
const RETENTION_LONG: Duration = Duration::from_secs(3_600);
/// Small segments, so that several per second are dropped.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Duplicates use only recent keys, which are certainly within retention.
const RECENT: u64 = 16;

/// Measures a store that keeps everything, one that drops everything, and one that keeps one record in eight.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let plan = Plan {
        recent: RECENT,
        ..setup.plan(TASKS)
    };
    let mut gone = [Vec::new(), Vec::new(), Vec::new()];
    let [kept, dropped, compacted] = &mut gone;
    let mut systems: [System<'_>; 3] = [
        (
            "keeping",
            Box::new(|| round(setup, plan, |_| RETENTION_LONG, kept)),
        ),
        (
            "dropping",
            Box::new(|| round(setup, plan, |_| RETENTION_SHORT, dropped)),
        ),
        (
            "compacting",
            Box::new(|| round(setup, plan, mostly_short, compacted)),
        ),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    drop(systems);
    describe(report, "keeping", &rounds[0], &gone[0]);
    for (at, name) in [(1, "dropping"), (2, "compacting")] {
        let slowest = describe(report, name, &rounds[at], &gone[at]);
        report.target(
            format!("{name}: deleted segments per round"),
            &gone[at],
            Need::AtLeast(1.0),
        );
        let what = format!("p99.9 while {name}, {TASKS} tasks, ms");
        report.target(what, &slowest, Need::AtMost(P999_MS_MAX));
    }
    Ok(())
}

/// Reports the figures; returns the p99.9 of each round.
fn describe(report: &mut Report, name: &str, rounds: &[Round], gone: &[f64]) -> Vec<f64> {
    store::describe(report, &format!("{name}, {TASKS} tasks"), rounds);
    report.figure(format!("{name}, deleted segments"), "a round", gone);
    let slowest = harness::each(rounds, |round| harness::quantile_ms(&round.all(), 0.999));
    report.figure(format!("{name}, p99.9 of all"), "ms", &slowest);
    slowest
}

fn mostly_short(id: RecordId) -> Duration {
    match id.0[15] % 8 {
        0 => RETENTION_LONG,
        _ => RETENTION_SHORT,
    }
}

fn round(
    setup: &Setup,
    plan: Plan,
    retention: fn(RecordId) -> Duration,
    gone: &mut Vec<f64>,
) -> Result<Round> {
    harness::in_folder(&setup.root, |folder| {
        let options = Options {
            segment_bytes_max: SEGMENT_BYTES,
            ..Options::default()
        };
        let subject = Arc::new(Subject {
            retention,
            remember: Duration::ZERO,
            ..Subject::open(folder, options)?
        });
        let round = harness::runtime()?.block_on(work::round(subject.clone(), plan, 0))?;
        gone.push(segments_gone(folder)?);
        Ok(round)
    })
}

/// Counts removed segments: they are numbered from 1, so each number missing below the highest is a removed one.
fn segments_gone(folder: &Path) -> Result<f64> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            numbers.extend(stem.and_then(|stem| stem.parse::<u32>().ok()));
        }
    }
    let highest = numbers.iter().max().copied().unwrap_or(0);
    Ok(f64::from(highest) - numbers.len() as f64)
}
