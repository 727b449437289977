//! Alternating rounds, latency histograms and runtimes.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::{runtime::Runtime, task::JoinHandle};

use crate::{Setup, folder};

/// Worker threads; as many as on the machine that the targets were set on.
const WORKERS: usize = 2;
const LATENCY_MAX_MICROS: u64 = 60_000_000;

/// Results of one round of one system.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) seconds: f64,
    /// CPU time of the measured process, user and system.
    pub(crate) processor_seconds: f64,
    /// CPU time of the server that the system works on; zero if there is none or it is not measured.
    pub(crate) server_seconds: f64,
    /// Latencies of operations with a new key, in microseconds.
    pub(crate) new: Histogram<u64>,
    /// Latencies of duplicates, in microseconds.
    pub(crate) duplicates: Histogram<u64>,
}

impl Round {
    fn operations(&self) -> f64 {
        (self.new.len() + self.duplicates.len()) as f64
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations() / self.seconds
    }

    /// CPU time per operation in microseconds, which hardly depends on other load on the machine.
    pub(crate) fn processor_micros(&self) -> f64 {
        self.processor_seconds * 1e6 / self.operations()
    }

    /// The server's CPU time per operation, in microseconds.
    pub(crate) fn server_micros(&self) -> f64 {
        self.server_seconds * 1e6 / self.operations()
    }

    /// Latencies of all operations, new and duplicate.
    pub(crate) fn all(&self) -> Histogram<u64> {
        let mut all = self.new.clone();
        all += &self.duplicates;
        all
    }
}

/// A measured system: its name, and a function that runs one round.
pub(crate) type System<'a> = (&'a str, Box<dyn FnMut() -> Result<Round> + 'a>);

/// Runs the systems in turns (A B A B …) and returns the rounds of each.
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

/// One figure per round.
pub(crate) fn each(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(figure).collect()
}

/// The ratio of rates for each pair of adjacent rounds.
pub(crate) fn ratios(ours: &[Round], theirs: &[Round]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| ours.rate() / theirs.rate())
        .collect()
}

/// The ratio of CPU time per operation for each pair of adjacent rounds.
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

/// As [`runtime`], with network I/O.
pub(crate) fn network_runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// A runtime on the caller's thread only.
pub(crate) fn thread_runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Keeps the runtime's thread from sleeping until the guard is dropped.
///
/// Waking a sleeping thread costs CPU time of the measured process, especially in a virtual machine, and a
/// slower service would have to wake it more often.
pub(crate) fn stay_awake() -> Awake {
    Awake(tokio::spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    }))
}

/// Keeps the runtime's thread awake until dropped.
#[must_use]
pub(crate) struct Awake(JoinHandle<()>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs one round in a new folder, and removes the folder.
pub(crate) fn in_folder(root: &Path, run: impl FnOnce(&Path) -> Result<Round>) -> Result<Round> {
    let folder = folder::fresh(root)?;
    run(folder.path())
}

/// A histogram for latencies in microseconds.
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
