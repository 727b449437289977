//! The transactional inbox: what a handler writes, and the mark that the message was handled, are one commit.
//!
//! A duplicate finds the mark and is skipped; a handler that fails, or dies, leaves neither.
//! If the answer to the commit gets lost, the message is delivered again, and the mark tells what became of it.
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

mod clerk;
use clerk::Clerk;

mod pool;
pub use pool::{Connections, Pool};

mod front;
use front::Ahead;

mod sequences;

/// What a handler answers with.
pub type Handling<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send + 'a>>;

/// Where the marks are, and the connections on which messages are handled: both in one database.
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
    /// The inbox in the database at this address, with connections of its own.
    ///
    /// The address is that of a [store](Postgres::open), whose tables are made if there are none.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    ///
    /// # Cancellation
    /// May be dropped; the connections are then closed again.
    pub async fn open(address: &str) -> Result<Self> {
        let store = Arc::new(Postgres::open(address).await?);
        Ok(Self::new(store, Pool::new(address)?))
    }
}

impl<C: Connections> Inbox<C> {
    /// The inbox of this store, with connections from elsewhere; they have to be to the same database.
    pub fn new(store: Arc<Postgres>, connections: C) -> Self {
        Self {
            store,
            connections,
            sequence: None,
            ahead: None,
        }
    }

    /// Accepts events once and in order, for ever: how far each aggregate has come is kept in a table, and moves on in the
    /// handler's own transaction.
    ///
    /// In place of [`Consumer::with_sequence`], which goes by the records, and so for as long as these are remembered.
    #[must_use]
    pub fn with_sequence(mut self, sequence: Sequence) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// Answers duplicates from a front, such as `RedisFront`, before a transaction is begun.
    ///
    /// What it cannot tell for certain is asked of the database; it may lose everything.
    /// A mark is put there when its first duplicate has come.
    #[must_use]
    pub fn with_front(mut self, front: impl Front) -> Self {
        self.ahead = Some(Box::new(Tiered::new(front, self.store.clone())));
        self
    }

    /// An engine on the same store, for the consumer.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine::new(self.store.clone())
    }
}

impl<C> Inbox<C> {
    /// What the front is asked with.
    fn claim(&self, task: &Task) -> Claim {
        let intent = task.intent(0);
        let id = RecordId::derive(self.store.secret(), &intent.scope, &intent.key);
        Claim::new(id, intent.fingerprint)
    }
}

/// Handles messages in transactions.
pub trait InTransaction {
    /// Handles each message in a transaction, which also marks it as handled, until `shutdown` is over.
    ///
    /// The handler must leave the end of the transaction to the inbox.
    /// An error, a panic or a crash rolls everything back, and the message is tried again, as often as it may.
    /// The terms' guarantee has no say here: it is exactly-once, as far as the handler writes to this database.
    ///
    /// # Errors
    /// As [`Consumer::run`].
    ///
    /// # Cancellation
    /// As [`Consumer::run`]; what is not committed then is rolled back.
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
        let worker = Clerk {
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
