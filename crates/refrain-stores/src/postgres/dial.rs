//! Connects to a PostgreSQL server: address, TLS, checks and error messages, for the store and for other users.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use refrain::{Error, ErrorKind, Result};
use tokio::{task::AbortHandle, time::timeout};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};

use super::{
    address::Address,
    connect::{ANSWER_TIMEOUT, ServerFacts},
    errors,
    pooler::{self, Sessions},
    tls,
};

/// Oldest supported server version (`server_version_num`).
const VERSION_MIN: i32 = 130_000;

/// PostgreSQL server address with its TLS settings.
///
/// The address has the same syntax as for [`Postgres::open`](super::Postgres::open), including `sslmode` and
/// `sslrootcert`.
#[derive(Clone)]
pub struct Dial {
    address: Address,
    tls: tls::Tls,
    /// Whether each connection is known to have its own server session. Clones share the result, so it is checked once.
    has_own_sessions: Arc<AtomicBool>,
}

impl Dial {
    /// Parses an address, and loads the certificates that it names.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the address or a certificate is invalid.
    pub fn new(address: &str) -> Result<Self> {
        Self::to(Address::parse(address)?)
    }

    pub(super) fn to(address: Address) -> Result<Self> {
        let tls = tls::Tls::new(&address)?;
        Ok(Self {
            address,
            tls,
            has_own_sessions: Arc::default(),
        })
    }

    /// Schema that the address names with `?schema=`, if any.
    #[must_use]
    pub fn schema(&self) -> Option<&str> {
        self.address
            .is_schema_named
            .then_some(self.address.schema.as_str())
    }

    /// Connects to a server that accepts writes. `heard` receives asynchronous messages (notices and notifications).
    ///
    /// Must be called within a tokio runtime; the connection's task is spawned there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable, too old, read-only or a standby; [`ErrorKind::Invalid`]
    /// if the password, certificate or privileges are invalid. The message names the cause and the fix.
    /// [`ErrorKind::Unsupported`] if a pooler shares server connections between clients.
    ///
    /// # Cancellation
    /// Safe to drop.
    pub async fn connect(&self, heard: impl FnMut(AsyncMessage) + Send + 'static) -> Result<Wire> {
        let (wire, _) = self.connect_with_facts(heard).await?;
        Ok(wire)
    }

    /// Connects to a server of any version, also to a standby, to read only.
    ///
    /// Must be called within a tokio runtime; the connection's task is spawned there.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancellation
    /// Safe to drop.
    pub async fn look(&self) -> Result<Wire> {
        self.open(|_| {}).await
    }

    /// Converts an error of this server into one that names the fix.
    #[must_use]
    pub fn told(&self, error: &tokio_postgres::Error) -> Error {
        errors::convert_error(error, &self.address)
    }

    /// As [`connect`](Self::connect), and returns the server's settings.
    pub(super) async fn connect_with_facts(
        &self,
        heard: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<(Wire, ServerFacts)> {
        let wire = self.open(heard).await?;
        let facts = timeout(ANSWER_TIMEOUT, ServerFacts::read(&wire.client)).await;
        let facts = facts.map_err(|_| self.timed_out())?;
        let facts = facts.map_err(|error| self.told(&error))?;
        self.check(&facts)?;
        Ok((wire, facts))
    }

    /// Opens a connection that has its own server session. Runs no `SET` before that is known: behind a pooler in
    /// transaction mode, the setting would remain on a server connection that other clients use.
    async fn open(&self, heard: impl FnMut(AsyncMessage) + Send + 'static) -> Result<Wire> {
        let wire = self.open_any(&self.address.config, heard).await?;
        if self.has_own_sessions.load(Ordering::Relaxed) {
            return Ok(wire);
        }
        let mut config = self.address.config.clone();
        config.application_name("refrain pooler check");
        let other = self.open_any(&config, |_| ()).await?;
        match pooler::compare(&wire.client, &other.client).await {
            Sessions::Own => self.has_own_sessions.store(true, Ordering::Relaxed),
            Sessions::Unknown => return Err(pooler::unknown(&self.address)),
            Sessions::Shared => return Err(pooler::refused(&self.address)),
        }
        Ok(wire)
    }

    async fn open_any(
        &self,
        config: &Config,
        heard: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<Wire> {
        let connecting = config.connect(self.tls.clone());
        let connected = timeout(self.address.connect_timeout, connecting).await;
        let connected = connected.map_err(|_| self.timed_out())?;
        let (client, connection) = connected.map_err(|error| self.told(&error))?;
        let task = tokio::spawn(drive(connection, heard)).abort_handle();
        Ok(Wire { client, task })
    }

    fn check(&self, facts: &ServerFacts) -> Result<()> {
        let address = &self.address;
        let message = if facts.version < VERSION_MIN {
            format!(
                "{address}: the server is PostgreSQL {}; Refrain needs 13 or newer",
                facts.version / 10_000
            )
        } else if facts.is_standby {
            format!(
                "{address}: the server is a standby and rejects writes; use the address of the primary, or list all hosts separated by commas: Refrain uses the one that accepts writes"
            )
        } else if facts.is_read_only {
            format!(
                "{address}: the server is read-only; run ALTER ROLE or ALTER DATABASE … SET default_transaction_read_only = off, or use another server"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    pub(super) fn timed_out(&self) -> Error {
        let message = format!(
            "{}: connection timed out; check host, port and firewalls",
            self.address
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Omits the password.
impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dial").field(&self.address).finish()
    }
}

/// Connection to a server; closed when dropped.
#[derive(Debug)]
pub struct Wire {
    pub(super) client: Client,
    task: AbortHandle,
}

impl Wire {
    /// Client for statements.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Client for transactions.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Closes immediately, without waiting for answers that have no receiver.
        self.task.abort();
    }
}

async fn drive(
    mut connection: Connection<Socket, tls::Stream>,
    mut heard: impl FnMut(AsyncMessage),
) {
    while let Some(Ok(message)) =
        std::future::poll_fn(|context| connection.poll_message(context)).await
    {
        heard(message);
    }
}
