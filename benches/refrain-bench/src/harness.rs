//! Rounds in turns, latencies, and the runtime that all of it runs on.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::{runtime::Runtime, task::JoinHandle};

use crate::{Setup, folder};

/// As on the machine that the targets were set on.
const WORKERS: usize = 2;
const LATENCY_MAX_MICROS: u64 = 60_000_000;

/// What one round of one system gave.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) seconds: f64,
    /// How long the processors worked for it, ours and the kernel's share.
    pub(crate) processor_seconds: f64,
    /// How long they worked for the server beside it; zero where there is none, or it was not asked.
    pub(crate) server_seconds: f64,
    /// How long operations with a new key took.
    pub(crate) new: Histogram<u64>,
    /// How long duplicates took.
    pub(crate) duplicates: Histogram<u64>,
}

impl Round {
    fn operations(&self) -> f64 {
        (self.new.len() + self.duplicates.len()) as f64
    }

    /// Operations a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations() / self.seconds
    }

    /// Processor time of an operation, in microseconds: hardly depends on what else the machine does.
    pub(crate) fn processor_micros(&self) -> f64 {
        self.processor_seconds * 1e6 / self.operations()
    }

    /// The server's processor time of an operation, in microseconds.
    pub(crate) fn server_micros(&self) -> f64 {
        self.server_seconds * 1e6 / self.operations()
    }

    /// All operations, new and duplicate.
    pub(crate) fn all(&self) -> Histogram<u64> {
        let mut all = self.new.clone();
        all += &self.duplicates;
        all
    }
}

/// A system that is measured: its name, and how to run one round of it.
pub(crate) type System<'a> = (&'a str, Box<dyn FnMut() -> Result<Round> + 'a>);

/// Runs the systems in turns: A B A B … Answers the rounds of each.
pub(crate) fn in_turns(setup: &Setup, systems: &mut [System<'_>]) -> Result<Vec<Vec<Round>>> {
    let mut rounds: Vec<Vec<Round>> = systems.iter().map(|_| Vec::new()).collect();
    for _ in 0..setup.options.rounds {
        for ((name, run), rounds) in systems.iter_mut().zip(&mut rounds) {
            folder::settle(&setup.root)?;
            let round = run().with_context(|| format!("measuring {name}"))?;
            rounds.push(round);
        }
    }
    Ok(rounds)
}

/// One figure of each round.
pub(crate) fn each(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(figure).collect()
}

/// The ratio of each pair of rounds that ran one after the other.
pub(crate) fn ratios(ours: &[Round], theirs: &[Round]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| ours.rate() / theirs.rate())
        .collect()
}

/// The ratio of what an operation costs, of each pair of rounds that ran one after the other.
pub(crate) fn cost_ratios(ours: &[Round], theirs: &[Round]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| ours.processor_micros() / theirs.processor_micros())
        .collect()
}

pub(crate) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_time()
        .build()?;
    Ok(runtime)
}

/// As [`runtime`], for what talks to servers.
pub(crate) fn network_runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// For what runs on the caller's thread alone.
pub(crate) fn thread_runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Keeps the runtime's thread from sleeping until the guard is dropped.
///
/// To wake a thread is work for whoever answers it, dear in a virtual machine,
/// and a slower service would have to do more of it.
pub(crate) fn stay_awake() -> Awake {
    Awake(tokio::spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    }))
}

/// Until it is dropped, the runtime's thread does not sleep.
#[must_use]
pub(crate) struct Awake(JoinHandle<()>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs one round in a folder of its own, which is gone afterwards.
pub(crate) fn in_folder(root: &Path, run: impl FnOnce(&Path) -> Result<Round>) -> Result<Round> {
    let folder = folder::fresh(root)?;
    run(folder.path())
}

/// For latencies, in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, 3).expect("bounds that the type takes")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, took: Duration) {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(micros.max(1));
}

pub(crate) fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1_000.0
}
