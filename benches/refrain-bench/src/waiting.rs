//! `waiting`: a thousand duplicates of one key wait at the proxy for the first one's outcome.
//!
//! Measures the time from the first response to the last, and checks that the upstream executed once.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Duration, sleep, timeout},
};

use crate::{
    Setup, clock, folder, harness,
    http::{self, Front},
    report::{Need, Report},
};

const DUPLICATES: usize = 1_000;
const SPREAD_MAX_MS: f64 = 50.0;
/// By then every duplicate has reached the proxy and waits.
const ARRIVAL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(9);

const REQUEST: &[u8] = b"POST /v1/payments HTTP/1.1\r\nhost: localhost\r\nidempotency-key: the-one\r\ncontent-length: 2\r\n\r\n{}";

/// Measures both stores, one after the other.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    http::tie_clients()?;
    for (name, front) in [("memory", Front::Memory), ("file", Front::File)] {
        let rounds = (0..setup.options.rounds).map(|_| round(setup, front));
        let spreads = rounds.collect::<Result<Vec<_>>>()?;
        let what = format!("{name}, from the first answer to the last of {DUPLICATES}, ms");
        report.figure(&what, "ms", &spreads);
        report.target(what, &spreads, Need::AtMost(SPREAD_MAX_MS));
    }
    Ok(())
}

/// Milliseconds between the first response and the last.
fn round(setup: &Setup, front: Front) -> Result<f64> {
    let folder = folder::fresh(&setup.root)?;
    harness::thread_runtime()?.block_on(async {
        let upstream = Slow::start().await?;
        let proxy = http::measured(setup, front, upstream.address, None, folder.path())?;
        let asking = (0..DUPLICATES).map(|_| tokio::spawn(ask(proxy.address)));
        let asking: Vec<_> = asking.collect();
        sleep(ARRIVAL).await;
        upstream.go.notify_one();
        let mut answered = Vec::new();
        for asking in asking {
            answered.push(asking.await??);
        }
        let effects = upstream.effects.load(Relaxed);
        ensure!(effects == 1, "the upstream ran {effects} times");
        let first = answered.iter().min().context("no client got a response")?;
        let last = answered.iter().max().context("no client got a response")?;
        Ok((*last - *first).as_secs_f64() * 1_000.0)
    })
}

/// An upstream that responds on demand.
struct Slow {
    address: SocketAddr,
    go: Arc<Notify>,
    effects: Arc<AtomicU32>,
}

impl Slow {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let slow = Self {
            address: listener.local_addr()?,
            go: Arc::default(),
            effects: Arc::default(),
        };
        let (go, effects) = (slow.go.clone(), slow.effects.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (go, effects) = (go.clone(), effects.clone());
                let service = service_fn(move |_| {
                    let (go, effects) = (go.clone(), effects.clone());
                    async move {
                        effects.fetch_add(1, Relaxed);
                        go.notified().await;
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"paid"))))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(slow)
    }
}

/// The time at which the response arrived.
async fn ask(proxy: SocketAddr) -> Result<Instant> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"paid") {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
        let read = read.context("no response in time")??;
        ensure!(read > 0, "cut off: {}", String::from_utf8_lossy(&answer));
    }
    ensure!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    Ok(clock::now())
}
