//! Transactional inbox: the handler's writes and the mark that the message was handled commit together.
//!
//! A duplicate finds the mark and is skipped. A handler that fails or crashes leaves neither writes nor mark.
//! If the answer to the commit is lost, the message is redelivered, and the mark shows whether the commit succeeded.
//!
//! ```no_run
//! # async fn example(broker: std::sync::Arc<dyn refrain::consume::Broker>) -> refrain::Result<()> {
//! use refrain::{Outcome, consume::Consumer};
//! use refrain_stores::postgres::{InTransaction as _, Inbox};
//!
//! let inbox = Inbox::open("postgres://app@db.internal/app").await?;
//! let consumer = Consumer::new(broker, inbox.engine(), "billing").with_dead_letter("billing-dead");
//! let shutdown = std::future::pending();
//! consumer
//!     .in_transaction(inbox, |transaction, job| Box::pin(async move {
//!         let order = std::str::from_utf8(&job.message.payload)?;
//!         transaction.execute("INSERT INTO payments (order_id) VALUES ($1)", &[&order]).await?;
//!         Ok(Outcome::new(0, ""))
//!     }), shutdown)
//!     .await?;
//! # Ok(())
//! # }
//! ```

use std::{fmt, pin::Pin, sync::Arc};

use refrain::{
    Claim, Engine, Error, ErrorKind, Outcome, RecordId, Result, Store as _,
    consume::{Consumer, Failure, Job, Sequence, Tally, Task},
    store::{Front, Tiered},
};
use tokio_postgres::Transaction;

use super::Postgres;

mod worker;
use worker::InboxWorker;

mod pool;
pub use pool::{Connections, Pool};

mod front;
use front::Ahead;

mod sequences;

/// Future that a handler returns.
pub type Handling<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send + 'a>>;

/// Store with the marks, and the connections on which handlers run. Both must use the same database.
pub struct Inbox<C = Pool> {
    store: Arc<Postgres>,
    connections: C,
    sequence: Option<Sequence>,
    ahead: Option<Box<dyn Ahead>>,
}

impl<C> fmt::Debug for Inbox<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.store).finish()
    }
}

impl Inbox {
    /// Opens the inbox in the database at this address, with its own connection pool.
    ///
    /// The address is that of a [store](Postgres::open). Missing tables are created.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    ///
    /// # Cancellation
    /// Safe to drop; the connections are closed again.
    pub async fn open(address: &str) -> Result<Self> {
        let store = Arc::new(Postgres::open(address).await?);
        Ok(Self::new(store, Pool::new(address)?))
    }
}

impl<C: Connections> Inbox<C> {
    /// Creates an inbox on this store with other connections. They must connect to the same database.
    pub fn new(store: Arc<Postgres>, connections: C) -> Self {
        Self {
            store,
            connections,
            sequence: None,
            ahead: None,
        }
    }

    /// Accepts each event once and in order, without a time limit: a table holds the position of each aggregate, and
    /// the handler's transaction advances it.
    ///
    /// Replaces [`Consumer::with_sequence`], which reads the records and works only as long as these are remembered.
    #[must_use]
    pub fn with_sequence(mut self, sequence: Sequence) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// Answers duplicates from a front, such as `RedisFront`, without a transaction.
    ///
    /// A message that the front does not know is looked up in the database, so the front may lose all of its data.
    /// A mark is written to the front when the first duplicate arrives.
    #[must_use]
    pub fn with_front(mut self, front: impl Front) -> Self {
        self.ahead = Some(Box::new(Tiered::new(front, self.store.clone())));
        self
    }

    /// Creates an engine on the same store, for the consumer.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine::new(self.store.clone())
    }
}

impl<C> Inbox<C> {
    /// Claim with which the front is queried.
    fn claim(&self, task: &Task) -> Claim {
        let intent = task.intent(0);
        let id = RecordId::derive(self.store.secret(), &intent.scope, &intent.key);
        Claim::new(id, intent.fingerprint)
    }
}

/// Extension of [`Consumer`] that handles messages in transactions.
pub trait InTransaction {
    /// Handles each message in a transaction, which also marks it as handled, until `shutdown` resolves.
    ///
    /// The handler must not commit or roll back the transaction.
    /// An error, a panic or a crash rolls the transaction back, and the message is retried until its attempts are used
    /// up. The guarantee in the terms is ignored: handling is exactly-once for writes to this database.
    ///
    /// # Errors
    /// As [`Consumer::run`].
    ///
    /// # Cancellation
    /// As [`Consumer::run`]; uncommitted transactions are rolled back.
    fn in_transaction<C, H>(
        self,
        inbox: Inbox<C>,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<Arc<Tally>>>
    where
        C: Connections,
        H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static;
}

impl InTransaction for Consumer {
    async fn in_transaction<C, H>(
        self,
        inbox: Inbox<C>,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Arc<Tally>>
    where
        C: Connections,
        H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static,
    {
        let worker = InboxWorker {
            consumer: self.name().to_owned(),
            inbox,
            handler,
        };
        self.run_with(worker, shutdown).await
    }
}

fn unreachable(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
