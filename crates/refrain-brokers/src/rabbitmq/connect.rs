//! The RabbitMQ connection: opened on demand, reopened after it is lost.

use std::{sync::Arc, time::Duration};

use lapin::{Channel, Connection, ConnectionBuilder, ConnectionProperties};
use refrain::Result;
use tokio::{sync::Mutex, time::timeout};
use tokio_rustls::rustls::crypto::ring;

use super::{ANSWER, address::Address, errors};

/// Timeout of the whole handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// Reply code of an orderly close.
pub(super) const GOODBYE: u16 = 200;

/// Holds at most one connection and reconnects on demand.
pub(super) struct RabbitConnection {
    address: Address,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl RabbitConnection {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            connection: Mutex::new(None),
        }
    }

    pub(super) fn server(&self) -> &str {
        &self.address.shown
    }

    /// Returns the open connection, or opens a new one.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>> {
        let mut place = self.connection.lock().await;
        if let Some(connection) = place.as_ref().filter(|held| held.status().connected()) {
            return Ok(connection.clone());
        }
        *place = None;
        let made = timeout(CONNECT, connect(&self.address)).await;
        let made = made.map_err(|_| errors::timed_out(self.server()))??;
        let connection = Arc::new(made);
        *place = Some(connection.clone());
        Ok(connection)
    }

    /// Opens a new channel on the connection.
    pub(super) async fn channel(&self) -> Result<Channel> {
        let connection = self.connection().await?;
        channel(&connection, self.server()).await
    }

    pub(super) async fn close(&self) {
        if let Some(connection) = self.connection.lock().await.take() {
            // A server that does not answer drops the connection by itself.
            let _ = timeout(ANSWER, connection.close(GOODBYE, "closed".into())).await;
        }
    }
}

pub(super) async fn channel(connection: &Connection, server: &str) -> Result<Channel> {
    errors::wait_for_reply(server, connection.create_channel()).await
}

async fn connect(address: &Address) -> Result<Connection> {
    if address.is_tls() {
        // rustls picks its only compiled-in provider; with several it cannot choose, so ring is installed.
        let _ = ring::default_provider().install_default();
    }
    let properties = ConnectionProperties::default().with_connection_name("refrain".into());
    let builder =
        ConnectionBuilder::new().map_err(|error| errors::convert_error(&address.shown, &error))?;
    let connecting = builder
        .with_uri(address.uri.clone())
        .with_properties(properties)
        .with_tls_config(address.tls()?);
    let connected = connecting.connect().await;
    connected.map_err(|error| errors::convert_error(&address.shown, &error))
}
