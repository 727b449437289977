//! `telemetry`: what the proxy pays for an access log, and for an open dashboard.
//!
//! The set-up is that of the benchmark `http`. Two systems are the same proxy: their ratio is the noise.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
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

const KEYS: [(&str, Keys); 2] = [("first", Keys::New), ("replay", Keys::Stored)];

/// Measures all systems in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let others = [
        ("access log", Front::FileLogged, LOG_RATE_MIN),
        ("dashboard open", Front::FileWatched, DASHBOARD_RATE_MIN),
    ];
    compare(setup, report, &others)
}

/// Measures the proxy on `file:` as it is, once more as it is, and as each of the others, in turns: first requests and
/// replays. Each of the others has a minimum ratio of its throughput.
pub(crate) fn compare(
    setup: &Setup,
    report: &mut Report,
    others: &[(&str, Front, f64)],
) -> Result<()> {
    http::tie_clients()?;
    let plain = [("plain", Front::File), ("plain again", Front::File)];
    let others_fronts = others.iter().map(|&(name, front, _)| (name, front));
    let fronts: Vec<_> = plain.into_iter().chain(others_fronts).collect();
    let cases = KEYS.iter().flat_map(|&(kind, keys)| {
        let fronts = fronts.iter();
        fronts.map(move |&(name, front)| (format!("{kind}, {name}"), front, keys))
    });
    let cases: Vec<_> = cases.collect();
    let mut systems: Vec<System<'_>> = cases
        .iter()
        .map(|(name, front, keys)| {
            let run = move || http::round(setup, *front, CONNECTIONS, *keys);
            (
                name.as_str(),
                Box::new(run) as Box<dyn FnMut() -> Result<Round>>,
            )
        })
        .collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for ((name, ..), rounds) in cases.iter().zip(&rounds) {
        crate::store::describe(report, name, rounds);
    }
    for ((kind, _), rounds) in KEYS.iter().zip(rounds.chunks(fronts.len())) {
        let [plain, again, measured @ ..] = rounds else {
            anyhow::bail!("a system is missing");
        };
        let noise = harness::ratios(again, plain);
        report.figure(format!("{kind}, plain again / plain"), "×", &noise);
        for ((what, _, min), ours) in others.iter().zip(measured) {
            let rates = harness::ratios(ours, plain);
            report.target(
                format!("{kind}, {what} / plain"),
                &rates,
                Need::AtLeast(*min),
            );
            let costs = harness::cost_ratios(ours, plain);
            let what = format!("{kind}, processor time, {what} / plain");
            report.figure(what, "×", &costs);
        }
    }
    Ok(())
}

/// An open dashboard: the live stream of its overview.
pub(crate) struct OpenDashboard(JoinHandle<Result<u64>>);

/// Opens the overview, and then its live stream.
pub(crate) async fn watch(admin: SocketAddr) -> Result<OpenDashboard> {
    let mut page = request(admin, "/", "close").await?;
    let mut html = Vec::new();
    page.read_to_end(&mut html).await?;
    ensure!(
        html.starts_with(b"HTTP/1.1 200"),
        "the dashboard does not open"
    );
    let mut stream = request(admin, "/live", "keep-alive").await?;
    Ok(OpenDashboard(tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        let mut bytes = 0;
        loop {
            match stream.read(&mut buffer).await? {
                0 => return Ok(bytes),
                read => bytes += read as u64,
            }
        }
    })))
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
    /// Closes it; fails if its stream had ended before.
    pub(crate) async fn end(self) -> Result<()> {
        let has_ended = self.0.is_finished();
        self.0.abort();
        ensure!(!has_ended, "the live stream of the dashboard ended early");
        Ok(())
    }
}
