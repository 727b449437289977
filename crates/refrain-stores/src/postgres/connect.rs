//! Connections: made, checked, set up, and made again when they break.

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
    sql::Sql,
    trouble,
};

/// The server gives up on a statement behind that, we on an answer a little later.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a row may be held by somebody else's transaction.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Pauses between two tries to connect; in between everybody is told at once that there is no server.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
const REPLAN_EVERY: Duration = Duration::from_secs(5);

/// What all connections of a store have in common.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: Address,
    dial: Dial,
    pub(super) sql: Sql,
    /// The highest that any connection has met.
    epoch: AtomicU32,
}

impl Place {
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

    /// Part of every fence. Above that of every server that this one took over from.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Looks which epoch the server behind this connection is in.
    pub(super) async fn learn_epoch(&self, client: &Client) -> Result<u32, tokio_postgres::Error> {
        let epoch = epoch(client, &self.sql).await?;
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// A connection to a server that takes writes. Messages that nobody asked for go to `heard`.
    pub(super) async fn connect(
        &self,
        heard: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<(Wire, Facts)> {
        let (wire, facts) = self.dial.reach(heard).await?;
        let settings = facts.settings();
        let set_up = timeout(ANSWER_TIMEOUT, wire.client.batch_execute(&settings)).await;
        let set_up = set_up.map_err(|_| self.dial.silent())?;
        set_up.map_err(|error| self.dial.told(&error))?;
        Ok((wire, facts))
    }
}

const FACTS: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, \
     current_setting('fsync')::bool, current_setting('synchronous_commit'), \
     current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), \
     current_setting('server_version_num')::int4";

/// What a server is, as it says itself.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) is_standby: bool,
    pub(super) is_read_only: bool,
    pub(super) has_fsync: bool,
    synchronous_commit: String,
    synchronous_standbys: String,
    replicas: i64,
    pub(super) version: i32,
}

impl Facts {
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

    /// Whether a standby that may lag behind is attached: promoted, it lacks what it had not been sent.
    pub(super) fn may_fail_over_with_loss(&self) -> bool {
        self.replicas > 0 && self.synchronous_standbys.is_empty()
    }

    /// How a commit waits that is answered only when it stands.
    pub(super) fn waits(&self) -> &str {
        match &*self.synchronous_commit {
            "off" | "local" => "on",
            other => other,
        }
    }

    /// Index plans, because a plan made for a small table would go on scanning it when it is large;
    /// commits that wait for the disk, because a claim that is answered must stand.
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

/// The statements that one kind of work needs, prepared on its connection.
pub(super) trait Prepared: Sized + Send + Sync + 'static {
    fn prepare(
        client: &Client,
        sql: &Sql,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;
}

/// A connection with its statements.
#[derive(Debug)]
pub(super) struct Session<P> {
    pub(super) wire: Wire,
    pub(super) statements: P,
    /// Part of every fence that is granted over this connection.
    pub(super) epoch: u32,
    /// When its plans were thrown away last.
    planned: Mutex<Instant>,
}

impl<P> Session<P> {
    /// Has plans made anew every few seconds: one that was made when the table was all but empty scans all of it.
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

/// One kind of work's connection: there, or made when it is needed.
#[derive(Debug)]
pub(super) struct Link<P> {
    place: Arc<Place>,
    session: Option<Arc<Session<P>>>,
    /// Until when nobody tries to connect, and why not.
    resting: Option<(Instant, String)>,
    delays: Delays,
}

impl<P: Prepared> Link<P> {
    pub(super) fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            session: None,
            resting: None,
            delays: BACKOFF.delays(),
        }
    }

    /// The connection, new if need be.
    ///
    /// # Errors
    /// When there is none to be had: at once, if that was found out just before.
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
                // While it runs it is the store that cannot be had, whatever the reason.
                Err(Error::new(ErrorKind::Unavailable, error.to_string()))
            }
        }
    }

    async fn connect(&self) -> Result<Session<P>> {
        let (wire, _) = self.place.connect(|_| ()).await?;
        let failed = |error| trouble::at_start(&error, &self.place.address);
        let prepared = async {
            let epoch = self.place.learn_epoch(&wire.client).await?;
            Ok((epoch, P::prepare(&wire.client, &self.place.sql).await?))
        };
        let prepared = timeout(ANSWER_TIMEOUT, prepared).await;
        let (epoch, statements) = prepared
            .map_err(|_| self.place.dial.silent())?
            .map_err(failed)?;
        Ok(Session {
            wire,
            statements,
            epoch,
            planned: Mutex::new(tokio::time::Instant::now()),
        })
    }

    /// The connection is of no use any more.
    pub(super) fn drop_session(&mut self) {
        self.session = None;
    }
}

/// Above that of every server that this one took over from: the number of its history, as far as it tells.
async fn epoch(client: &Client, sql: &Sql) -> Result<u32, tokio_postgres::Error> {
    let known: i32 = client.query_one_scalar(&sql.epoch, &[]).await?;
    // Not every server that speaks this protocol has a log of its own.
    let timeline = client.query_one_scalar::<i32, _>(TIMELINE, &[]).await;
    let timeline = timeline.unwrap_or(known);
    if timeline > known {
        client.execute(&sql.raise_epoch, &[&timeline]).await?;
    }
    Ok(known.max(timeline).cast_unsigned())
}

const TIMELINE: &str =
    "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4";
