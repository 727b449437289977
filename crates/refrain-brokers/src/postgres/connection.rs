//! Database connections with prepared statements; opened on demand, reopened after an error.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{Error, ErrorKind, Result};
use refrain_stores::postgres::{Dial, Wire};
use tokio::{
    sync::{Mutex, Notify},
    time::timeout,
};
use tokio_postgres::{AsyncMessage, Row, Statement, types::ToSql};

use super::{
    row::{self, Columns},
    table,
};

/// Number of pooled connections, which is the number of concurrent commits; each waits for the disk.
const LINKS: usize = 4;
/// `statement_timeout` of the server; our own timeout is slightly longer.
const STATEMENT_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(6);

/// A statement on the queue table, with its parameters.
#[derive(Clone, Copy)]
pub(super) enum Ask<'a> {
    Publish(&'a Columns<'a>),
    Take(Take<'a>),
    Ack {
        id: i64,
        holder: i64,
    },
    Hold {
        id: i64,
        holder: i64,
        span: f64,
        is_given_back: bool,
    },
    /// Counts the messages of a queue, up to this limit.
    Count {
        queue: &'a str,
        limit: i64,
    },
}

/// Parameters of a take: which messages, for which holder and for how long.
#[derive(Clone, Copy)]
pub(super) struct Take<'a> {
    pub(super) queue: &'a str,
    pub(super) at_most: i64,
    pub(super) holder: i64,
    pub(super) ack_wait: f64,
    /// The group to start from; `None` takes messages without a group.
    pub(super) from: Option<&'a str>,
}

/// Connection pool for publishing and settling.
#[derive(Debug)]
pub(super) struct Pool {
    dial: Dial,
    links: [QueueConnection; LINKS],
    /// Notified when messages may be available.
    pub(super) bell: Arc<Notify>,
}

impl Pool {
    pub(super) fn new(dial: Dial) -> Self {
        let link = || QueueConnection::new(dial.clone(), None);
        Self {
            links: std::array::from_fn(|_| link()),
            dial,
            bell: Arc::default(),
        }
    }

    /// Executes a statement once: if the connection breaks, the statement may have been executed.
    pub(super) async fn request(&self, ask: Ask<'_>) -> Result<Vec<Row>> {
        self.idlest().request(ask).await
    }

    /// Executes a statement, with one retry on a new connection; for idempotent statements only.
    pub(super) async fn request_with_retry(&self, ask: Ask<'_>) -> Result<Vec<Row>> {
        let link = self.idlest();
        match link.try_request(ask).await {
            Err(QueueError::Lost(_)) => link.request(ask).await,
            answer => answer.map_err(QueueError::into_error),
        }
    }

    /// Returns the first of the least busy connections, so that a quiet queue uses only one.
    fn idlest(&self) -> &QueueConnection {
        let busy = |link: &&QueueConnection| link.busy.load(Ordering::Relaxed);
        self.links.iter().min_by_key(busy).unwrap_or(&self.links[0])
    }
}

/// One connection, opened on demand.
#[derive(Debug)]
pub(super) struct QueueConnection {
    dial: Dial,
    /// Held while connecting, so that concurrent callers open one connection.
    session: Mutex<Option<Arc<QueueSession>>>,
    busy: AtomicUsize,
    /// The queue that this connection listens for, and the waker for its notifications.
    bell: Option<(String, Arc<Notify>)>,
}

#[derive(Debug)]
struct QueueSession {
    wire: Wire,
    statements: QueueStatements,
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct QueueStatements {
    publish: Statement,
    take_free: Statement,
    take_grouped: Statement,
    ack: Statement,
    hold: Statement,
    count: Statement,
}

/// Why a statement returned no rows.
pub(super) enum QueueError {
    /// The connection is unusable. The statement may have been executed.
    Lost(Error),
    /// The server rejected the statement: nothing was executed.
    Refused(Error),
}

impl QueueError {
    pub(super) fn into_error(self) -> Error {
        let (Self::Lost(error) | Self::Refused(error)) = self;
        error
    }
}

/// Counts waiting callers; decrements on drop, also if the caller is cancelled.
struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl QueueConnection {
    fn new(dial: Dial, bell: Option<(String, Arc<Notify>)>) -> Self {
        Self {
            dial,
            session: Mutex::new(None),
            busy: AtomicUsize::new(0),
            bell,
        }
    }

    /// A connection that listens for messages published to this queue.
    pub(super) fn listening(pool: &Pool, queue: &str) -> Self {
        let bell = (queue.to_owned(), pool.bell.clone());
        Self::new(pool.dial.clone(), Some(bell))
    }

    /// A connection for long statements, which must not delay acknowledgements.
    pub(super) fn separate(pool: &Pool) -> Self {
        Self::new(pool.dial.clone(), None)
    }

    pub(super) async fn request(&self, ask: Ask<'_>) -> Result<Vec<Row>> {
        self.try_request(ask).await.map_err(QueueError::into_error)
    }

    async fn try_request(&self, ask: Ask<'_>) -> Result<Vec<Row>, QueueError> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let _busy = Busy(&self.busy);
        let session = self.session().await.map_err(QueueError::Lost)?;
        let answer = timeout(ANSWER_MAX, session.request(ask)).await;
        let error = match answer {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => error,
            Err(_) => {
                session.is_broken.store(true, Ordering::Relaxed);
                let message = format!("{}: the server did not respond in time", self.dial);
                return Err(QueueError::Lost(Error::new(
                    ErrorKind::Unavailable,
                    message,
                )));
            }
        };
        let converted = table::convert_error(&self.dial, &error);
        if session.wire.client().is_closed() || ends_connection(&error) {
            session.is_broken.store(true, Ordering::Relaxed);
            return Err(QueueError::Lost(converted));
        }
        Err(QueueError::Refused(converted))
    }

    pub(super) async fn hang_up(&self) {
        *self.session.lock().await = None;
    }

    async fn session(&self) -> Result<Arc<QueueSession>> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| session.is_sound()) {
            return Ok(session.clone());
        }
        *session = None;
        let opened = timeout(ANSWER_MAX * 2, self.open()).await;
        let opened = opened.unwrap_or_else(|_| {
            let message = format!("{}: the server did not respond in time", self.dial);
            Err(Error::new(ErrorKind::Unavailable, message))
        })?;
        Ok(session.insert(Arc::new(opened)).clone())
    }

    async fn open(&self) -> Result<QueueSession> {
        let bell = self.bell.clone();
        let heard = move |message| {
            if let (AsyncMessage::Notification(told), Some((queue, bell))) = (message, &bell)
                && told.payload() == queue
            {
                bell.notify_one();
            }
        };
        let wire = self.dial.connect(heard).await?;
        let statements = self.prepare(&wire).await;
        let statements = statements.map_err(|error| table::convert_error(&self.dial, &error))?;
        Ok(QueueSession {
            wire,
            statements,
            is_broken: AtomicBool::new(false),
        })
    }

    async fn prepare(&self, wire: &Wire) -> Result<QueueStatements, tokio_postgres::Error> {
        let client = wire.client();
        table::choose_schema(&self.dial, wire).await?;
        // Forces index scans: a plan cached for an empty queue would keep scanning a full table.
        let settings = format!(
            "SET statement_timeout = {0}; SET lock_timeout = {0}; SET jit = off; \
             SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; \
             SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning",
            STATEMENT_MAX.as_millis()
        );
        client.batch_execute(&settings).await?;
        if self.bell.is_some() {
            client.batch_execute("LISTEN refrain_queue").await?;
        }
        Ok(QueueStatements {
            publish: client.prepare(row::PUBLISH).await?,
            take_free: client.prepare(&row::take_free()).await?,
            take_grouped: client.prepare(&row::take_grouped()).await?,
            ack: client.prepare(row::ACK).await?,
            hold: client.prepare(row::HOLD).await?,
            count: client.prepare(row::COUNT).await?,
        })
    }
}

impl QueueSession {
    fn is_sound(&self) -> bool {
        !self.wire.client().is_closed() && !self.is_broken.load(Ordering::Relaxed)
    }

    async fn request(&self, ask: Ask<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statements = &self.statements;
        match ask {
            Ask::Publish(columns) => self.query(&statements.publish, &columns.parameters()).await,
            Ask::Take(take) => {
                let Take {
                    queue,
                    at_most,
                    holder,
                    ack_wait,
                    from,
                } = take;
                let all: [&(dyn ToSql + Sync); 5] = [&queue, &at_most, &holder, &ack_wait, &from];
                match from {
                    None => self.query(&statements.take_free, &all[..4]).await,
                    Some(_) => self.query(&statements.take_grouped, &all).await,
                }
            }
            Ask::Ack { id, holder } => self.query(&statements.ack, &[&id, &holder]).await,
            Ask::Hold {
                id,
                holder,
                span,
                is_given_back,
            } => {
                let parameters: [&(dyn ToSql + Sync); 4] = [&id, &holder, &span, &is_given_back];
                self.query(&statements.hold, &parameters).await
            }
            Ask::Count { queue, limit } => self.query(&statements.count, &[&queue, &limit]).await,
        }
    }

    async fn query(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.wire.client().query(statement, parameters).await
    }
}

/// Whether the server is shutting down, became read-only or lost the prepared statements.
fn ends_connection(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else {
        return true;
    };
    ["08", "57P", "25006", "26000"]
        .iter()
        .any(|class| code.code().starts_with(class))
}
