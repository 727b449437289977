//! Outbox reader for the relay: one connection that reconnects, and a `LISTEN` for appended messages.

use std::{
    fmt,
    sync::{Arc, Mutex as Latch, PoisonError},
    time::Duration,
};

use refrain::{
    Error, ErrorKind, Result,
    consume::{Answer, Backlog, Refused, Return, Taken},
};
use tokio::{
    sync::{Mutex, Notify},
    time::timeout,
};
use tokio_postgres::types::ToSql;

use super::{
    Address, PostgresContext, StatementError, convert_error, prefix,
    rows::{Columns, refused, seconds, taken},
    statements::OutboxStatements,
};
use crate::postgres::{connect::ANSWER_TIMEOUT, dial::Wire};

/// Longer than for other statements, because a large batch takes time to transfer.
const TAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Outbox in one database, for a [`Relay`](refrain::consume::Relay).
pub struct PostgresOutbox {
    place: PostgresContext,
    table: String,
    /// Random identifier of this relay.
    number: i64,
    /// Locked while connecting, so that there is one connection.
    session: Mutex<Option<Arc<OutboxSession>>>,
    /// Notified when messages were appended.
    appended: Arc<Notify>,
    /// Group where the last take stopped; the next take starts after it.
    passed: Latch<(String, String)>,
}

/// Connection with its prepared statements.
#[derive(Debug)]
struct OutboxSession {
    wire: Wire,
    statements: OutboxStatements,
}

impl fmt::Debug for PostgresOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresOutbox({}, {})", self.place.address, self.table)
    }
}

impl PostgresOutbox {
    /// Connects to the outbox in the database at this address, and checks that the table exists.
    ///
    /// The address has the same syntax as for the store. With `?schema=NAME` the table is in that schema; otherwise the
    /// search path finds it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable or read-only; [`ErrorKind::Invalid`] if the address,
    /// password, privileges or table are invalid. The message names the cause and the fix.
    ///
    /// # Cancellation
    /// Safe to drop; the connection is closed again.
    pub async fn open(address: &str) -> Result<Self> {
        let address = Address::parse(address)?;
        let table = format!("{}refrain_outbox", prefix(&address));
        let outbox = Self {
            place: PostgresContext::new(address)?,
            table,
            number: rand::random(),
            session: Mutex::default(),
            appended: Arc::default(),
            passed: Latch::default(),
        };
        outbox.session().await?;
        Ok(outbox)
    }

    async fn session(&self) -> Result<Arc<OutboxSession>> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|it| !it.wire.client.is_closed()) {
            return Ok(session.clone());
        }
        *session = None;
        let appended = self.appended.clone();
        let (wire, _) = self.place.connect(move |_| appended.notify_one()).await?;
        let prepared = timeout(ANSWER_TIMEOUT, self.prepare(&wire)).await;
        let statements = prepared.map_err(|_| timed_out())??;
        let made = Arc::new(OutboxSession { wire, statements });
        // Notifications may have been missed while there was no connection.
        self.appended.notify_one();
        Ok(session.insert(made).clone())
    }

    async fn prepare(&self, wire: &Wire) -> Result<OutboxStatements> {
        let failed = |error| convert_error(&error, &self.place.address);
        // The store's settings clear the search path, but here it has to find the table.
        let set_up = "RESET search_path; LISTEN refrain_outbox";
        wire.client.batch_execute(set_up).await.map_err(failed)?;
        let statements = OutboxStatements::prepare(&wire.client, &self.table).await;
        let statements = statements.map_err(failed)?;
        // Missing privileges show only when the table is read.
        let read = wire.client.query(&statements.backlog, &[]).await;
        read.map_err(failed)?;
        Ok(statements)
    }

    /// Runs a statement within a time limit. Drops the connection if it broke.
    async fn send_statement<T>(
        &self,
        limit: Duration,
        ask: impl AsyncFnOnce(&OutboxSession) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let session = self.session().await?;
        let trouble = match timeout(limit, ask(&session)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => StatementError::from(error),
            Err(_) => StatementError::Lost(timed_out()),
        };
        if matches!(trouble, StatementError::Lost(_)) {
            let mut held = self.session.lock().await;
            if held.as_ref().is_some_and(|it| Arc::ptr_eq(it, &session)) {
                *held = None;
            }
        }
        let error = trouble.into_error();
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the outbox at {}: {error}", self.place.address),
        ))
    }

    async fn take_now(&self, at_most: usize, lease: Duration) -> Result<Taken> {
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        let passed = self.passed().clone();
        let taken = self.take_after(&passed, at_most, lease).await?;
        if !taken.entries.is_empty() || taken.is_more || passed == Default::default() {
            return Ok(taken);
        }
        // No free group after the last position: start again from the first group.
        self.take_after(&Default::default(), at_most, lease).await
    }

    async fn take_after(
        &self,
        (destination, group): &(String, String),
        at_most: i64,
        lease: Duration,
    ) -> Result<Taken> {
        let lease = lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 5] =
            [destination, group, &at_most, &self.number, &lease];
        let (picked, passed, entries) = self
            .send_statement(TAKE_TIMEOUT, async |session| {
                let statement = &session.statements.take;
                taken(session.wire.client.query(statement, &parameters).await?)
            })
            .await?;
        let is_more = passed.is_some() || picked > 0;
        *self.passed() = passed.unwrap_or_default();
        Ok(Taken { entries, is_more })
    }

    fn passed(&self) -> std::sync::MutexGuard<'_, (String, String)> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn give_back_now(&self, returns: &[Return]) -> Result<()> {
        let columns = Columns::new(returns);
        let parameters = columns.parameters(&self.number);
        self.send_statement(ANSWER_TIMEOUT, async |session| {
            let statement = &session.statements.give_back;
            session.wire.client.execute(statement, &parameters).await
        })
        .await?;
        Ok(())
    }

    async fn backlog_now(&self) -> Result<Backlog> {
        self.send_statement(TAKE_TIMEOUT, async |session| {
            let statement = &session.statements.backlog;
            let row = session.wire.client.query_one(statement, &[]).await?;
            let count = |place| row.try_get::<_, i64>(place);
            let oldest: Option<f64> = row.try_get(2)?;
            Ok(Backlog {
                waiting: count(0)?.unsigned_abs(),
                refused: count(1)?.unsigned_abs(),
                oldest: oldest.map(seconds),
            })
        })
        .await
    }

    async fn refused_now(&self, at_most: usize) -> Result<Vec<Refused>> {
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        self.send_statement(ANSWER_TIMEOUT, async |session| {
            let statement = &session.statements.refused;
            let rows = session.wire.client.query(statement, &[&at_most]).await?;
            rows.iter().map(refused).collect()
        })
        .await
    }
}

impl refrain::consume::Outbox for PostgresOutbox {
    fn take(&self, at_most: usize, lease: Duration) -> Answer<'_, Taken> {
        Box::pin(self.take_now(at_most, lease))
    }

    fn renew<'a>(&'a self, ids: &'a [i64], lease: Duration) -> Answer<'a, Vec<i64>> {
        Box::pin(
            self.send_statement(ANSWER_TIMEOUT, async move |session: &OutboxSession| {
                let lease = lease.as_secs_f64();
                let statement = &session.statements.renew;
                let parameters: [&(dyn ToSql + Sync); 3] = [&ids, &lease, &self.number];
                let rows = session.wire.client.query(statement, &parameters).await?;
                rows.iter().map(|row| row.try_get(0)).collect()
            }),
        )
    }

    fn mark<'a>(&'a self, ids: &'a [i64]) -> Answer<'a, ()> {
        Box::pin(
            self.send_statement(ANSWER_TIMEOUT, async move |session: &OutboxSession| {
                let statement = &session.statements.mark;
                session.wire.client.execute(statement, &[&ids]).await?;
                Ok(())
            }),
        )
    }

    fn give_back<'a>(&'a self, returns: &'a [Return]) -> Answer<'a, ()> {
        Box::pin(self.give_back_now(returns))
    }

    fn wait(&self, at_most: Duration) -> Answer<'_, ()> {
        Box::pin(async move {
            // A timeout counts as a wake-up: the caller looks for messages either way.
            let _ = timeout(at_most, self.appended.notified()).await;
            Ok(())
        })
    }

    fn backlog(&self) -> Answer<'_, Backlog> {
        Box::pin(self.backlog_now())
    }

    fn refused(&self, at_most: usize) -> Answer<'_, Vec<Refused>> {
        Box::pin(self.refused_now(at_most))
    }

    fn redrive(&self) -> Answer<'_, u64> {
        Box::pin(self.send_statement(TAKE_TIMEOUT, async |session| {
            let statement = &session.statements.redrive;
            session.wire.client.execute(statement, &[]).await
        }))
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::Unavailable, "PostgreSQL did not respond in time")
}
