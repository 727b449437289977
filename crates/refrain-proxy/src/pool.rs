//! Pool of idle connections to the upstream.
//!
//! A request is sent once. Only a request of which no byte was written may be sent over another connection.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use refrain::{
    http::{Code, Failure},
    policy::ProxySettings,
    record::Reason,
};
use tokio::time::Instant;

use crate::{
    connect::Connector,
    http1::Limits,
    upstream::{
        ExchangeFailure, ExchangeTerms, UpstreamConnection, UpstreamRequest, UpstreamResponse,
        exchange,
    },
};

/// Most connections that are tried for one request, as long as no byte of it was written.
const TRIES_MAX: u32 = 3;

/// The idle upstream connections of one thread.
pub(crate) struct UpstreamPool {
    connector: Connector,
    terms: ExchangeTerms,
    idle: Mutex<Vec<Idle>>,
    idle_for: Duration,
    idle_max: usize,
}

struct Idle {
    line: Box<UpstreamConnection>,
    since: Instant,
}

impl UpstreamPool {
    pub(crate) fn new(connector: Connector, settings: &ProxySettings) -> Arc<Self> {
        Arc::new(Self {
            connector,
            terms: ExchangeTerms {
                limits: Limits {
                    bytes_max: settings.head_bytes_max.max(64 << 10),
                    fields_max: settings.headers_max,
                },
                patience: settings.read_timeout,
            },
            idle: Mutex::default(),
            idle_for: settings.upstream_idle,
            idle_max: settings.upstream_idle_max,
        })
    }

    /// Sends a request, once. The connection comes with the response, and is given back when the response's body has ended.
    pub(crate) async fn send(
        &self,
        ask: &mut UpstreamRequest,
    ) -> Result<UpstreamResponse, LostExchange> {
        for _ in 0..TRIES_MAX {
            let mut now = tokio::time::Instant::now();
            let line = match self.take(now) {
                Some(line) => line,
                None => {
                    // Boxed: connecting is rare, and its future is far larger than the rest.
                    let connecting = Box::pin(self.connect());
                    let line = connecting.await.map_err(LostExchange::not_sent)?;
                    now = tokio::time::Instant::now();
                    line
                }
            };
            match exchange(line, ask, &self.terms, now).await {
                Ok(answer) => return Ok(answer),
                Err(ExchangeFailure::Unsent) => {}
                Err(failed) => return Err(failed.into()),
            }
        }
        let message = "the upstream closed every connection before the request was sent";
        Err(LostExchange::not_sent(io::Error::other(message)))
    }

    /// Takes back a connection whose response has ended.
    pub(crate) fn give_back(&self, mut line: Box<UpstreamConnection>) {
        // Bytes that belong to no request would be taken for the next response.
        // At the limit, a request of any thread may wait for this connection to be closed.
        if !line.input.bytes.is_empty() || self.connector.is_full() {
            return;
        }
        line.input.rest();
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            let since = tokio::time::Instant::now();
            idle.push(Idle { line, since });
        }
    }

    /// Closes connections that were idle for too long or are no longer usable.
    pub(crate) fn sweep(&self) {
        let now = tokio::time::Instant::now();
        self.idle().retain_mut(|idle| {
            now - idle.since < self.idle_for && idle.line.is_quiet() && !self.connector.is_full()
        });
    }

    /// The most recently used connection that is still usable.
    fn take(&self, now: Instant) -> Option<Box<UpstreamConnection>> {
        loop {
            let Idle { mut line, since } = self.idle().pop()?;
            if now - since < self.idle_for && line.is_quiet() {
                return Some(line);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> io::Result<Box<UpstreamConnection>> {
        let (io, permit) = self.connector.connect().await?;
        Ok(Box::new(UpstreamConnection::new(io, permit)))
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) struct LostExchange {
    pub(crate) failure: Failure,
    pub(crate) why: String,
    /// Set if the client's body failed or stalled, and not the upstream.
    pub(crate) client: Option<Code>,
}

impl LostExchange {
    fn not_sent(error: io::Error) -> Self {
        Self {
            failure: Failure::NotSent,
            why: error.to_string(),
            client: None,
        }
    }
}

impl From<ExchangeFailure> for LostExchange {
    fn from(failed: ExchangeFailure) -> Self {
        let (reason, why) = match &failed {
            ExchangeFailure::Unsent => (Reason::Reset, "the request was not sent".to_owned()),
            ExchangeFailure::Client(error) => (Reason::Reset, error.to_string()),
            ExchangeFailure::Lost(error) => (Reason::Reset, error.to_string()),
            ExchangeFailure::Broken(broken) => (Reason::Failed, broken.to_string()),
            ExchangeFailure::Still => (
                Reason::Timeout,
                "no data was sent or received in time".to_owned(),
            ),
        };
        Self {
            failure: Failure::Lost(reason),
            why,
            client: match &failed {
                ExchangeFailure::Client(error) => Some(code(error.as_ref())),
                _ => None,
            },
        }
    }
}

/// Problem code for a client's body that failed.
fn code(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Code {
    match error.downcast_ref().map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Code::RequestTimeout,
        _ => Code::RequestMalformed,
    }
}
