//! The way to a server: one address, one TLS, one set of words for what does not work. For the store, and for others who keep tables.

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
    connect::{ANSWER_TIMEOUT, Facts},
    pooler::{self, Sessions},
    tls, trouble,
};

/// The oldest server whose statements we use.
const VERSION_MIN: i32 = 130_000;

/// A PostgreSQL server to connect to, as an address names it.
///
/// The address is read as [`Postgres::open`](super::Postgres::open) reads it, `sslmode` and `sslrootcert` included.
#[derive(Clone)]
pub struct Dial {
    address: Address,
    tls: tls::Tls,
    /// Whether connections are known to be sessions of their own. Clones share it: the check is made once.
    has_own_sessions: Arc<AtomicBool>,
}

impl Dial {
    /// Reads an address, and the certificates that it names.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where one of them cannot be read.
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

    /// The schema that the address names with `?schema=`, if it does.
    #[must_use]
    pub fn schema(&self) -> Option<&str> {
        self.address
            .is_schema_named
            .then_some(self.address.schema.as_str())
    }

    /// A connection to a server that takes writes. Messages that nobody asked for go to `heard`.
    ///
    /// Has to be called within a tokio runtime, in which the connection then lives.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server cannot be reached or takes no writes, [`ErrorKind::Invalid`] when
    /// password, certificate or rights are not in order; the message says which, and what to do.
    /// [`ErrorKind::Unsupported`] where a pooler shares server connections between clients.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(&self, heard: impl FnMut(AsyncMessage) + Send + 'static) -> Result<Wire> {
        let (wire, _) = self.reach(heard).await?;
        Ok(wire)
    }

    /// A connection to a server of any version, which need not take writes: to look, and no more.
    ///
    /// Has to be called within a tokio runtime, in which the connection then lives.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn look(&self) -> Result<Wire> {
        self.open(|_| {}).await
    }

    /// An error of this server's, with what to do about it.
    #[must_use]
    pub fn told(&self, error: &tokio_postgres::Error) -> Error {
        trouble::at_start(error, &self.address)
    }

    /// As [`connect`](Self::connect), with what the server says about itself.
    pub(super) async fn reach(
        &self,
        heard: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<(Wire, Facts)> {
        let wire = self.open(heard).await?;
        let facts = timeout(ANSWER_TIMEOUT, Facts::read(&wire.client)).await;
        let facts = facts.map_err(|_| self.silent())?;
        let facts = facts.map_err(|error| self.told(&error))?;
        self.check(&facts)?;
        Ok((wire, facts))
    }

    /// A connection that is a session of its own. Nothing is set before that is known, since what is set for a session
    /// of a pooler in transaction mode stays behind on the connections of others.
    async fn open(&self, heard: impl FnMut(AsyncMessage) + Send + 'static) -> Result<Wire> {
        let wire = self.open_any(&self.address.config, heard).await?;
        if self.has_own_sessions.load(Ordering::Relaxed) {
            return Ok(wire);
        }
        // Where no second connection can be had, the next one is compared.
        let mut config = self.address.config.clone();
        config.application_name("refrain pooler check");
        let Ok(other) = self.open_any(&config, |_| ()).await else {
            return Ok(wire);
        };
        match pooler::compare(&wire.client, &other.client).await {
            Sessions::Own => self.has_own_sessions.store(true, Ordering::Relaxed),
            Sessions::Unknown => {}
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
        let connected = connected.map_err(|_| self.silent())?;
        let (client, connection) = connected.map_err(|error| self.told(&error))?;
        let task = tokio::spawn(drive(connection, heard)).abort_handle();
        Ok(Wire { client, task })
    }

    fn check(&self, facts: &Facts) -> Result<()> {
        let address = &self.address;
        let message = if facts.version < VERSION_MIN {
            format!(
                "{address}: the server is PostgreSQL {}; Refrain needs 13 or newer",
                facts.version / 10_000
            )
        } else if facts.is_standby {
            format!(
                "{address}: the server is a standby, which lags behind and takes no writes; \
                 name the primary, or all servers with commas: the one that takes writes is used"
            )
        } else if facts.is_read_only {
            format!(
                "{address}: the server is read-only; \
                 ALTER ROLE or ALTER DATABASE … SET default_transaction_read_only = off, or name another one"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    pub(super) fn silent(&self) -> Error {
        let message = format!(
            "{}: no answer in time; check host, port and what stands between",
            self.address
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Without its password.
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

/// A connection, which ends with this.
#[derive(Debug)]
pub struct Wire {
    pub(super) client: Client,
    task: AbortHandle,
}

impl Wire {
    /// What is asked over it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What is asked over it, for transactions.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // At once, and not when the server has answered what nobody waits for any more.
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
