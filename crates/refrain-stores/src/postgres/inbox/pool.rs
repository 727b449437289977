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

/// How many connections a pool makes, unless it is told otherwise.
const CONNECTIONS_MAX: usize = 16;
/// How long a server may be silent before a connection to it is given up.
const SILENT_MAX: Duration = Duration::from_secs(30);
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// Where an [`Inbox`](super::Inbox) has its connections from: a pool of one's own.
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
///         let failed = |error| refrain::Error::new(refrain::ErrorKind::Unavailable, "no connection").with_source(error);
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
    /// A connection, and whatever belongs to it.
    type Connection: Send;

    /// A connection that nobody else uses; waits for one where there are none left.
    ///
    /// # Errors
    /// When there is none to be had: the message is delivered again.
    fn connection(&self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// The connection itself.
    fn client(connection: &mut Self::Connection) -> &mut Client;

    /// Takes a connection back. One that is not clean may be in the middle of something, and has to be closed.
    ///
    /// One that is dropped without this is not clean.
    fn give_back(&self, connection: Self::Connection, is_clean: bool);
}

/// Connections of the inbox's own.
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

/// A connection of a [`Pool`].
#[derive(Debug)]
pub struct Pooled {
    wire: Wire,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    /// Connections to this address, at most 16. Connects when one is asked for.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) when the address cannot be read.
    pub fn new(address: &str) -> Result<Self> {
        let mut address = Address::parse(address)?;
        // A server that is gone without a word would hold a handler for hours.
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

    /// The same pool with this many connections at most.
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
        let (wire, facts) = self.dial.reach(|_| ()).await.map_err(unreachable)?;
        // What role and database have set counts, as on any connection of the service;
        // but a commit that is answered has to stand, or an acknowledged message is lost.
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
