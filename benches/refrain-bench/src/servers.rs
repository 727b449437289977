//! Rounds on a server: each gets a new server, so that no system finds data of another.

use std::{io, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use refrain::store::AnyStore;
use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};

use crate::{
    Setup, folder,
    harness::{self, Round},
    peers,
    report::{Need, Report},
    store::{self, Subject},
    work::{self, Engine, Plan},
};

/// Numbers of tasks that the targets apply to.
pub(crate) const TASKS: [usize; 2] = [64, 256];

/// A private server for a benchmark.
pub(crate) trait Server {
    fn address(&self) -> String;

    /// The server's CPU time so far; zero for a server of several processes.
    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }
}

impl Server for PrivatePostgres {
    fn address(&self) -> String {
        self.url()
    }
}

impl Server for PrivateRedis {
    fn address(&self) -> String {
        self.url()
    }

    fn processor_time(&self) -> Duration {
        let time = self.pid().and_then(peers::processor_time);
        time.unwrap_or_default()
    }
}

/// Runs one round on a new server; `open` connects to it.
pub(crate) fn round<S: Server, E: Engine>(
    setup: &Setup,
    plan: Plan,
    start: impl FnOnce(&Setup) -> io::Result<S>,
    open: impl AsyncFnOnce(&str) -> Result<E>,
) -> Result<Round> {
    let server = start(setup)?;
    let address = server.address();
    folder::settle(&setup.root)?;
    harness::network_runtime()?.block_on(async {
        let engine = Arc::new(open(&address).await?);
        work::round_beside(engine, plan, 0, || server.processor_time()).await
    })
}

/// Opens our store at an address.
pub(crate) async fn open(address: &str) -> Result<Subject<AnyStore>> {
    let store = refrain_stores::open(address).await;
    let store = store.with_context(|| format!("cannot open the store at {address}"))?;
    Ok(Subject::new(store))
}

/// Reports both systems and their ratio.
pub(crate) fn compare(
    report: &mut Report,
    what: &str,
    raw: &[Round],
    store: &[Round],
    ratio_min: f64,
) {
    for (name, rounds) in [("raw", raw), ("store", store)] {
        let what = format!("{name}, {what}");
        store::describe(report, &what, rounds);
        let server = harness::each(rounds, Round::server_micros);
        if server.iter().all(|micros| *micros > 0.0) {
            report.figure(format!("{what}, the server's"), "µs/op", &server);
        }
    }
    let what = format!("store / raw, {what}");
    let ratios = harness::ratios(store, raw);
    report.figure(&what, "×", &ratios);
    report.target(what, &ratios, Need::AtLeast(ratio_min));
}
