//! HTTP clients with keep-alive that send requests in sequence: POST 300 bytes, 300 bytes back.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    clock,
    harness::{self, Round},
};

pub(crate) const BODY: [u8; 300] = [b'x'; 300];
/// Number of stored keys for replays.
const STORED: u64 = 1_000;
/// Warm-up before the measurement.
const WARM_UP: Duration = Duration::from_millis(300);

/// The requests of the clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) connections: u64,
    pub(crate) keys: Keys,
}

/// The keys that the clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The key is in a header that is ignored, so that all requests have the same length.
    Other,
    /// Every key is new.
    New,
    /// Every key is stored.
    Stored,
}

impl Load {
    /// Runs one round; `processor_time` returns the CPU time of the measured process.
    pub(crate) async fn round(
        self,
        measured: Duration,
        processor_time: impl Fn() -> Duration,
    ) -> Result<Round> {
        if self.keys == Keys::Stored {
            let mut client = Client::connect(self, 0).await?;
            for number in 0..STORED {
                client.send(number).await?;
            }
        }
        self.drive(WARM_UP, 1 << 40).await?;
        let (started, processor) = (clock::now(), processor_time());
        let new = self.drive(measured, 1 << 50).await?;
        let (seconds, processor) = (started.elapsed(), processor_time() - processor);
        Ok(Round {
            seconds: seconds.as_secs_f64(),
            processor_seconds: processor.as_secs_f64(),
            server_seconds: 0.0,
            new,
            duplicates: harness::histogram(),
        })
    }

    async fn drive(self, lasts: Duration, from: u64) -> Result<Histogram<u64>> {
        let until = clock::now() + lasts;
        let connections =
            (0..self.connections).map(|at| tokio::spawn(self.connection(until, from + (at << 32))));
        let mut all = harness::histogram();
        for connection in connections.collect::<Vec<_>>() {
            all += &connection.await??;
        }
        Ok(all)
    }

    async fn connection(self, until: Instant, from: u64) -> Result<Histogram<u64>> {
        let mut client = Client::connect(self, from).await?;
        let mut latencies = harness::histogram();
        let mut now = clock::now();
        while now < until {
            client.next += 1;
            let key = match self.keys {
                Keys::Other | Keys::New => client.next,
                Keys::Stored => client.next % STORED,
            };
            client.send(key).await?;
            let done = clock::now();
            harness::record(&mut latencies, done - now);
            now = done;
        }
        Ok(latencies)
    }
}

/// One connection with the minimum of HTTP that the measurement needs.
struct Client {
    stream: TcpStream,
    load: Load,
    next: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(load: Load, next: u64) -> Result<Self> {
        let stream = TcpStream::connect(load.address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            load,
            next,
            request: Vec::new(),
            answer: Vec::new(),
        })
    }

    async fn send(&mut self, key: u64) -> Result<()> {
        use std::io::Write as _;
        let (len, name) = match self.load.keys {
            Keys::Other => (BODY.len(), "x-another-thing"),
            Keys::New | Keys::Stored => (BODY.len(), "idempotency-key"),
        };
        self.request.clear();
        write!(
            self.request,
            "POST /v1/payments HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\n{name}: key-{key:020}\r\n\r\n",
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
        ensure!(
            text.starts_with("HTTP/1.1 200"),
            "unexpected response: {text}"
        );
        let mut fields = text.lines().filter_map(|line| line.split_once(": "));
        let len = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let (_, len) = len.context("no content-length")?;
        let len: usize = len.parse()?;
        Ok(self.answer.len() == head + 4 + len)
    }
}
