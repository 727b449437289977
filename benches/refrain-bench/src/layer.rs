//! `layer`: an axum service behind the tower layer against the same service without it.
//!
//! The service runs on one thread, the clients on another: 32 connections that are kept alive, POST 300 bytes, 300 bytes back.
//! Three ways in turns: plain, first requests (every key new), replays (every key stored). The requests are the same to the byte.
//!
//! The clients' thread never sleeps: to wake it is work for the service's thread, dear in a virtual machine,
//! and a slower service would have to do more of it.

use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use axum::{Router, routing::post};
use hdrhistogram::Histogram;
use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use crate::{
    Setup, clock,
    harness::{self, Round, System},
    report::{Need, Report},
};

const FIRST_RATIO_MIN: f64 = 0.65;
const REPLAY_RATIO_MIN: f64 = 0.8;
const FIRST_P99_MAX: f64 = 3.0;
const CONNECTIONS: u64 = 32;
const BODY: [u8; 300] = [b'x'; 300];
/// How many keys are stored for replays.
const STORED: u64 = 1_000;
/// What each round runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    First,
    Replay,
}

/// Measures the three in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let measured = Duration::from_secs_f64(setup.options.seconds);
    let round = |way| move || round(way, measured);
    let mut systems: [System<'_>; 3] = [
        ("plain axum", Box::new(round(Way::Plain))),
        ("first requests", Box::new(round(Way::First))),
        ("replays", Box::new(round(Way::Replay))),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    let [plain, first, replay] = &rounds[..] else {
        return Err(anyhow!("a system is missing"));
    };
    for (name, rounds) in [
        ("plain axum", plain),
        ("first requests", first),
        ("replays", replay),
    ] {
        crate::store::describe(report, name, rounds);
    }
    for (name, rounds, min) in [
        ("first requests", first, FIRST_RATIO_MIN),
        ("replays", replay, REPLAY_RATIO_MIN),
    ] {
        let what = format!("{name} / plain axum");
        let ratios = harness::ratios(rounds, plain);
        report.figure(&what, "×", &ratios);
        report.target(what, &ratios, Need::AtLeast(min));
    }
    let p99 = |rounds: &[Round]| harness::each(rounds, |it| harness::quantile_ms(&it.new, 0.99));
    let pairs = p99(first).into_iter().zip(p99(plain));
    let ratios: Vec<_> = pairs.map(|(first, plain)| first / plain).collect();
    let what = "p99 of first requests / p99 of plain axum";
    report.target(what, &ratios, Need::AtMost(FIRST_P99_MAX));
    Ok(())
}

fn round(way: Way, measured: Duration) -> Result<Round> {
    let server = Server::start(way)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let round = runtime.block_on(async {
        let awake = tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let round = load(server.address, way, measured).await;
        awake.abort();
        round
    })?;
    server.stop()?;
    Ok(round)
}

/// The service on a thread of its own.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Server {
    fn start(way: Way) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener)?;
                tokio::select! {
                    served = async { axum::serve(listener, app(way)).await } => served?,
                    _ = stopped => {}
                }
                Ok(())
            })
        });
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        self.thread
            .join()
            .map_err(|_| anyhow!("the service failed"))?
    }
}

fn app(way: Way) -> Router {
    let app = Router::new().route("/v1/payments", post(pay));
    match way {
        Way::Plain => app,
        Way::First | Way::Replay => {
            let engine = Engine::new(Memory::with_options(
                8 << 30,
                std::sync::Arc::new(refrain::clock::SystemClock),
            ));
            app.layer(RefrainLayer::new(engine, Policy::default()))
        }
    }
}

async fn pay(body: axum::body::Bytes) -> Vec<u8> {
    body.to_vec()
}

/// What one connection saw.
struct Seen {
    latencies: Histogram<u64>,
}

async fn load(address: SocketAddr, way: Way, measured: Duration) -> Result<Round> {
    if let Way::Replay = way {
        let mut client = Client::connect(address, 0).await?;
        for number in 0..STORED {
            client.send(number).await?;
        }
    }
    drive(address, way, WARM_UP, 1 << 40).await?;
    let (started, processor) = (clock::now(), clock::processor_time());
    let seen = drive(address, way, measured, 1 << 50).await?;
    let (seconds, processor) = (started.elapsed(), clock::processor_time() - processor);
    let mut all = harness::histogram();
    for seen in seen {
        all += &seen.latencies;
    }
    Ok(Round {
        seconds: seconds.as_secs_f64(),
        processor_seconds: processor.as_secs_f64(),
        new: all,
        duplicates: harness::histogram(),
    })
}

async fn drive(address: SocketAddr, way: Way, lasts: Duration, from: u64) -> Result<Vec<Seen>> {
    let until = clock::now() + lasts;
    let connections =
        (0..CONNECTIONS).map(|at| tokio::spawn(connection(address, way, until, from + (at << 32))));
    let mut seen = Vec::new();
    for connection in connections.collect::<Vec<_>>() {
        seen.push(connection.await??);
    }
    Ok(seen)
}

async fn connection(address: SocketAddr, way: Way, until: Instant, from: u64) -> Result<Seen> {
    let mut client = Client::connect(address, from).await?;
    let mut latencies = harness::histogram();
    let mut now = clock::now();
    while now < until {
        client.next += 1;
        let key = match way {
            Way::Plain | Way::First => client.next,
            Way::Replay => client.next % STORED,
        };
        client.send(key).await?;
        let done = clock::now();
        harness::record(&mut latencies, done - now);
        now = done;
    }
    Ok(Seen { latencies })
}

/// One connection, with as little of HTTP as the measurement needs.
struct Client {
    stream: TcpStream,
    next: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr, next: u64) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            next,
            request: Vec::new(),
            answer: Vec::new(),
        })
    }

    async fn send(&mut self, key: u64) -> Result<()> {
        use std::io::Write as _;
        self.request.clear();
        let len = BODY.len();
        write!(
            self.request,
            "POST /v1/payments HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\nidempotency-key: key-{key:020}\r\n\r\n",
        )?;
        self.request.extend(BODY);
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.answer).await?;
            ensure!(read > 0, "the service closed the connection");
            if self.is_whole()? {
                return Ok(());
            }
        }
    }

    fn is_whole(&self) -> Result<bool> {
        let Some(head) = self
            .answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
        else {
            return Ok(false);
        };
        let text = std::str::from_utf8(&self.answer[..head])?;
        ensure!(text.starts_with("HTTP/1.1 200"), "an answer was {text}");
        let len = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let len: usize = len.context("no content-length")?.parse()?;
        Ok(self.answer.len() == head + 4 + len)
    }
}
