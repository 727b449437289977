//! The NATS connection: opened once, reconnected automatically.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, Event};
use refrain::{Backoff, Error, ErrorKind, Result};
use refrain_tls::{Authorities, ClientConfig, Identity, PemFile, TlsError, Verification};
use tokio::sync::watch;

use super::{
    ANSWER,
    address::{Address, User},
    errors,
};

const CONNECT: Duration = Duration::from_secs(5);
/// Ping interval; an unresponsive server is detected after two intervals.
const PING: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));

/// The server's address and whether the connection is up.
#[derive(Debug)]
pub(super) struct NatsConnection {
    pub(super) server: String,
    is_up: watch::Receiver<bool>,
}

impl NatsConnection {
    pub(super) fn is_up(&self) -> bool {
        *self.is_up.borrow()
    }

    /// Waits until the connection is up.
    pub(super) async fn wait_until_up(&self) {
        let mut is_up = self.is_up.clone();
        // Cannot fail: the client owns the sender, and every caller holds the client.
        let _ = is_up.wait_for(|is_up| *is_up).await;
    }
}

pub(super) async fn connect(address: &Address) -> Result<(Client, Arc<NatsConnection>)> {
    let server = address.shown();
    let (sender, is_up) = watch::channel(true);
    let sender = Arc::new(sender);
    let events = {
        let server = server.clone();
        move |event| {
            handle_event(&sender, &server, &event);
            async {}
        }
    };
    let options = options(address).await?.event_callback(events);
    let client = options.connect(address.servers.clone()).await;
    let client = client.map_err(|error| errors::not_connected(&server, &error))?;
    let link = NatsConnection { server, is_up };
    Ok((client, Arc::new(link)))
}

fn handle_event(is_up: &watch::Sender<bool>, server: &str, event: &Event) {
    match event {
        Event::Connected => {
            is_up.send_replace(true);
            tracing::debug!(server, "connected to NATS");
        }
        Event::Disconnected | Event::Closed => {
            is_up.send_replace(false);
            tracing::warn!(server, "NATS: {event}");
        }
        other => tracing::info!(server, "NATS: {other}"),
    }
}

fn tls(address: &Address) -> Result<ClientConfig, TlsError> {
    fn file<'a>(setting: &'static str, path: Option<&'a PathBuf>) -> Option<PemFile<'a>> {
        path.map(|path| PemFile { setting, path })
    }
    // An unencrypted connection needs no certificate authority, so the system may have none.
    let authorities = Authorities::read(file("ca", address.ca.as_ref()))?;
    let own = file("cert", address.cert.as_ref()).zip(file("key", address.key.as_ref()));
    let identity = own.map(|(certificates, key)| Identity { certificates, key });
    refrain_tls::client(Verification::Full(authorities), identity)
}

async fn options(address: &Address) -> Result<ConnectOptions> {
    let tls = tls(address).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    let options = ConnectOptions::new()
        .name("refrain")
        .connection_timeout(CONNECT)
        .request_timeout(Some(ANSWER))
        .ping_interval(PING)
        .require_tls(address.is_tls)
        .tls_client_config(tls)
        .reconnect_delay_callback(reconnect_delay);
    let options = match &address.user {
        Some(User::Password(name, password)) => {
            options.user_and_password(name.clone(), password.clone())
        }
        Some(User::Token(token)) => options.token(token.clone()),
        None => options,
    };
    match &address.credentials {
        None => Ok(options),
        Some(file) => options.credentials_file(file).await.map_err(|error| {
            let message = format!(
                "cannot read credentials={}: {error}; it must be a NATS .creds file",
                file.display()
            );
            Error::new(ErrorKind::Invalid, message)
        }),
    }
}

fn reconnect_delay(attempt: usize) -> Duration {
    BACKOFF.delay(u32::try_from(attempt).unwrap_or(u32::MAX))
}
