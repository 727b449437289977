//! Connects to the upstream, with or without TLS.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain_tls::{Authorities, Verification};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::stream::Io;

/// How to reach the upstream.
#[derive(Clone)]
pub(crate) struct Connector {
    /// Host and port, for the resolver.
    address: Arc<str>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    patience: Duration,
    /// Limits the open connections of all threads.
    room: Arc<Semaphore>,
    connections_max: Arc<AtomicUsize>,
}

impl Connector {
    /// `authority` is the host, and the port if it is not the scheme's default.
    pub(crate) fn new(is_tls: bool, authority: &str, patience: Duration) -> io::Result<Self> {
        let (host, port) = split(authority, if is_tls { 443 } else { 80 })?;
        let tls = match is_tls {
            true => Some((tls()?, server_name(host)?)),
            false => None,
        };
        let address = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        Ok(Self {
            address: address.into(),
            tls,
            patience,
            room: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            connections_max: Arc::new(AtomicUsize::new(Semaphore::MAX_PERMITS)),
        })
    }

    /// Limits the open connections. Call it once, before the first connection.
    pub(crate) fn limit(&self, connections_max: usize) {
        let beyond = Semaphore::MAX_PERMITS.saturating_sub(connections_max);
        self.room.forget_permits(beyond);
        self.connections_max.store(connections_max, Relaxed);
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        let max = self.connections_max.load(Relaxed);
        max.saturating_sub(self.room.available_permits())
    }

    /// Whether the limit is reached, so that requests may wait for a connection.
    pub(crate) fn is_full(&self) -> bool {
        self.room.available_permits() == 0
    }

    /// Opens a connection, which counts towards the limit until the permit is dropped.
    /// If this fails, no byte of a request was sent.
    pub(crate) async fn connect(&self) -> io::Result<(Io, OwnedSemaphorePermit)> {
        let room = self.room.clone();
        let Ok(permit) = timeout(self.patience, room.acquire_owned()).await else {
            let message = "all connections that the open-file limit allows are in use; \
                           raise it with `ulimit -n` or LimitNOFILE=";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        };
        let permit = permit.map_err(io::Error::other)?;
        let connecting = async {
            let stream = TcpStream::connect(&*self.address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(match &self.tls {
                None => Io::Plain(stream),
                Some((tls, name)) => {
                    let stream = tls.connect(name.clone(), stream).await?;
                    Io::Tls(Box::new(stream.into()))
                }
            })
        };
        let connected = timeout(self.patience, connecting).await;
        let io = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok((io, permit))
    }
}

fn split(authority: &str, default: u16) -> io::Result<(&str, u16)> {
    let bad = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("invalid host `{authority}`; write HOST or HOST:PORT"),
        )
    };
    let parsed: http::uri::Authority = authority.parse().map_err(|_| bad())?;
    let host = &authority[..parsed.host().len()];
    let port = parsed.port_u16().unwrap_or(default);
    if authority.len() > host.len() && parsed.port_u16().is_none() {
        return Err(bad());
    }
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

fn tls() -> io::Result<TlsConnector> {
    let authorities = Authorities::read(None).and_then(|it| it.at_least_one("SSL_CERT_FILE"));
    let config = authorities.and_then(|it| refrain_tls::client(Verification::Full(it), None));
    match config {
        Ok(config) => Ok(Arc::new(config).into()),
        Err(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}
