//! Measurements in a child process: memory without other allocations, and an end by SIGKILL.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result};
use refrain::store::embedded::Options as StoreOptions;

use crate::{
    Options,
    clock::now,
    endless, harness, peers,
    store::Subject,
    work::{self, Plan},
};

/// Task of the child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Errand {
    /// Opens the store in `--folder`, and prints the duration and the memory.
    Open,
    /// Writes with `--tasks` for `--seconds`, prints a line, and continues until it is killed.
    Write,
    /// Serves as the upstream of proxies.
    Upstream,
    /// Consumes messages of `--records` keys, each twice, and prints the memory.
    Consume,
}

/// Number of tasks that write until the process is killed.
const TASKS: &str = "64";

/// Runs the task; called in the child.
pub(crate) fn run(errand: Errand, options: &Options) -> Result<()> {
    let folder = || options.folder.as_deref().context("no folder was named");
    match errand {
        Errand::Open => tell_opening(folder()?),
        Errand::Write => write_until_killed(folder()?, options),
        Errand::Upstream => peers::serve_upstream(),
        Errand::Consume => endless::consume(folder()?, options.records),
    }
}

/// Cost of opening a store.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) seconds: f64,
    /// Increase of resident memory, in bytes.
    pub(crate) resident_bytes: f64,
    pub(crate) records: f64,
}

fn tell_opening(folder: &Path) -> Result<()> {
    let before = resident_bytes()?;
    let start = now();
    let subject = Subject::open(folder, StoreOptions::default())?;
    let seconds = start.elapsed().as_secs_f64();
    let more = resident_bytes()? - before;
    println!("{seconds} {more} {}", subject.store.len());
    Ok(())
}

fn write_until_killed(folder: &Path, options: &Options) -> Result<()> {
    let subject = Arc::new(Subject::open(folder, StoreOptions::default())?);
    let plan = Plan {
        tasks: options.tasks.iter().sum(),
        measured: std::time::Duration::from_secs_f64(options.seconds),
        loaded: 0,
        recent: u64::MAX,
    };
    let runtime = harness::runtime()?;
    for run in 0.. {
        // Keys that differ from those of earlier processes.
        let run = u64::from(std::process::id()) << 8 | run;
        runtime.block_on(work::round(subject.clone(), plan, run))?;
        println!("written");
        std::io::stdout().flush()?;
    }
    Ok(())
}

pub(crate) fn resident_bytes() -> Result<f64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).context("no resident size")?;
    Ok(pages.parse::<f64>()? * rustix::param::page_size() as f64)
}

/// Opens the store in a child process.
pub(crate) fn open(folder: &Path) -> Result<Opening> {
    let output = command(Errand::Open, folder)?
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let mut next = || numbers.next().context("the child said too little");
    Ok(Opening {
        seconds: next()??,
        resident_bytes: next()??,
        records: next()??,
    })
}

/// Consumes messages of this many keys, each twice, in a child process; returns pairs of messages seen and memory.
pub(crate) fn consume(folder: &Path, keys: u64) -> Result<Vec<(f64, f64)>> {
    let output = command(Errand::Consume, folder)?
        .args(["--records", &keys.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "the child failed");
    let text = String::from_utf8(output.stdout)?;
    let step = |line: &str| -> Result<(f64, f64)> {
        let (seen, bytes) = line.split_once(' ').context("the child said too little")?;
        Ok((seen.parse()?, bytes.parse()?))
    };
    text.lines().map(step).collect()
}

/// Writes to the store in a child process, and kills the process while it writes.
pub(crate) fn write_and_kill(folder: &Path, seconds: f64) -> Result<()> {
    let mut child = command(Errand::Write, folder)?
        .args(["--seconds", &seconds.to_string(), "--tasks", TASKS])
        .stdout(Stdio::piped())
        .spawn()?;
    let said = child.stdout.take().context("the child has no output")?;
    let first = first_line(said);
    let ended = kill(&mut child);
    anyhow::ensure!(first? == "written", "the child wrote nothing");
    ended
}

fn first_line(from: ChildStdout) -> Result<String> {
    let mut line = String::new();
    BufReader::new(from).read_line(&mut line)?;
    Ok(line.trim().into())
}

fn kill(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn command(errand: Errand, folder: &Path) -> Result<Command> {
    let name = match errand {
        Errand::Open => "open",
        Errand::Write => "write",
        Errand::Upstream => "upstream",
        Errand::Consume => "consume",
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", name, "--folder"]).arg(folder);
    Ok(command)
}
