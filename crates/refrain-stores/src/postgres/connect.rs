//! Connections of the store: connect, check the server, configure the session, reconnect.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use refrain::{Backoff, Delays, Error, ErrorKind, Result};
use tokio::time::{Instant, timeout};
use tokio_postgres::{AsyncMessage, Client};

use super::{
    address::Address,
    dial::{Dial, Wire},
    errors,
    sql::Sql,
};

/// Server-side limit for a statement. The client waits one second longer for the answer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a statement waits for a row that another transaction has locked.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Backoff between two attempts to connect. Calls during the backoff fail immediately.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
const REPLAN_EVERY: Duration = Duration::from_secs(5);

/// State that all connections of a store share.
#[derive(Debug)]
pub(super) struct PostgresContext {
    pub(super) address: Address,
    dial: Dial,
    pub(super) sql: Sql,
    /// Highest epoch seen on any connection.
    epoch: AtomicU32,
}

impl PostgresContext {
    pub(super) fn new(address: Address) -> Result<Self> {
        let dial = Dial::to(address.clone())?;
        let sql = Sql::new(&address);
        Ok(Self {
            address,
            dial,
            sql,
            epoch: AtomicU32::new(1),
        })
    }

    /// Epoch part of every fence: higher than that of any server that this one was promoted from.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Reads the epoch of the server on this connection.
    pub(super) async fn learn_epoch(&self, client: &Client) -> Result<u32, tokio_postgres::Error> {
        let epoch = epoch(client, &self.sql).await?;
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// Connects to a server that accepts writes, and configures the session. `heard` receives asynchronous messages.
    pub(super) async fn connect(
        &self,
        heard: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<(Wire, ServerFacts)> {
        let (wire, facts) = self.dial.connect_with_facts(heard).await?;
        let settings = facts.settings();
        let set_up = timeout(ANSWER_TIMEOUT, wire.client.batch_execute(&settings)).await;
        let set_up = set_up.map_err(|_| self.dial.timed_out())?;
        set_up.map_err(|error| self.dial.told(&error))?;
        Ok((wire, facts))
    }
}

const FACTS: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, \
     current_setting('fsync')::bool, current_setting('synchronous_commit'), \
     current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), \
     current_setting('server_version_num')::int4";

/// Settings and role of a server.
#[derive(Debug, Clone)]
pub(super) struct ServerFacts {
    pub(super) is_standby: bool,
    pub(super) is_read_only: bool,
    pub(super) has_fsync: bool,
    synchronous_commit: String,
    synchronous_standbys: String,
    replicas: i64,
    pub(super) version: i32,
}

impl ServerFacts {
    pub(super) async fn read(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let row = client.query_one(FACTS, &[]).await?;
        Ok(Self {
            is_standby: row.try_get(0)?,
            is_read_only: row.try_get(1)?,
            has_fsync: row.try_get(2)?,
            synchronous_commit: row.try_get(3)?,
            synchronous_standbys: row.try_get(4)?,
            replicas: row.try_get(5)?,
            version: row.try_get(6)?,
        })
    }

    /// Whether an asynchronous standby is attached. If it is promoted, acknowledged commits may be missing.
    pub(super) fn may_fail_over_with_loss(&self) -> bool {
        self.replicas > 0 && self.synchronous_standbys.is_empty()
    }

    /// Value for `synchronous_commit` with which an acknowledged commit is durable.
    pub(super) fn waits(&self) -> &str {
        match &*self.synchronous_commit {
            "off" | "local" => "on",
            other => other,
        }
    }

    /// `SET` statements for a session. They force index plans, because a plan that was made for a small table would
    /// still scan the table when it is large, and durable commits, because an acknowledged claim must not be lost.
    fn settings(&self) -> String {
        let waits = self.waits();
        format!(
            "SET synchronous_commit = {waits};
             SET statement_timeout = {}; SET lock_timeout = {};
             SET idle_in_transaction_session_timeout = {};
             SET default_transaction_isolation = 'read committed'; SET search_path = '';
             SET plan_cache_mode = force_generic_plan; SET jit = off;
             SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
             SET enable_material = off; SET enable_bitmapscan = off; SET random_page_cost = 0; SET seq_page_cost = 0;
             SET max_parallel_workers_per_gather = 0; SET client_min_messages = warning",
            STATEMENT_TIMEOUT.as_millis(),
            LOCK_TIMEOUT.as_millis(),
            (ANSWER_TIMEOUT * 2).as_millis(),
        )
    }
}

/// Prepared statements of one lane.
pub(super) trait Prepared: Sized + Send + Sync + 'static {
    fn prepare(
        client: &Client,
        sql: &Sql,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;
}

/// Connection with its prepared statements.
#[derive(Debug)]
pub(super) struct Session<P> {
    pub(super) wire: Wire,
    pub(super) statements: P,
    /// Epoch part of every fence granted over this connection.
    pub(super) epoch: u32,
    /// When `DISCARD PLANS` last ran.
    planned: Mutex<Instant>,
}

impl<P> Session<P> {
    /// Discards cached plans every few seconds: a plan that was made for a nearly empty table scans all of it.
    pub(super) async fn replan(&self) -> Result<(), tokio_postgres::Error> {
        let now = tokio::time::Instant::now();
        {
            let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
            if now - *planned < REPLAN_EVERY {
                return Ok(());
            }
            *planned = now;
        }
        self.wire.client.batch_execute("DISCARD PLANS").await
    }
}

/// Connection of one lane, opened on demand.
#[derive(Debug)]
pub(super) struct LaneConnection<P> {
    place: Arc<PostgresContext>,
    session: Option<Arc<Session<P>>>,
    /// End of the backoff, and the last error.
    resting: Option<(Instant, String)>,
    delays: Delays,
}

impl<P: Prepared> LaneConnection<P> {
    pub(super) fn new(place: Arc<PostgresContext>) -> Self {
        Self {
            place,
            session: None,
            resting: None,
            delays: BACKOFF.delays(),
        }
    }

    /// Returns the open connection, or connects.
    ///
    /// # Errors
    /// If the server is unavailable. During the backoff the last error is returned without connecting.
    pub(super) async fn session(&mut self) -> Result<Arc<Session<P>>> {
        if let Some(session) = &self.session
            && !session.wire.client.is_closed()
        {
            return Ok(session.clone());
        }
        self.session = None;
        let now = tokio::time::Instant::now();
        if let Some((until, why)) = &self.resting
            && now < *until
        {
            return Err(Error::new(ErrorKind::Unavailable, why.clone()));
        }
        match self.connect().await {
            Ok(session) => {
                self.resting = None;
                self.delays.reset();
                Ok(self.session.insert(Arc::new(session)).clone())
            }
            Err(error) => {
                let until = tokio::time::Instant::now() + self.delays.after_failure();
                self.resting = Some((until, error.to_string()));
                // Once the store is open, every failure to connect means that the store is unavailable.
                Err(Error::new(ErrorKind::Unavailable, error.to_string()))
            }
        }
    }

    async fn connect(&self) -> Result<Session<P>> {
        let (wire, _) = self.place.connect(|_| ()).await?;
        let failed = |error| errors::convert_error(&error, &self.place.address);
        let prepared = async {
            let epoch = self.place.learn_epoch(&wire.client).await?;
            Ok((epoch, P::prepare(&wire.client, &self.place.sql).await?))
        };
        let prepared = timeout(ANSWER_TIMEOUT, prepared).await;
        let (epoch, statements) = prepared
            .map_err(|_| self.place.dial.timed_out())?
            .map_err(failed)?;
        Ok(Session {
            wire,
            statements,
            epoch,
            planned: Mutex::new(tokio::time::Instant::now()),
        })
    }

    /// Closes the connection after an error.
    pub(super) fn drop_session(&mut self) {
        self.session = None;
    }
}

/// Reads the epoch from the server's timeline, and raises the stored epoch to it. A promotion starts a new timeline.
async fn epoch(client: &Client, sql: &Sql) -> Result<u32, tokio_postgres::Error> {
    let known: i32 = client.query_one_scalar(&sql.epoch, &[]).await?;
    // Servers that are only compatible with PostgreSQL may not have these WAL functions.
    let timeline = client.query_one_scalar::<i32, _>(TIMELINE, &[]).await;
    let timeline = timeline.unwrap_or(known);
    if timeline > known {
        client.execute(&sql.raise_epoch, &[&timeline]).await?;
    }
    Ok(known.max(timeline).cast_unsigned())
}

const TIMELINE: &str =
    "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4";
