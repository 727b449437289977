//! `http`: the proxy against nginx as a plain proxy, and against the upstream without a proxy.
//!
//! The measured process has its own processor; the clients and the upstream share a thread on the other
//! one, which never sleeps. All systems get the same requests in turns; the CPU time is that of the
//! measured process alone.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use refrain::encryption::MasterKey;
use tokio::net::TcpListener;

use crate::{
    Setup, folder,
    harness::{self, Round, System},
    load::{Keys, Load},
    peers::{self, Peer, refrain_binary},
    report::{Need, Report},
    telemetry::{self, Collector},
};

const MEASURED: usize = 0;
const OTHERS: usize = 1;
pub(crate) const CONNECTIONS: u64 = 32;

const FIRST_MIN: f64 = 0.75;
const FIRST_PROCESSOR_MAX: f64 = 1.4;
const FILE_FIRST_MIN: f64 = 0.4;
const FILE_256_MIN: f64 = 0.55;
const REPLAY_MIN: f64 = 1.7;
const FILE_REPLAY_MIN: f64 = 1.2;
const REPLAY_DIRECT_MIN: f64 = 0.75;
const PASS_MIN: f64 = 0.9;

/// The measured process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Front {
    Direct,
    Nginx,
    Memory,
    File,
    /// `refrain chaos` without any faults.
    Chaos,
    /// As `File`, with an access log.
    FileLogged,
    /// As `File`, with encrypted records.
    FileEncrypted,
    /// As `File`, with the dashboard open.
    FileWatched,
    /// The proxy of the build that `--traced` names: without traces, with traces, and with a collector that is down.
    Untraced,
    Traced,
    TracedInVain,
    /// The proxy of the build that `--other` names.
    OtherMemory,
    OtherFile,
}

const SYSTEMS: [(&str, Front, u64, Keys); 9] = [
    ("direct", Front::Direct, CONNECTIONS, Keys::Other),
    ("nginx", Front::Nginx, CONNECTIONS, Keys::New),
    ("memory, first", Front::Memory, CONNECTIONS, Keys::New),
    ("memory, replay", Front::Memory, CONNECTIONS, Keys::Stored),
    ("file, first", Front::File, CONNECTIONS, Keys::New),
    ("file, replay", Front::File, CONNECTIONS, Keys::Stored),
    ("unguarded", Front::Memory, CONNECTIONS, Keys::Other),
    ("nginx, 256", Front::Nginx, 256, Keys::New),
    ("file, first, 256", Front::File, 256, Keys::New),
];

/// Pins this process, which runs the clients, to the processor that is not measured.
pub(crate) fn tie_clients() -> Result<()> {
    let processors = std::thread::available_parallelism()?.get();
    ensure!(
        processors > OTHERS,
        "two processors are needed: one for the measured process, one for the clients and the upstream"
    );
    peers::tie_self(OTHERS)
}

/// Measures all systems in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    tie_clients()?;
    let mut systems: Vec<System<'_>> = SYSTEMS
        .iter()
        .map(|&(name, front, connections, keys)| {
            let run = move || round(setup, front, connections, keys);
            (name, Box::new(run) as Box<dyn FnMut() -> Result<Round>>)
        })
        .collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for ((name, ..), rounds) in SYSTEMS.iter().zip(&rounds) {
        crate::store::describe(report, name, rounds);
    }
    let [
        direct,
        nginx,
        first,
        replay,
        file_first,
        file_replay,
        pass,
        nginx_256,
        file_256,
    ] = &rounds[..]
    else {
        anyhow::bail!("a system is missing");
    };
    for (what, ours, theirs, min) in [
        ("memory, first / nginx", first, nginx, FIRST_MIN),
        ("memory, replay / nginx", replay, nginx, REPLAY_MIN),
        ("memory, replay / direct", replay, direct, REPLAY_DIRECT_MIN),
        ("file, first / nginx", file_first, nginx, FILE_FIRST_MIN),
        ("file, replay / nginx", file_replay, nginx, FILE_REPLAY_MIN),
        ("unguarded / nginx", pass, nginx, PASS_MIN),
        (
            "file, first / nginx, 256",
            file_256,
            nginx_256,
            FILE_256_MIN,
        ),
    ] {
        report.target(what, &harness::ratios(ours, theirs), Need::AtLeast(min));
    }
    for (what, ours) in [("file, first", file_first), ("file, replay", file_replay)] {
        let ratios = harness::cost_ratios(ours, nginx);
        report.figure(format!("processor time, {what} / nginx"), "×", &ratios);
    }
    report.target(
        "processor time, memory, first / nginx",
        &harness::cost_ratios(first, nginx),
        Need::AtMost(FIRST_PROCESSOR_MAX),
    );
    Ok(())
}

/// Runs one round of requests. About one in forty nginx rounds fails with a reset upstream connection, so
/// nginx gets a second try.
pub(crate) fn round(setup: &Setup, front: Front, connections: u64, keys: Keys) -> Result<Round> {
    let round = || try_round(setup, front, connections, keys);
    match round() {
        Err(error) if matches!(front, Front::Nginx) => {
            println!("  nginx returned an unexpected response; measuring it again: {error:#}");
            round()
        }
        round => round,
    }
}

fn try_round(setup: &Setup, front: Front, connections: u64, keys: Keys) -> Result<Round> {
    let folder = folder::fresh(&setup.root)?;
    let lasts = Duration::from_secs_f64(setup.options.seconds);
    let round = harness::thread_runtime()?.block_on(async {
        let _awake = harness::stay_awake();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = listener.local_addr()?;
        let serving = tokio::spawn(peers::serve(listener));
        let collector = match front {
            Front::Traced => Some(Collector::start().await?),
            Front::TracedInVain => Some(Collector::absent().await?),
            _ => None,
        };
        let address = collector.as_ref().map(Collector::address);
        let measured = measured(setup, front, upstream, address, folder.path())?;
        let watching = match (front, measured.admin) {
            (Front::FileWatched, Some(admin)) => Some(telemetry::watch(admin).await?),
            _ => None,
        };
        let load = Load {
            address: measured.address,
            connections,
            keys,
        };
        let round = load.round(lasts, || measured.processor_time()).await;
        serving.abort();
        if let Some(watching) = watching {
            watching.end().await?;
        }
        if let Some(collector) = collector {
            collector.end().await?;
        }
        round
    });
    round.with_context(|| format!("{front:?}"))
}

/// Starts the measured process.
pub(crate) fn measured(
    setup: &Setup,
    front: Front,
    upstream: SocketAddr,
    collector: Option<SocketAddr>,
    folder: &Path,
) -> Result<Peer> {
    let traced = || {
        let traced = setup.options.traced.as_deref();
        traced.context("no build with the feature otel was named")
    };
    let other = || {
        setup
            .options
            .other
            .as_deref()
            .context("no other build was named")
    };
    let file = format!("file:{}", folder.join("records").display());
    let log = format!("access_log = {:?}\n", folder.join("access.log"));
    let endpoint = collector.map(|it| format!("otlp_endpoint = \"http://{it}\"\n"));
    let endpoint = endpoint.unwrap_or_default();
    let refrain = |binary: &Path, store: &str, lines: &str| {
        Peer::refrain(binary, MEASURED, upstream, store, folder, lines)
    };
    match front {
        Front::Direct => Peer::upstream(MEASURED),
        Front::Nginx => Peer::nginx(MEASURED, upstream, folder),
        Front::Chaos => Peer::chaos(MEASURED, upstream),
        Front::Memory => refrain(&refrain_binary()?, "memory:", ""),
        Front::File | Front::FileWatched => refrain(&refrain_binary()?, &file, ""),
        Front::FileLogged => refrain(&refrain_binary()?, &file, &log),
        Front::FileEncrypted => {
            let key = folder.join("key");
            std::fs::write(&key, MasterKey::generate())?;
            let lines = format!("[encryption]\nkey_file = {key:?}\n");
            refrain(&refrain_binary()?, &file, &lines)
        }
        Front::Untraced | Front::Traced | Front::TracedInVain => {
            refrain(traced()?, &file, &endpoint)
        }
        Front::OtherMemory => refrain(other()?, "memory:", ""),
        Front::OtherFile => refrain(other()?, &file, ""),
    }
}
