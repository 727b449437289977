//! The benchmarks: ratios within one run, compared with targets.
//!
//! Absolute figures do not transfer to another machine, and hardly to another minute. So each system is
//! measured in turns with the one it is compared to, and the ratio of each pair counts.
//!
//! Each benchmark has its own file and a row in [`BENCHMARKS`].

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

mod chaos;
mod child;
mod clock;
mod compare;
mod encryption;
mod endless;
mod folder;
mod harness;
mod http;
mod layer;
mod load;
mod machine;
mod messages;
mod peers;
mod postgres;
mod postgres_sweep;
mod raw_log;
mod raw_postgres;
mod raw_redis;
mod redis;
mod report;
mod servers;
mod store;
mod store_million;
mod store_sweep;
mod telemetry;
mod waiting;
mod work;

/// The same allocator as in the `refrain` command, for everything measured in this process, with and without Refrain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use machine::Machine;
use report::Report;

/// Name and function of a benchmark.
type Benchmark = (&'static str, fn(&Setup, &mut Report) -> Result<()>);

const BENCHMARKS: [Benchmark; 14] = [
    ("chaos", chaos::run),
    ("compare", compare::run),
    ("encryption", encryption::run),
    ("http", http::run),
    ("layer", layer::run),
    ("messages", messages::run),
    ("postgres", postgres::run),
    ("postgres-sweep", postgres_sweep::run),
    ("redis", redis::run),
    ("store", store::run),
    ("store-million", store_million::run),
    ("store-sweep", store_sweep::run),
    ("telemetry", telemetry::run),
    ("waiting", waiting::run),
];

/// Runs the named benchmarks, or all of them except `compare`, and compares the results with the targets.
///
/// chaos: `refrain chaos` without any faults against nginx.
/// compare: the proxy of this build against that of another one, named by --other.
/// encryption: the proxy with encrypted records against itself without encryption.
/// http: the proxy against nginx and against no proxy.
/// layer: an axum service with the tower layer against the same service without it.
/// messages: a NATS and a Redis consumer with deduplication against the same without it; memory per key.
/// postgres: the PostgreSQL store against raw batched statements.
/// postgres-sweep: slowest operations of the PostgreSQL store while a million records are swept.
/// redis: the Redis store against raw scripts, with appendfsync everysec and always.
/// store: the embedded store against a raw log in the same run.
/// store-million: size and opening time of the embedded store with a million records.
/// store-sweep: slowest operations of the embedded store while segments are dropped and compacted.
/// telemetry: the proxy with an access log, and with the dashboard open, against itself without them.
/// waiting: a thousand duplicates of one key that wait at the proxy.
///
/// Exit codes: 0 all targets reached, 1 a target was missed or a benchmark failed, 2 usage.
#[derive(Debug, Clone, Parser)]
#[command(name = "refrain-bench", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Benchmarks to run (default: all except `compare`).
    #[arg(value_parser = BENCHMARKS.map(|(name, _)| name))]
    names: Vec<String>,
    /// Duration of a measured round, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds per system.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Concurrent tasks, for the benchmark `store`.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 256])]
    tasks: Vec<usize>,
    /// Records that `store-million` and `postgres-sweep` load, and keys that `messages` deduplicates.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Folder for the measured files, on a real disk and not tmpfs (default: in the build folder).
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Write all figures as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Another build of the command `refrain`, for the benchmark `compare`, which needs it.
    #[arg(long)]
    other: Option<PathBuf>,
    /// A build of the command with the feature `otel`: `telemetry` also measures traces.
    #[arg(long)]
    traced: Option<PathBuf>,
    /// `compare` holds the cost against the target of traceable records, 1.03, instead of the noise of a change.
    #[arg(long)]
    traceability: bool,
    /// Task of a child process that a benchmark starts.
    #[arg(long, hide = true)]
    child: Option<child::Errand>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be 0.1 to 600 seconds".into()),
    }
}

/// Input of every benchmark.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: Options,
    /// Parent of the measured folders.
    pub(crate) root: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.child {
        Some(errand) => child::run(errand, &options).map(|()| true),
        None => run(options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("refrain-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks; returns whether all targets were reached.
fn run(options: Options) -> Result<bool> {
    let chosen = choose(&options.names);
    let root = folder::root(options.folder.as_deref())?;
    let machine = Machine::look(&root)?;
    let setup = Setup { options, root };
    let mut reports = Vec::new();
    for (name, benchmark) in chosen {
        let mut report = Report::start(name, &setup, &machine);
        benchmark(&setup, &mut report).with_context(|| format!("the benchmark {name} failed"))?;
        reports.push(report);
    }
    if let Some(path) = &setup.options.json {
        report::write_json(path, &machine, &reports)?;
    }
    Ok(reports.iter().all(Report::is_reached))
}

fn choose(names: &[String]) -> Vec<Benchmark> {
    let is_chosen = |name: &str| match names.is_empty() {
        true => name != "compare",
        false => names.iter().any(|chosen| chosen == name),
    };
    let chosen = BENCHMARKS.iter().filter(|(name, _)| is_chosen(name));
    chosen.copied().collect()
}
