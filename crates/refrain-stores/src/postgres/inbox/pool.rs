//! Connections on which messages are handled.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use refrain::Result;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Client;

use super::{
    super::{
        address::Address,
        dial::{Dial, Wire},
    },
    unreachable,
};

/// Default number of connections of a pool.
const CONNECTIONS_MAX: usize = 16;
/// How long sent data may stay unacknowledged before the connection is closed.
const SILENT_MAX: Duration = Duration::from_secs(30);
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// Source of an [`Inbox`](super::Inbox)'s connections. Implement it to use an existing pool.
///
/// ```
/// # struct Wrapped(tokio_postgres::Client);
/// # struct Shop;
/// use refrain_stores::postgres::Connections;
/// use tokio_postgres::Client;
///
/// impl Connections for Shop {
///     type Connection = Wrapped;
///
///     async fn connection(&self) -> refrain::Result<Wrapped> {
///         # async fn get() -> Result<Wrapped, std::io::Error> { unimplemented!() }
///         let failed = |error| {
///             refrain::Error::new(refrain::ErrorKind::Unavailable, "no connection").with_source(error)
///         };
///         get().await.map_err(failed)
///     }
///
///     fn client(connection: &mut Wrapped) -> &mut Client {
///         &mut connection.0
///     }
///
///     fn give_back(&self, connection: Wrapped, is_clean: bool) {
///         // One that is not clean must not be used again.
///         if is_clean { drop(connection) }
///     }
/// }
/// ```
pub trait Connections: Send + Sync + 'static {
    /// Connection, as the pool returns it.
    type Connection: Send;

    /// Returns a connection for exclusive use; waits if all are in use.
    ///
    /// # Errors
    /// If no connection is available; the message is then redelivered.
    fn connection(&self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Returns the client of a connection.
    fn client(connection: &mut Self::Connection) -> &mut Client;

    /// Returns a connection to the pool. If `is_clean` is false, a transaction may still be open, and the connection
    /// must be closed.
    ///
    /// A connection that is dropped without this call is not clean.
    fn give_back(&self, connection: Self::Connection, is_clean: bool);
}

/// Connection pool of the inbox.
pub struct Pool {
    dial: Dial,
    idle: Mutex<Vec<Wire>>,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.dial).finish()
    }
}

/// Connection of a [`Pool`].
#[derive(Debug)]
pub struct Pooled {
    wire: Wire,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    /// Creates a pool for this address, with at most 16 connections. Connects on demand.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) if the address cannot be parsed.
    pub fn new(address: &str) -> Result<Self> {
        let mut address = Address::parse(address)?;
        // Without keepalives, a server that vanishes would block a handler for hours.
        address
            .config
            .keepalives_idle(PROBE_AFTER)
            .tcp_user_timeout(SILENT_MAX);
        Ok(Self {
            dial: Dial::to(address)?,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        })
    }

    /// Sets the maximum number of connections, between 1 and 10 000.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.permits = Arc::new(Semaphore::new(connections_max.clamp(1, 10_000)));
        self
    }

    fn idle(&self) -> Option<Wire> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|wire| !wire.client.is_closed())
    }

    async fn connect(&self) -> Result<Wire> {
        let (wire, facts) = self
            .dial
            .connect_with_facts(|_| ())
            .await
            .map_err(unreachable)?;
        // Keeps the settings of role and database, as on the service's other connections. Only commits are forced to be
        // durable: otherwise an acknowledged message could be lost.
        let set_up = format!("SET synchronous_commit = {}", facts.waits());
        wire.client
            .batch_execute(&set_up)
            .await
            .map_err(unreachable)?;
        Ok(wire)
    }
}

impl Connections for Pool {
    type Connection = Pooled;

    async fn connection(&self) -> Result<Pooled> {
        let permit = self
            .permits
            .clone()
            .acquire_owned()
            .await
            .map_err(unreachable)?;
        let wire = match self.idle() {
            Some(wire) => wire,
            None => self.connect().await?,
        };
        Ok(Pooled {
            wire,
            _permit: permit,
        })
    }

    fn client(connection: &mut Pooled) -> &mut Client {
        &mut connection.wire.client
    }

    fn give_back(&self, connection: Pooled, is_clean: bool) {
        if is_clean {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(connection.wire);
        }
    }
}
