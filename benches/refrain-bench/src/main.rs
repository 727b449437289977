//! The benchmarks: ratios within one run, against what was set out to be reached.
//!
//! Absolute figures do not carry over to another machine, and hardly to another minute.
//! So every system is measured in turns with the one it is compared to, and the ratio of each pair counts.
//!
//! One file for each benchmark; a new one is a file and a row in [`BENCHMARKS`].

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

mod chaos;
mod child;
mod clock;
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
mod waiting;
mod work;

/// As in the `refrain` command, for all that is measured in this process: the guarded and the plain alike.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use machine::Machine;
use report::Report;

/// The name, and how it is run.
type Benchmark = (&'static str, fn(&Setup, &mut Report) -> Result<()>);

const BENCHMARKS: [Benchmark; 11] = [
    ("chaos", chaos::run),
    ("http", http::run),
    ("layer", layer::run),
    ("messages", messages::run),
    ("postgres", postgres::run),
    ("postgres-sweep", postgres_sweep::run),
    ("redis", redis::run),
    ("store", store::run),
    ("store-million", store_million::run),
    ("store-sweep", store_sweep::run),
    ("waiting", waiting::run),
];

/// Runs the benchmarks that are named, or all of them, and compares with what is to be reached.
///
/// chaos: the proxy that breaks things, told to break nothing, against nginx.
/// http: the proxy against nginx and against no proxy at all.
/// layer: an axum service behind the tower layer against the same service without it.
/// messages: a consumer of NATS and of Redis with deduplication against the same without it; the memory of its keys.
/// postgres: the store on PostgreSQL against raw batches of statements.
/// postgres-sweep: its slowest operations while a million records are swept.
/// redis: the store on Redis against raw scripts, synced every second and always.
/// store: the embedded store against a raw log of the same run.
/// store-million: with a million records in it, its size and how fast it opens.
/// store-sweep: its slowest operations while segments are dropped and compacted.
/// waiting: a thousand duplicates of one key behind the proxy.
///
/// Exit codes: 0 all reached, 1 something was missed or failed, 2 usage.
#[derive(Debug, Clone, Parser)]
#[command(name = "refrain-bench", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Which benchmarks to run; all of them if none is named.
    #[arg(value_parser = BENCHMARKS.map(|(name, _)| name))]
    names: Vec<String>,
    /// How long one round measures, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// How many rounds each system gets.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How many tasks work at once, for the benchmark `store`.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 256])]
    tasks: Vec<usize>,
    /// How many records `store-million` and `postgres-sweep` load, and how many keys `messages` deduplicates.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Where to make the folders that are measured; beside the binary's build by default. A real disk, no tmpfs.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Where to write all figures as JSON, too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// What a process of its own is started for by a benchmark.
    #[arg(long, hide = true)]
    child: Option<child::Errand>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("0.1 to 600 are taken".into()),
    }
}

/// What every benchmark starts from.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: Options,
    /// Beneath this one the folders are made that are measured.
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

/// Whether everything was reached.
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
    let is_chosen = |name: &str| names.is_empty() || names.iter().any(|chosen| chosen == name);
    let chosen = BENCHMARKS.iter().filter(|(name, _)| is_chosen(name));
    chosen.copied().collect()
}
