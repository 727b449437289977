//! Receipts in PostgreSQL: the operation writes the table `refrain_receipts`, and Refrain reads it.
//!
//! Concurrent reads share one connection, which reconnects when it breaks.
//! Only a primary is read: a standby may not have a fresh receipt yet, and its absence would run the operation again.

use std::time::Duration;

use bytes::Bytes;
use refrain::{
    Error, ErrorKind, RecordId, Result,
    policy::Address,
    receipts::{Receipt, Receipts},
};
use tokio_postgres::Row;

mod connect;
use connect::{Ask, ReceiptsConnection};

/// SQL that creates the table, for a DBA.
pub const SCHEMA: &str = include_str!("../sql/receipts.sql");

/// Receipts in one database.
#[derive(Debug)]
pub struct PostgresReceipts {
    link: ReceiptsConnection,
}

impl PostgresReceipts {
    /// Connects, and checks that receipts can be read and are unique.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the address is invalid; [`ErrorKind::Unavailable`] if the server is unreachable,
    /// or the table is missing, incomplete or not readable. The message names the fix.
    ///
    /// # Cancellation
    /// Safe to drop; the connection is closed again.
    pub async fn open(address: &Address) -> Result<Self> {
        let link = ReceiptsConnection::new(address)?;
        link.session().await?;
        Ok(Self { link })
    }

    /// Creates the table, unless it exists.
    ///
    /// # Errors
    /// If the server is unreachable or rejects the SQL.
    ///
    /// # Cancellation
    /// Safe to drop; the table may have been created.
    pub async fn migrate(address: &Address) -> Result<()> {
        ReceiptsConnection::new(address)?.make_table(SCHEMA).await
    }

    /// Runs a query; reconnects and retries once if the connection broke. Reads are idempotent.
    async fn rows(&self, ask: Ask<'_>) -> Result<Vec<Row>> {
        let session = self.link.session().await?;
        let asked = match session.send_query(ask).await {
            Err(error) if session.is_broken(&error) => {
                self.link.forget();
                self.link.session().await?.send_query(ask).await
            }
            asked => asked,
        };
        asked.map_err(|error| self.link.convert_error(&error))
    }

    /// Rejects the answer of a standby, which may be stale.
    fn check_primary(&self, row: &Row) -> Result<()> {
        match row.try_get::<_, bool>(0) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.link.forget();
                Err(self.link.standby())
            }
            Err(error) => Err(self.link.convert_error(&error)),
        }
    }
}

impl Receipts for PostgresReceipts {
    async fn find(&self, record: RecordId) -> Result<Option<Receipt>> {
        let name = record.to_string();
        let rows = self.rows(Ask::Find(&name)).await?;
        let Some(row) = rows.first() else {
            return Err(self.link.server_error("the query returned no row"));
        };
        self.check_primary(row)?;
        receipt(row).map_err(|error| self.link.convert_error(&error))
    }

    async fn seen(&self, records: &[RecordId]) -> Result<Vec<bool>> {
        let names: Vec<_> = records.iter().map(ToString::to_string).collect();
        let rows = self.rows(Ask::Seen(&names)).await?;
        if rows.len() != names.len() {
            return Err(self
                .link
                .server_error("the query returned fewer rows than requested"));
        }
        if let Some(row) = rows.first() {
            self.check_primary(row)?;
        }
        let seen = rows.iter().map(|row| row.try_get(1));
        let seen: Result<_, _> = seen.collect();
        seen.map_err(|error| self.link.convert_error(&error))
    }
}

fn receipt(row: &Row) -> Result<Option<Receipt>, tokio_postgres::Error> {
    let Some(fence) = row.try_get(1)? else {
        return Ok(None);
    };
    let status: i32 = row.try_get(2)?;
    let body: Option<Vec<u8>> = row.try_get(5)?;
    let age: Option<f64> = row.try_get(6)?;
    Ok(Some(Receipt {
        fence,
        // An invalid status becomes 0, which is rejected when an outcome is built from it.
        status: u16::try_from(status).unwrap_or_default(),
        content_type: row.try_get(3)?,
        location: row.try_get(4)?,
        body: Bytes::from(body.unwrap_or_default()),
        age: Duration::try_from_secs_f64(age.unwrap_or_default()).unwrap_or_default(),
    }))
}

/// Opens the receipts at an address: `postgres://…`.
///
/// # Errors
/// As [`PostgresReceipts::open`].
///
/// # Cancellation
/// As [`PostgresReceipts::open`].
pub async fn open(address: &Address) -> Result<PostgresReceipts> {
    let scheme = address.as_str().split_once("://").map(|(scheme, _)| scheme);
    if !matches!(scheme, Some("postgres" | "postgresql")) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "receipts = \"{address}\": receipts require PostgreSQL; write postgres://USER@HOST/DATABASE"
            ),
        ));
    }
    PostgresReceipts::open(address).await
}
