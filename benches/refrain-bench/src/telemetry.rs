//! `telemetry`: what the proxy pays for an access log, for an open dashboard, and for traces.
//!
//! The set-up is that of the benchmark `http`. Two systems are the same proxy: their ratio is the noise.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use axum::{Router, routing::post};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    Setup,
    harness::{self, Round, System},
    http::{self, CONNECTIONS, Front},
    load::Keys,
    report::{Need, Report},
};

const LOG_RATE_MIN: f64 = 0.95;
const DASHBOARD_RATE_MIN: f64 = 0.98;
/// Time between two loads of the overview: more often than a person, so that each round has some.
const RELOADED_EVERY: Duration = Duration::from_secs(1);
/// The start of an event with requests.
const EVENT: &[u8] = b"data:";

const FRONTS: [(&str, Front); 4] = [
    ("plain", Front::File),
    ("plain again", Front::File),
    ("access log", Front::FileLogged),
    ("dashboard open", Front::FileWatched),
];
/// With a build that has the feature `otel`.
const TRACED_FRONTS: [(&str, Front); 3] = [
    ("not traced", Front::Untraced),
    ("traced", Front::Traced),
    ("traced, collector down", Front::TracedInVain),
];
const KEYS: [(&str, Keys); 2] = [("first", Keys::New), ("replay", Keys::Stored)];

/// Measures all systems in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    http::tie_clients()?;
    let traced: &[_] = match setup.options.traced {
        Some(_) => &TRACED_FRONTS,
        None => {
            println!(
                "  traces are not measured: name a build with the feature otel with --traced PATH/refrain"
            );
            &[]
        }
    };
    let fronts = [&FRONTS[..], traced].concat();
    let cases = || {
        let keys = KEYS.iter();
        keys.flat_map(|(kind, keys)| fronts.iter().map(move |front| (kind, *keys, front)))
    };
    let names: Vec<_> = cases()
        .map(|(kind, _, (name, _))| format!("{kind}, {name}"))
        .collect();
    let mut systems: Vec<System<'_>> = names
        .iter()
        .zip(cases())
        .map(|(name, (_, keys, (_, front)))| {
            let front = *front;
            let run = move || http::round(setup, front, CONNECTIONS, keys);
            (
                name.as_str(),
                Box::new(run) as Box<dyn FnMut() -> Result<Round>>,
            )
        })
        .collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for (name, rounds) in names.iter().zip(&rounds) {
        crate::store::describe(report, name, rounds);
    }
    for ((kind, _), rounds) in KEYS.iter().zip(rounds.chunks(fronts.len())) {
        compare(report, kind, rounds)?;
    }
    Ok(())
}

/// Compares the systems of one kind of request, in the order of the fronts.
fn compare(report: &mut Report, kind: &str, rounds: &[Vec<Round>]) -> Result<()> {
    let [plain, again, logged, watched, traced @ ..] = rounds else {
        anyhow::bail!("a system is missing");
    };
    let noise = format!("{kind}, plain again / plain");
    report.figure(noise, "×", &harness::ratios(again, plain));
    for (what, ours, min) in [
        ("access log / plain", logged, LOG_RATE_MIN),
        ("dashboard open / plain", watched, DASHBOARD_RATE_MIN),
    ] {
        let rates = harness::ratios(ours, plain);
        report.target(format!("{kind}, {what}"), &rates, Need::AtLeast(min));
        let costs = harness::cost_ratios(ours, plain);
        report.figure(format!("{kind}, processor time, {what}"), "×", &costs);
    }
    let [untraced, traced, in_vain] = traced else {
        return Ok(());
    };
    for (what, ours) in [
        ("traced / not traced", traced),
        ("traced, collector down / not traced", in_vain),
    ] {
        let rates = harness::ratios(ours, untraced);
        report.figure(format!("{kind}, {what}"), "×", &rates);
        let costs = harness::cost_ratios(ours, untraced);
        report.figure(format!("{kind}, processor time, {what}"), "×", &costs);
    }
    Ok(())
}

/// A collector of traces, which counts the requests with spans.
pub(crate) struct Collector {
    address: SocketAddr,
    /// Unset if nothing listens.
    serving: Option<(JoinHandle<std::io::Result<()>>, Arc<AtomicU64>)>,
}

impl Collector {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received = Arc::new(AtomicU64::new(0));
        let count = received.clone();
        let collect = async move |body: Bytes| {
            let is_full = !body.is_empty();
            count.fetch_add(is_full.into(), Ordering::Relaxed);
        };
        let app = Router::new().route("/v1/traces", post(collect));
        let serving = tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Self {
            address,
            serving: Some((serving, received)),
        })
    }

    /// An address on which nothing listens.
    pub(crate) async fn absent() -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        Ok(Self {
            address,
            serving: None,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it; fails if no spans arrived.
    pub(crate) async fn end(self) -> Result<()> {
        let Some((serving, received)) = self.serving else {
            return Ok(());
        };
        serving.abort();
        ensure!(
            received.load(Ordering::Relaxed) > 0,
            "the collector received no spans"
        );
        Ok(())
    }
}

/// An open dashboard: its overview, which is loaded again and again, and the live stream.
pub(crate) struct OpenDashboard {
    stream: JoinHandle<Result<()>>,
    reloads: JoinHandle<Result<()>>,
    events: Arc<AtomicU64>,
}

/// Opens the overview, and then its live stream.
pub(crate) async fn watch(admin: SocketAddr) -> Result<OpenDashboard> {
    load(admin).await?;
    let mut stream = request(admin, "/live", "keep-alive").await?;
    let events = Arc::new(AtomicU64::new(0));
    let count = events.clone();
    let stream = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = stream.read(&mut buffer).await?;
            ensure!(read > 0, "the live stream of the dashboard ended early");
            count.fetch_add(count_events(&buffer[..read]), Ordering::Relaxed);
        }
    });
    let reloads = tokio::spawn(async move {
        loop {
            sleep(RELOADED_EVERY).await;
            load(admin).await?;
        }
    });
    Ok(OpenDashboard {
        stream,
        reloads,
        events,
    })
}

async fn load(admin: SocketAddr) -> Result<()> {
    let mut page = request(admin, "/", "close").await?;
    let mut html = Vec::new();
    page.read_to_end(&mut html).await?;
    ensure!(
        html.starts_with(b"HTTP/1.1 200"),
        "the dashboard does not open"
    );
    Ok(())
}

/// The events in a part of a stream; one that is cut in two is not counted.
fn count_events(part: &[u8]) -> u64 {
    let events = part.windows(EVENT.len()).filter(|it| *it == EVENT);
    events.count() as u64
}

async fn request(admin: SocketAddr, path: &str, connection: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(admin).await?;
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {admin}\r\nAccept: text/html, text/event-stream\r\nConnection: {connection}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

impl OpenDashboard {
    /// Closes it; fails if a page did not load, the stream had ended, or no request was shown.
    pub(crate) async fn end(self) -> Result<()> {
        for task in [self.stream, self.reloads] {
            match task.is_finished() {
                true => task.await??,
                false => task.abort(),
            }
        }
        ensure!(
            self.events.load(Ordering::Relaxed) > 0,
            "the dashboard showed no request"
        );
        Ok(())
    }
}
