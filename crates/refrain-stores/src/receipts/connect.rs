//! Connection for reading receipts: connect, check the table, reconnect.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::{Error, ErrorKind, Result, policy::Address};
use tokio::{sync::Mutex, time::timeout};
use tokio_postgres::{
    Client, Row, Statement,
    error::{DbError, SqlState},
    types::Type,
};

use crate::postgres::{Dial, Wire};

/// Limit for connecting and preparing statements.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Server-side limit for a read. Callers have a limit of their own.
const STATEMENT_MAX: Duration = Duration::from_secs(5);
const COLUMNS: [&str; 7] = [
    "record",
    "fence",
    "status",
    "body",
    "content_type",
    "location",
    "created_at",
];

/// Connection to the receipts.
pub(super) struct ReceiptsConnection {
    dial: Dial,
    /// Locked while connecting, so that concurrent callers share one connection.
    session: Mutex<Option<Arc<ReceiptStatements>>>,
    /// Whether the next call has to reconnect.
    is_forgotten: AtomicBool,
}

/// Connection with its prepared statements; closed when dropped.
#[derive(Debug)]
pub(super) struct ReceiptStatements {
    wire: Wire,
    find: Statement,
    seen: Statement,
}

/// Query for receipts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask<'a> {
    /// Receipt of this record.
    Find(&'a str),
    /// Which of these records have a receipt.
    Seen(&'a [String]),
}

impl ReceiptStatements {
    fn is_closed(&self) -> bool {
        self.wire.client().is_closed()
    }

    /// Whether the connection is closed, or about to be: a server reports its shutdown before it disconnects.
    pub(super) fn is_broken(&self, error: &tokio_postgres::Error) -> bool {
        const GOING: [SqlState; 3] = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
        ];
        self.is_closed() || error.code().is_some_and(|code| GOING.contains(code))
    }

    pub(super) async fn send_query(&self, ask: Ask<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let client = self.wire.client();
        match ask {
            Ask::Find(record) => client.query(&self.find, &[&record]).await,
            Ask::Seen(records) => client.query(&self.seen, &[&records]).await,
        }
    }
}

impl fmt::Debug for ReceiptsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiptsConnection({})", self.dial)
    }
}

impl ReceiptsConnection {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let bad = |error: Error| {
            let message = format!("receipts = \"{address}\"");
            Error::new(ErrorKind::Unsupported, message).with_source(error)
        };
        Ok(Self {
            dial: Dial::new(address.as_str()).map_err(bad)?,
            session: Mutex::new(None),
            is_forgotten: AtomicBool::new(false),
        })
    }

    /// Returns the open connection, or connects.
    pub(super) async fn session(&self) -> Result<Arc<ReceiptStatements>> {
        let mut session = self.session.lock().await;
        let is_forgotten = self.is_forgotten.swap(false, Ordering::Relaxed);
        if let Some(session) = session
            .as_ref()
            .filter(|it| !it.is_closed() && !is_forgotten)
        {
            return Ok(session.clone());
        }
        *session = None;
        let opened = timeout(OPEN_MAX, self.open()).await;
        let opened =
            opened.unwrap_or_else(|_| Err(self.server_error("it did not respond in time")))?;
        Ok(session.insert(Arc::new(opened)).clone())
    }

    /// Makes the next call reconnect.
    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
    }

    /// Creates the table unless it exists, on a separate connection. An existing table is not changed.
    pub(super) async fn make_table(&self, sql: &str) -> Result<()> {
        let wire = self.connect().await?;
        match wire.client().batch_execute(sql).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // The cause may be another application's table of the same name.
                self.check_table(wire.client()).await?;
                Err(self.convert_error(&error))
            }
        }
    }

    async fn connect(&self) -> Result<Wire> {
        let wire = self.dial.look().await;
        let wire = wire.map_err(|error| add_context(&error))?;
        if let Some(schema) = self.dial.schema() {
            let path = format!("SET search_path = \"{schema}\"");
            let set = wire.client().batch_execute(&path).await;
            set.map_err(|error| self.convert_error(&error))?;
        }
        Ok(wire)
    }

    async fn open(&self) -> Result<ReceiptStatements> {
        let wire = self.connect().await?;
        let (find, seen) = self.prepare(wire.client()).await?;
        Ok(ReceiptStatements { wire, find, seen })
    }

    async fn prepare(&self, client: &Client) -> Result<(Statement, Statement)> {
        let failed = |error| self.convert_error(&error);
        let settings = format!("SET statement_timeout = {}", STATEMENT_MAX.as_millis());
        client.batch_execute(&settings).await.map_err(failed)?;
        let standby = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
        if standby.map_err(failed)?.try_get(0).map_err(failed)? {
            return Err(self.standby());
        }
        let body = self.check_table(client).await?;
        let find = client.prepare(&find_query(&body)).await.map_err(failed)?;
        let seen = client.prepare(SEEN).await.map_err(failed)?;
        Ok((find, seen))
    }

    /// Checks that the table has all columns and a unique `record`; returns the type of `body`.
    async fn check_table(&self, client: &Client) -> Result<Type> {
        let failed = |error| self.convert_error(&error);
        let all = client.prepare("SELECT * FROM refrain_receipts LIMIT 0");
        let all = all.await.map_err(failed)?;
        // Missing privileges show only when the table is read.
        client.query(&all, &[]).await.map_err(failed)?;
        let has = |name: &str| all.columns().iter().any(|column| column.name() == name);
        if let Some(name) = COLUMNS.iter().find(|name| !has(name)) {
            let what = format!("its table refrain_receipts has no column `{name}`");
            return Err(self.error_with_fix(&what, CREATE));
        }
        let is_unique = client.query_one(IS_UNIQUE, &[]).await.map_err(failed)?;
        if !is_unique.try_get(0).map_err(failed)? {
            let what = "column `record` of its table refrain_receipts is not unique";
            let fix = "ALTER TABLE refrain_receipts ADD PRIMARY KEY (record)";
            return Err(self.error_with_fix(what, fix));
        }
        let body = all.columns().iter().find(|it| it.name() == "body");
        Ok(body.map_or(Type::TEXT, |column| column.type_().clone()))
    }

    pub(super) fn convert_error(&self, error: &tokio_postgres::Error) -> Error {
        match error.code() {
            Some(&SqlState::UNDEFINED_TABLE) => {
                self.error_with_fix("it has no table refrain_receipts", CREATE)
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                let said = error.as_db_error().map_or("no", DbError::message);
                self.error_with_fix(said, RIGHTS)
            }
            _ => add_context(&self.dial.told(error)),
        }
    }

    pub(super) fn standby(&self) -> Error {
        let what = "it is a standby, which may not have received the latest commits";
        self.error_with_fix(what, "use the address of the primary")
    }

    pub(super) fn server_error(&self, what: &str) -> Error {
        self.error_with_fix(what, "check the server")
    }

    fn error_with_fix(&self, what: &str, fix: &str) -> Error {
        let message = format!("receipts at {}: {what}; {fix}", self.dial);
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Adds to an error that it concerns the receipts. An unsupported pooler stays [`ErrorKind::Unsupported`], because it
/// is a configuration error.
fn add_context(error: &Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("receipts at {error}"))
}

const CREATE: &str =
    "create it with the statements that `refrain migrate --receipts --print` prints";
const RIGHTS: &str = "run GRANT SELECT ON refrain_receipts TO this role, or have a DBA run the statements that `refrain migrate --receipts --print` prints";

/// Always returns one row: a missing receipt is null, and the row also tells whether the server is a standby.
fn find_query(body: &Type) -> String {
    let body = match *body {
        Type::BYTEA => "r.body",
        _ => "convert_to(r.body::text, 'UTF8')",
    };
    format!(
        "SELECT pg_is_in_recovery(), r.fence::text, r.status::int4, r.content_type::text, r.location::text,
                {body}, extract(epoch FROM now() - r.created_at)::float8
         FROM (SELECT $1::text AS record) asked LEFT JOIN refrain_receipts r ON r.record = asked.record"
    )
}

const SEEN: &str = "SELECT pg_is_in_recovery(), r.record IS NOT NULL
     FROM unnest($1::text[]) WITH ORDINALITY AS asked (record, place)
     LEFT JOIN refrain_receipts r ON r.record = asked.record ORDER BY asked.place";

/// Whether a valid unique index without a condition covers exactly `record`.
const IS_UNIQUE: &str = "SELECT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'refrain_receipts'::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = 'record')";
