//! `quota`: what a client pays while another one floods the proxy with new keys beyond its quota.
//!
//! The calm client sends 200 new keys a second; the flood sends up to 50,000 a second, of which its rate admits 500.
//! The set-up is that of the benchmark `http`, on `file:`. The calm client alone is measured twice: the ratio is the noise.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep_until},
};

use crate::{
    Setup, clock, folder,
    harness::{self, Round, System},
    http::{self, Front},
    peers,
    report::{Need, Report},
};

/// The calm client's p99 beside a flood, over its p99 alone.
const P99_MAX: f64 = 2.0;
const CALM_CONNECTIONS: u64 = 4;
const CALM_RATE: u32 = 200;
const FLOOD_CONNECTIONS: u64 = 16;
const FLOOD_RATE: u32 = 50_000;
/// Requests that the flood sends on a connection before it reads the responses.
const BATCH: u32 = 10;
const BODY: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

const SYSTEMS: [(&str, bool); 3] = [
    ("alone", false),
    ("alone again", false),
    ("beside a flood", true),
];

pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    http::tie_clients()?;
    let mut floods = Vec::new();
    let rounds = {
        let floods = std::cell::RefCell::new(&mut floods);
        let floods = &floods;
        let mut systems: Vec<System<'_>> = SYSTEMS
            .iter()
            .map(|&(name, has_flood)| {
                let run = move || {
                    let (round, flood) = round(setup, has_flood)?;
                    floods.borrow_mut().extend(flood);
                    Ok(round)
                };
                (name, Box::new(run) as Box<dyn FnMut() -> Result<Round>>)
            })
            .collect();
        harness::in_turns(setup, &mut systems)?
    };
    let p99 = |rounds: &[Round]| harness::each(rounds, |it| harness::quantile_ms(&it.all(), 0.99));
    for ((name, _), rounds) in SYSTEMS.iter().zip(&rounds) {
        report.figure(format!("p99, {name}"), "ms", &p99(rounds));
        let rates = harness::each(rounds, Round::rate);
        report.figure(format!("requests, {name}"), "1/s", &rates);
    }
    report.figure("refused requests of the flood", "1/s", &floods);
    let [alone, again, beside] = &rounds[..] else {
        anyhow::bail!("a system is missing");
    };
    let ratios = |ours: &[Round]| -> Vec<f64> {
        let pairs = p99(ours).into_iter().zip(p99(alone));
        pairs.map(|(ours, alone)| ours / alone).collect()
    };
    report.figure("p99, alone again / alone", "×", &ratios(again));
    let need = Need::AtMost(P99_MAX);
    report.target("p99, beside a flood / alone", &ratios(beside), need);
    Ok(())
}

/// One round of the calm client, and how many requests of the flood were refused in a second, if there is one.
fn round(setup: &Setup, has_flood: bool) -> Result<(Round, Option<f64>)> {
    let folder = folder::fresh(&setup.root)?;
    let lasts = Duration::from_secs_f64(setup.options.seconds);
    harness::thread_runtime()?.block_on(async {
        let _awake = harness::stay_awake();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = listener.local_addr()?;
        let serving = tokio::spawn(peers::serve(listener));
        let measured = http::measured(setup, Front::FileLimited, upstream, None, folder.path())?;
        let connect = async |client| Client::connect(measured.address, client).await;
        let until = Instant::now() + lasts;
        let mut flood = Vec::new();
        for at in 0..FLOOD_CONNECTIONS * u64::from(has_flood) {
            let client = connect("flood").await?;
            flood.push(tokio::spawn(client.flood(at << 40, until)));
        }
        let (began, processor) = (clock::now(), measured.processor_time());
        let mut calm = Vec::new();
        for at in 0..CALM_CONNECTIONS {
            let client = connect("calm").await?;
            calm.push(tokio::spawn(client.calm(at << 40, until)));
        }
        let mut new = harness::histogram();
        for client in calm {
            new += &client.await??;
        }
        let round = Round {
            seconds: began.elapsed().as_secs_f64(),
            processor_seconds: (measured.processor_time() - processor).as_secs_f64(),
            server_seconds: 0.0,
            new,
            duplicates: harness::histogram(),
        };
        let mut refused = 0;
        for client in flood {
            refused += client.await??;
        }
        serving.abort();
        ensure!(!has_flood || refused > 0, "the flood was not refused");
        let rate = refused as f64 / round.seconds;
        Ok((round, has_flood.then_some(rate)))
    })
}

/// A connection that sends new keys in a scope of its own.
struct Client {
    stream: TcpStream,
    name: &'static str,
    answers: Vec<u8>,
}

impl Client {
    async fn connect(address: std::net::SocketAddr, name: &'static str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            name,
            answers: Vec::new(),
        })
    }

    /// Sends one request at a time, at its part of the rate. A latency counts from when its request was due.
    async fn calm(mut self, from: u64, until: Instant) -> Result<Histogram<u64>> {
        let pause = Duration::from_secs(1) / (CALM_RATE / CALM_CONNECTIONS as u32);
        let mut latencies = harness::histogram();
        let mut due = Instant::now() + pause;
        for key in from.. {
            if due >= until {
                break;
            }
            sleep_until(due).await;
            let refused = self.send(key, 1).await?;
            ensure!(refused == 0, "the calm client was refused");
            harness::record(&mut latencies, due.elapsed());
            due += pause;
        }
        Ok(latencies)
    }

    /// Sends requests in batches, at its part of the rate or as fast as they are answered; returns how many were refused.
    async fn flood(mut self, mut key: u64, until: Instant) -> Result<u64> {
        let pause = Duration::from_secs(1) * FLOOD_CONNECTIONS as u32 * BATCH / FLOOD_RATE;
        let (mut refused, mut due) = (0, Instant::now());
        while due < until && Instant::now() < until {
            sleep_until(due).await;
            refused += self.send(key, BATCH).await?;
            key += u64::from(BATCH);
            due = (due + pause).max(Instant::now() - pause);
        }
        Ok(refused)
    }

    /// Sends requests with the keys from `key` on; returns how many were refused.
    async fn send(&mut self, key: u64, count: u32) -> Result<u64> {
        let mut requests = String::new();
        for key in key..key + u64::from(count) {
            requests += &format!(
                "POST /v1/payments HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\ncontent-length: {}\r\nidempotency-key: key-{key:020}\r\n\r\n{BODY}",
                self.name,
                BODY.len()
            );
        }
        self.stream.write_all(requests.as_bytes()).await?;
        let mut refused = 0;
        for _ in 0..count {
            refused += u64::from(self.answer().await? == 429);
        }
        Ok(refused)
    }

    /// The status of the next response.
    async fn answer(&mut self) -> Result<u16> {
        loop {
            if let Some((status, len)) = whole(&self.answers)? {
                self.answers.drain(..len);
                ensure!(status == 200 || status == 429, "unexpected status {status}");
                return Ok(status);
            }
            let read = self.stream.read_buf(&mut self.answers).await?;
            ensure!(read > 0, "the proxy closed the connection");
        }
    }
}

/// Status and length of the first response, if it is there as a whole.
fn whole(bytes: &[u8]) -> Result<Option<(u16, usize)>> {
    let Some(head) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..head])?;
    let status = text.get(9..12).context("no status")?.parse()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(": "));
    let len = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let len: usize = len.context("no content-length")?.1.parse()?;
    let end = head + 4 + len;
    Ok((bytes.len() >= end).then_some((status, end)))
}
