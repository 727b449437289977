//! Connections to the upstream that wait for their next request.
//!
//! A request goes out once. Only one of which not a byte was written may go over another connection.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use refrain::{http::Failure, policy::ProxySettings, record::Reason};
use tokio::time::Instant;

use crate::{clients::HEADERS_USUAL, connect::Connector, outgoing::Outgoing, socket::Peek};

/// How often a request of which nothing was written is taken to another connection.
const TRIES_MAX: u32 = 3;

/// The idle connections of one thread.
pub(crate) struct Pool {
    connector: Connector,
    builder: Builder,
    idle: Mutex<Vec<Idle>>,
    idle_for: Duration,
    idle_max: usize,
}

/// A connection that carries one request at a time.
pub(crate) struct Line {
    sender: SendRequest<Outgoing>,
    peek: Peek,
}

struct Idle {
    line: Line,
    since: Instant,
}

impl Pool {
    pub(crate) fn new(connector: Connector, settings: &ProxySettings) -> Arc<Self> {
        let mut builder = Builder::new();
        builder.max_buf_size(settings.head_bytes_max.max(64 << 10));
        if settings.headers_max != HEADERS_USUAL {
            builder.max_headers(settings.headers_max);
        }
        Arc::new(Self {
            connector,
            builder,
            idle: Mutex::default(),
            idle_for: settings.upstream_idle,
            idle_max: settings.upstream_idle_max,
        })
    }

    /// Sends a request, once. The line comes with the answer, to be given back when the answer's body has ended.
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<(Response<Incoming>, Line), Lost> {
        for _ in 0..TRIES_MAX {
            let mut line = match self.take() {
                Some(line) => line,
                None => self.connect().await.map_err(Lost::not_sent)?,
            };
            match line.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, line)),
                Err(mut error) => match error.take_message() {
                    // The connection closed before it took the request.
                    Some(unsent) => request = unsent,
                    None => return Err(Lost::after_sending(&error.into_error())),
                },
            }
        }
        let message = "the upstream closed every connection before it took a request";
        Err(Lost::not_sent(io::Error::other(message)))
    }

    /// Takes a line whose answer has ended.
    pub(crate) fn give_back(&self, line: Line) {
        if line.sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            let since = tokio::time::Instant::now();
            idle.push(Idle { line, since });
        }
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        let now = tokio::time::Instant::now();
        self.idle()
            .retain(|idle| now - idle.since < self.idle_for && !idle.line.sender.is_closed());
    }

    /// The line that was used last, if it can still be used.
    fn take(&self) -> Option<Line> {
        let now = tokio::time::Instant::now();
        loop {
            let Idle { line, since } = self.idle().pop()?;
            let is_fresh = now - since < self.idle_for;
            if is_fresh && line.sender.is_ready() && line.peek.is_quiet() {
                return Some(line);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> io::Result<Line> {
        let (peek, io) = self.connector.connect().await?;
        let handshake = self.builder.handshake(TokioIo::new(io)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        Ok(Line { sender, peek })
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) failure: Failure,
    pub(crate) why: String,
    /// The client's body broke off, not the upstream.
    pub(crate) is_clients_fault: bool,
}

impl Lost {
    fn not_sent(error: io::Error) -> Self {
        Self {
            failure: Failure::NotSent,
            why: error.to_string(),
            is_clients_fault: false,
        }
    }

    fn after_sending(error: &hyper::Error) -> Self {
        let reason = match error.is_parse() {
            true => Reason::Failed,
            false => Reason::Reset,
        };
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        Self {
            failure: Failure::Lost(reason),
            why: format!("{error}{}", cause.unwrap_or_default()),
            is_clients_fault: error.is_user(),
        }
    }
}
