//! PostgreSQL store (`postgres://…`): records in a database that many processes share.
//!
//! One table holds the records, and the database's clock decides every transition.
//! The store batches claims and settlements: two writers collect concurrent calls while the previous batch is in
//! progress, so many calls share one commit.
//! A claim of a new key and a completion are one statement each. Every other command locks the row first, and
//! [`step`](refrain::step) decides.
//!
//! ```no_run
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use refrain_stores::postgres::Postgres;
//! let store = Postgres::open("postgres://app:password@db.internal/app?schema=refrain&sslmode=verify-full").await?;
//! let engine = refrain::Engine::new(store);
//! # Ok::<(), refrain::Error>(())
//! # }).unwrap();
//! ```
//!
//! Each handle keeps five connections: two writers, one for commands that lock rows, one for reads and sweeps,
//! and one for `LISTEN`.
//! Each connection needs its own server session. A pooler that shares server connections between clients, such as
//! PgBouncer in transaction mode, is detected when the store is opened, and rejected.

use std::{fmt, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use refrain::{
    Claim, Error, ErrorKind, Fence, RecordId, Result, Secret, Settled, Settlement, Store, Verdict,
    clock::{Clock, Timestamp},
    record::{Erased, Reply, ScopeDigest},
    store::{AnyStore, Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Watch, Watches},
};
use tokio::sync::{
    Notify,
    mpsc::{self, Sender, error::TrySendError},
    oneshot,
};

mod address;
mod careful;
mod columns;
mod connect;
mod decide;
mod end_point;
mod errors;
mod job;
mod listener;
mod operator;
mod pace;
mod pooler;
mod quick;
mod rows;
mod schema;
mod search;
mod sql;
mod tls;

mod dial;
pub use dial::{Dial, Wire};

mod transaction;
pub use transaction::Claimed;

pub mod inbox;
pub use inbox::{Connections, InTransaction, Inbox};

pub mod outbox;
pub use outbox::{Outbox, PostgresOutbox};

mod within;
pub use within::CallersTransaction;

mod natural;
pub use natural::{Fetched, NaturalKey};

mod versioned;
pub use versioned::{Changes, Versioned};

use address::Address;
use connect::{LaneConnection, PostgresContext, ServerFacts};
use job::{Ask, Job};
use operator::{OperatorConnection, closed};
use pace::{ClockCheck, Now};

/// Number of concurrent commits. The record identity selects the writer.
const WRITERS: usize = 2;
/// Maximum number of calls queued for one writer.
const QUEUE_MAX: usize = 16_384;

/// Opens the store at a `postgres://` address.
///
/// # Errors
/// As [`Postgres::open`].
pub async fn open(address: &str) -> Result<AnyStore> {
    Ok(AnyStore::new(Postgres::open(address).await?))
}

/// Returns the SQL that creates the tables of a store, for a DBA to run. Does not connect.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the address cannot be parsed.
pub fn script(address: &str) -> Result<String> {
    Ok(schema::script(&Address::parse(address)?, None))
}

/// Returns the SQL that creates or upgrades the tables at this address, for a DBA to run.
///
/// Reads the installed schema version, and changes nothing.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the server is unreachable; [`ErrorKind::Invalid`] if the address or the password is
/// invalid, or the schema belongs to another application or to a newer build.
pub async fn missing_script(address: &str) -> Result<String> {
    let address = Address::parse(address)?;
    let wire = Dial::to(address.clone())?.look().await?;
    let found = schema::version(&wire.client, &address).await?;
    Ok(schema::script(&address, found))
}

/// Result of [`migrate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// Name of the schema.
    pub schema: String,
    /// Version before the migration; `None` if there were no tables.
    pub from: Option<i32>,
    /// Version after the migration.
    pub to: i32,
}

/// Creates the tables of a store, or upgrades them to the current version.
///
/// # Errors
/// As [`Postgres::open`].
pub async fn migrate(address: &str) -> Result<Migrated> {
    let place = PostgresContext::new(Address::parse(address)?)?;
    let (mut wire, _) = place.connect(|_| ()).await?;
    let from = schema::ensure(&mut wire.client, &place.address).await?;
    Ok(Migrated {
        schema: place.address.schema.clone(),
        from,
        to: schema::VERSION,
    })
}

/// Options for opening a store.
#[derive(Debug, Clone, Default)]
pub struct Options {
    time: Time,
}

impl Options {
    /// For tests only: replaces the database's clock with `time`, and checks its jumps against `clock`, if given.
    #[doc(hidden)]
    #[must_use]
    pub fn with_time(
        mut self,
        time: impl Fn() -> Timestamp + Send + Sync + 'static,
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        self.time = Time {
            told: Some(Arc::new(time)),
            pace: clock.map(|clock| Arc::new(ClockCheck::new(clock))),
        };
        self
    }
}

/// Source of the current time for statements.
#[derive(Clone)]
struct Time {
    /// Replaces the database's clock in tests.
    told: Option<Arc<dyn Fn() -> Timestamp + Send + Sync>>,
    /// Check for jumps of the clock; `None` accepts every time.
    pace: Option<Arc<ClockCheck>>,
}

impl Default for Time {
    fn default() -> Self {
        Self {
            told: None,
            pace: Some(Arc::default()),
        }
    }
}

impl Time {
    fn now(&self) -> Option<i64> {
        self.told.as_ref().map(|time| time().0.cast_signed())
    }

    /// Checks the time that a statement returned.
    fn believe(&self, shown: i64) -> Now {
        let shown = Timestamp(u64::try_from(shown).unwrap_or(0));
        match &self.pace {
            Some(pace) => pace.believe(shown),
            None => Now {
                shown,
                believed: shown,
            },
        }
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.told {
            Some(_) => "of a test",
            None => "the database's",
        })
    }
}

/// Store on PostgreSQL.
pub struct Postgres {
    /// One queue for each writer. Closing the queues ends the lanes.
    writers: Vec<Sender<Job>>,
    careful: Sender<Job>,
    desk: OperatorConnection,
    watches: Watches,
    secret: Secret,
    guarantees: Guarantees,
    place: Arc<PostgresContext>,
    time: Time,
    /// Random identifier of this handle.
    node: i64,
    /// Notified when the store is dropped; stops the listener.
    over: Arc<Notify>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres")
            .field(&self.place.address)
            .finish()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.over.notify_waiters();
        self.over.notify_one();
    }
}

impl Postgres {
    /// Opens the store at an address such as `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
    ///
    /// Query parameters: `schema=NAME` (default `refrain`), `sslmode=` (`disable`, `prefer`, `require`,
    /// `verify-ca`, `verify-full`; default `prefer`), `sslrootcert=FILE`, `sslcert=FILE` with `sslkey=FILE`,
    /// `channel_binding=` (`disable`, `prefer`, `require`; default `prefer`), `connect_timeout=SECONDS`, and the other
    /// parameters of `tokio-postgres`. Missing tables are created.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable or read-only; [`ErrorKind::Invalid`] if the address,
    /// password, certificate, privileges or schema are invalid. The message names the cause and the fix.
    ///
    /// # Cancellation
    /// Safe to drop; the connections are closed again.
    pub async fn open(address: &str) -> Result<Self> {
        Self::open_with(address, Options::default()).await
    }

    /// Opens the store as [`open`](Self::open) does, with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Cancellation
    /// As [`open`](Self::open).
    pub async fn open_with(address: &str, options: Options) -> Result<Self> {
        let place = Arc::new(PostgresContext::new(Address::parse(address)?)?);
        let (told, opened) = oneshot::channel();
        let spawned = thread::Builder::new()
            .name("refrain-postgres".into())
            .spawn(move || serve(place, options, told));
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::Unavailable,
                "cannot start a thread for the PostgreSQL store",
            )
            .with_source(error)
        })?;
        opened.await.unwrap_or_else(|_| Err(closed()))
    }

    fn submit(&self, ask: Ask) -> Result<oneshot::Receiver<Result<Reply>>> {
        let (job, answered) = Job::new(ask);
        let id = job.id();
        let queue = match &job.ask {
            Ask::Claim(_) | Ask::Settle(_, _, Settlement::Complete { .. }) => {
                &self.writers[usize::from(id.0[15]) % self.writers.len()]
            }
            _ => &self.careful,
        };
        match queue.try_send(job) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Closed(_)) => Err(closed().unapplied()),
            Err(TrySendError::Full(_)) => {
                let message = "the request queue of the PostgreSQL store is full; try again";
                Err(Error::new(ErrorKind::Unavailable, message).unapplied())
            }
        }
    }

    async fn request(&self, ask: Ask) -> Result<Reply> {
        self.submit(ask)?.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn request_settled(&self, ask: Ask) -> Result<Settled> {
        match self.request(ask).await? {
            Reply::Settled(settled) => Ok(settled),
            Reply::Verdict(_) | Reply::Erased(_) | Reply::Aged => Err(unexpected_reply()),
        }
    }
}

fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "internal error: a command received the reply of another command",
    )
}

/// Runs the store on its own thread, because a caller's runtime may shut down before the store is dropped.
fn serve(place: Arc<PostgresContext>, options: Options, told: oneshot::Sender<Result<Postgres>>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = "cannot start a Tokio runtime for the PostgreSQL store";
            let error = Error::new(ErrorKind::Unavailable, message).with_source(error);
            return drop(told.send(Err(error)));
        }
    };
    runtime.block_on(async move {
        match prepare(place, options).await {
            Err(error) => drop(told.send(Err(error))),
            Ok((store, lanes)) => {
                let over = store.over.clone();
                // If the caller was cancelled, the store is dropped together with the message.
                drop(told.send(Ok(store)));
                lanes.run(over).await;
            }
        }
    });
}

/// Tasks that run on the store's own thread.
struct StoreTasks {
    quick: Vec<(quick::QuickLane, mpsc::Receiver<Job>)>,
    careful: (careful::CarefulLane, mpsc::Receiver<Job>),
    place: Arc<PostgresContext>,
    watches: Watches,
}

impl StoreTasks {
    async fn run(self, over: Arc<Notify>) {
        let mut lanes = tokio::task::JoinSet::new();
        for (lane, jobs) in self.quick {
            lanes.spawn(lane.run(jobs));
        }
        let (lane, jobs) = self.careful;
        lanes.spawn(lane.run(jobs));
        lanes.spawn(listener::run(self.place, self.watches, over));
        while lanes.join_next().await.is_some() {}
    }
}

async fn prepare(place: Arc<PostgresContext>, options: Options) -> Result<(Postgres, StoreTasks)> {
    let (mut wire, facts) = place.connect(|_| ()).await?;
    schema::ensure(&mut wire.client, &place.address).await?;
    let secret = schema::secret(&wire.client, &place.address, &place.sql.secret).await?;
    let learnt = place.learn_epoch(&wire.client).await;
    learnt.map_err(|error| errors::convert_error(&error, &place.address))?;
    let time = options.time;
    // First reading of the database's clock: later readings are checked against it.
    let (now, fences) = (time.now(), 0_i32);
    let shown = wire
        .client
        .query_one(&place.sql.clock, &[&now, &fences])
        .await;
    let shown = shown.and_then(|row| row.try_get(0));
    time.believe(shown.map_err(|error| errors::convert_error(&error, &place.address))?);
    drop(wire);
    let watches = Watches::new();
    let node = rand::random();
    let (careful, careful_jobs) = mpsc::channel(QUEUE_MAX);
    let mut writers = Vec::new();
    let mut quick = Vec::new();
    for _ in 0..WRITERS {
        let (writer, jobs) = mpsc::channel(QUEUE_MAX);
        writers.push(writer);
        let lane = quick::QuickLane {
            link: LaneConnection::new(place.clone()),
            careful: careful.clone(),
            watches: watches.clone(),
            time: time.clone(),
            node,
        };
        quick.push((lane, jobs));
    }
    let lane = careful::CarefulLane {
        link: LaneConnection::new(place.clone()),
        watches: watches.clone(),
        time: time.clone(),
        node,
    };
    let store = Postgres {
        writers,
        careful,
        desk: OperatorConnection::new(
            place.clone(),
            tokio::runtime::Handle::current(),
            time.clone(),
        ),
        time,
        node,
        watches: watches.clone(),
        secret,
        guarantees: guarantees(&facts, &place),
        place: place.clone(),
        over: Arc::default(),
    };
    let lanes = StoreTasks {
        quick,
        careful: (lane, careful_jobs),
        place,
        watches,
    };
    Ok((store, lanes))
}

fn guarantees(facts: &ServerFacts, place: &PostgresContext) -> Guarantees {
    let address = &place.address;
    if !facts.has_fsync {
        tracing::warn!(store = %address, "the server runs with fsync = off: a power failure loses claims and outcomes; set fsync = on");
    }
    let lossy_failover = facts.may_fail_over_with_loss();
    if lossy_failover {
        tracing::warn!(
            store = %address,
            "the server has asynchronous standbys: after a failover the latest claims and outcomes are lost; set synchronous_standby_names"
        );
    }
    Guarantees {
        survives_process: true,
        survives_power: facts.has_fsync,
        lossy_failover,
        shared: true,
    }
}

impl Store for Postgres {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        match self.request(Ask::Claim(claim)).await? {
            Reply::Verdict(verdict) => Ok(verdict),
            Reply::Settled(_) | Reply::Erased(_) | Reply::Aged => Err(unexpected_reply()),
        }
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        self.request_settled(Ask::Settle(id, fence, end.sealed(id)))
            .await
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        self.request_settled(Ask::Renew(id, fence, lease)).await
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        self.desk.read(id).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.desk.list(query).await
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        match self.request(Ask::Erase(id)).await? {
            Reply::Erased(erased) => Ok(erased),
            Reply::Verdict(_) | Reply::Settled(_) | Reply::Aged => Err(unexpected_reply()),
        }
    }

    /// Above one million records, completed records and tombstones are estimated from a sample.
    async fn census(&self) -> Result<Census> {
        self.desk.census().await
    }

    async fn sweep(&self, at_most: u32) -> Result<u32> {
        self.desk.sweep(at_most).await
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        self.desk.scope_key(scope).await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.desk.replace_scope_key(scope, expected, key).await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        self.desk.scope_keys(cursor).await
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        Some(self.watches.watch(id))
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }
}
