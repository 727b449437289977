//! Pool of idle connections to the upstream.
//!
//! A request is sent once. Only a request that no connection took may be sent over another one.

use std::{
    error::Error as _,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, client::conn::http1::Builder};
use hyper_util::rt::TokioIo;
use refrain::{
    http::{BodyError, Code, Failure},
    policy::ProxySettings,
    record::Reason,
};
use tokio::time::Instant;

use crate::{
    clients::InterimSender,
    connect::Connector,
    stream::Io,
    upstream::{ExchangeFailure, Patience, UpstreamConnection, Wire},
    upstream_body::Outgoing,
};

/// Most connections that are tried for one request, as long as none took it.
const TRIES_MAX: u32 = 3;
/// Least value of the limit for the size of a response's head.
const HEAD_BYTES_MIN: usize = 64 << 10;

/// The idle upstream connections of one thread.
pub(crate) struct UpstreamPool {
    connector: Connector,
    builder: Builder,
    /// How long the rest of a request may stall once the response has begun.
    rest_patience: Duration,
    idle: Mutex<Vec<Idle>>,
    idle_for: Duration,
    idle_max: usize,
}

struct Idle {
    connection: Box<UpstreamConnection>,
    since: Instant,
}

impl UpstreamPool {
    pub(crate) fn new(connector: Connector, settings: &ProxySettings) -> Arc<Self> {
        let mut builder = Builder::new();
        builder
            .max_buf_size(settings.head_bytes_max.max(HEAD_BYTES_MIN))
            .max_headers(settings.headers_max);
        Arc::new(Self {
            connector,
            builder,
            rest_patience: settings.read_timeout,
            idle: Mutex::default(),
            idle_for: settings.upstream_idle,
            idle_max: settings.upstream_idle_max,
        })
    }

    /// Sends a request, once. The connection comes with the response, and is given back when the response's body has ended.
    /// `patience` is how long the exchange may stall; `None` if the layer applies the timeouts. `interim` receives 1xx.
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
        patience: Option<Duration>,
        interim: Option<InterimSender>,
    ) -> Result<(Response<Incoming>, Box<UpstreamConnection>), LostExchange> {
        let patience = Patience {
            response: patience,
            rest: self.rest_patience,
        };
        for _ in 0..TRIES_MAX {
            let mut now = Instant::now();
            let mut connection = match self.take(now) {
                Some(connection) => connection,
                None => {
                    // Boxed: connecting is rare, and its future is far larger than the rest.
                    let connecting = Box::pin(self.connect());
                    let connection = connecting.await.map_err(LostExchange::not_sent)?;
                    now = Instant::now();
                    connection
                }
            };
            match connection
                .exchange(request, interim.clone(), patience, now)
                .await
            {
                Ok(response) => return Ok((response, connection)),
                Err(ExchangeFailure::Unsent(unsent)) => request = *unsent,
                Err(failed) => return Err(failed.into()),
            }
        }
        let message = "the upstream closed every connection before the request was sent";
        Err(LostExchange::not_sent(io::Error::other(message)))
    }

    /// Takes back a connection whose response has ended.
    pub(crate) fn give_back(&self, mut connection: Box<UpstreamConnection>) {
        // At the limit, a request of any thread may wait for this connection to be closed.
        if self.connector.is_full() || !connection.is_idle() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            let since = Instant::now();
            idle.push(Idle { connection, since });
        }
    }

    /// Closes connections that were idle for too long or are no longer usable.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.idle().retain_mut(|idle| {
            now - idle.since < self.idle_for
                && idle.connection.is_reusable()
                && !self.connector.is_full()
        });
    }

    /// The most recently used connection that is still usable.
    fn take(&self, now: Instant) -> Option<Box<UpstreamConnection>> {
        loop {
            let Idle {
                mut connection,
                since,
            } = self.idle().pop()?;
            if now - since < self.idle_for && connection.is_reusable() {
                return Some(connection);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> io::Result<Box<UpstreamConnection>> {
        let (io, permit) = self.connector.connect().await?;
        let is_authenticated = matches!(io, Io::Tls(_));
        let (wire, state) = Wire::new(io);
        let handshake = self.builder.handshake(TokioIo::new(wire));
        let (sender, driver) = handshake.await.map_err(io::Error::other)?;
        let connection = UpstreamConnection::new(sender, driver, state, is_authenticated, permit);
        Ok(Box::new(connection))
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

    fn lost(reason: Reason, why: String) -> Self {
        Self {
            failure: Failure::Lost(reason),
            why,
            client: None,
        }
    }
}

impl From<ExchangeFailure> for LostExchange {
    fn from(failed: ExchangeFailure) -> Self {
        match failed {
            ExchangeFailure::Unsent(_) => {
                Self::not_sent(io::Error::other("the request was not sent"))
            }
            ExchangeFailure::NotSent(error) => Self::not_sent(io::Error::other(describe(&error))),
            ExchangeFailure::Client(error) => Self {
                client: Some(code(&error)),
                ..Self::lost(Reason::Reset, error.to_string())
            },
            ExchangeFailure::Lost(error) if error.is_parse() => {
                Self::lost(Reason::Failed, describe(&error))
            }
            ExchangeFailure::Lost(error) => Self::lost(Reason::Reset, describe(&error)),
            ExchangeFailure::Malformed(why) => Self::lost(Reason::Failed, why.to_owned()),
            ExchangeFailure::Stalled => {
                let why = "no data was sent or received in time";
                Self::lost(Reason::Timeout, why.to_owned())
            }
        }
    }
}

/// The message of an error, with its cause.
fn describe(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Problem code for a client's body that failed.
fn code(error: &BodyError) -> Code {
    match error.downcast_ref().map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Code::RequestTimeout,
        _ => Code::RequestMalformed,
    }
}
