//! `refrain demo`: the same buyers pay the same flaky API twice, once directly and once through the proxy; the demo compares the two ledgers.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

mod api;
mod burst;
mod buyer;
mod ledger;
mod proxy;
mod report;
mod trouble;
pub(crate) mod watch;

use crate::output::say;
use api::Api;
use burst::Burst;
use proxy::Proxy;
use report::{Line, Run};
use trouble::Troubles;

/// The exit code with which shells report a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
const UNREACHABLE: u8 = 69;

/// Show double charges without Refrain, and none with it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain demo                      compare, then stay up so that you can try it with curl
  refrain demo --once               compare and exit
  refrain demo --once --seed 7      compare with other faults
  refrain demo --once --json        print the comparison as JSON

A flaky payments API loses some responses after it has charged, sends others too late, and resets some
connections before it charges. 24 buyers pay, and retry with the same key until they get a response:
first directly, then through `refrain proxy`, which is killed with kill -9 during the run and restarted.
Everything runs on this machine, in a temporary folder that is deleted at the end.

Exit codes: 0 no double or lost charge through Refrain, 1 double or lost charges, 2 wrong usage,
69 proxy or temporary folder unavailable.")]
pub(crate) struct Args {
    /// Exit after the comparison
    #[arg(long)]
    once: bool,
    /// Random seed, which decides which payment meets which fault
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the comparison as JSON
    #[arg(long, requires = "once")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = runtime()?.block_on(show(args));
    Ok(shown.unwrap_or_else(|error| {
        crate::output::complain(format_args!("refrain demo: {error:#}"));
        UNREACHABLE.into()
    }))
}

/// Sleeps in steps, so that a time in which the whole process is stalled counts as one step: on a busy machine, buyers
/// and API then still agree on which answers are late.
async fn nap(time: Duration) {
    const STEP: Duration = Duration::from_millis(50);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        tokio::time::sleep(STEP).await;
    }
}

async fn show(args: &Args) -> anyhow::Result<ExitCode> {
    let mut stop = std::pin::pin!(stopped()?);
    let folder = tempfile::Builder::new().prefix("refrain-demo-").tempdir();
    let folder =
        folder.context("cannot create a temporary folder; set TMPDIR to a writable folder")?;
    let (stage, is_good) = tokio::select! {
        compared = compare(&folder, args) => compared?,
        () = &mut stop => return Ok(INTERRUPTED.into()),
    };
    if !args.once {
        say(report::by_hand(&stage.proxy, &stage.api));
        stop.await;
    }
    // Stop the proxy first: it must not write while its folder is removed.
    drop(stage);
    folder.close()?;
    Ok(ExitCode::from(u8::from(!is_good)))
}

/// A runtime with one thread, which is enough for the demo.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// A future that is ready when the demo shall stop: Ctrl-C, SIGTERM, or the terminal was closed.
fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

/// The running proxy, and the API that it guards.
#[derive(Debug)]
struct Stage {
    proxy: Proxy,
    api: Api,
}

/// Runs both bursts and prints the comparison; returns the running servers, and whether the guarded run had no double or lost charge.
async fn compare(folder: &TempDir, args: &Args) -> anyhow::Result<(Stage, bool)> {
    if !args.json {
        say(report::INTRODUCTION);
    }
    let direct = run_directly(args).await?;
    let (stage, guarded) = run_through_proxy(folder.path(), args).await?;
    match args.json {
        true => say(format_args!("{:#}", report::json(&direct, &guarded))),
        false => say(report::comparison(&direct, &guarded)),
    }
    Ok((stage, guarded.is_good()))
}

async fn run_directly(args: &Args) -> anyhow::Result<Run> {
    let api = Api::start(Troubles::new(args.seed)).await?;
    let burst = Burst::new(&api, api.address(), Line::new("directly", args.json));
    Ok(burst.run().await)
}

async fn run_through_proxy(folder: &Path, args: &Args) -> anyhow::Result<(Stage, Run)> {
    let api = Api::start(Troubles::new(args.seed)).await?;
    let mut proxy = Proxy::start(folder, api.address()).await?;
    let line = Line::new("through Refrain", args.json);
    let burst = Arc::new(Burst::new(&api, proxy.address(), line));
    let accident = async {
        burst.reach_the_middle().await;
        proxy.kill();
        burst.say("the proxy was killed with kill -9");
        proxy.start_again().await?;
        burst.say("the proxy was restarted on the same store");
        anyhow::Ok(proxy)
    };
    let run = async { anyhow::Ok(burst.run().await) };
    let (proxy, run) = tokio::try_join!(accident, run)?;
    Ok((Stage { proxy, api }, run))
}
