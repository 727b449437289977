//! `refrain demo`: the same buyers pay the same flaky service twice, once bare and once guarded, and the two ledgers are compared.

use std::{path::Path, process::ExitCode, sync::Arc};

use tempfile::TempDir;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

mod burst;
mod buyer;
mod ledger;
mod process;
mod report;
pub(crate) mod shop;

use crate::output::say;
use burst::Burst;
use ledger::Ledger;
use process::Process;
use report::{Line, Run};

/// As a shell reports a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Show double charges without Refrain, and none with it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain demo            compare, then stay up to be tried by hand with curl
  refrain demo --once     compare and end

A flaky payments service cuts some of its answers and is too slow with others, after it has charged.
Thirty buyers pay it and try again with the same key until they have an answer: first bare,
then behind Refrain's layer, where the service is also killed with -9 in the middle and started again.
Everything happens on this machine, in a temporary folder that is removed at the end.

Exit codes: 0 nothing was charged twice or lost behind Refrain, 1 something was, 2 wrong usage.")]
pub(crate) struct Args {
    /// End after the comparison
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let mut stop = std::pin::pin!(stopped()?);
        let folder = tempfile::Builder::new().prefix("refrain-demo-").tempdir()?;
        let (service, is_good) = tokio::select! {
            compared = compare(&folder) => compared?,
            () = &mut stop => return Ok(INTERRUPTED.into()),
        };
        if !args.once {
            say(report::by_hand(service.address()));
            stop.await;
        }
        // The service first: it must not write while its folder goes.
        drop(service);
        folder.close()?;
        Ok(ExitCode::from(u8::from(!is_good)))
    })
}

/// One thread is plenty, for the demo and for its service.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Ready when somebody wants this to end: Ctrl-C, SIGTERM, or the terminal was closed.
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

/// Both runs and the comparison; answers the guarded service, still up, and whether all is well behind it.
async fn compare(folder: &TempDir) -> anyhow::Result<(Process, bool)> {
    say(report::INTRODUCTION);
    let bare = run_bare(&Ledger::at(folder.path().join("bare.ledger"))).await?;
    let ledger = Ledger::at(folder.path().join("guarded.ledger"));
    let store = folder.path().join("records");
    let (service, guarded) = run_guarded(&ledger, &store).await?;
    say(report::comparison(&bare, &guarded));
    Ok((service, guarded.is_good()))
}

async fn run_bare(ledger: &Ledger) -> anyhow::Result<Run> {
    let line = Line::new("without Refrain");
    let service = Process::start(ledger, None).await?;
    let (_, address) = watch::channel(service.address());
    let burst = Burst::new(ledger.clone(), address, line);
    burst.run().await
}

async fn run_guarded(ledger: &Ledger, store: &Path) -> anyhow::Result<(Process, Run)> {
    let line = Line::new("with Refrain");
    let mut service = Process::start(ledger, Some(store)).await?;
    let (moved, address) = watch::channel(service.address());
    let burst = Arc::new(Burst::new(ledger.clone(), address, line));
    let accident = async {
        burst.reach_the_middle().await?;
        drop(service);
        burst.say("killed with -9 in the middle");
        service = Process::start(ledger, Some(store)).await?;
        burst.say("started again");
        moved.send_replace(service.address());
        anyhow::Ok(service)
    };
    let (service, run) = tokio::try_join!(accident, burst.run())?;
    Ok((service, run))
}
