//! The table: made where it is not there and may be made, and written out for those who make it by hand.

use std::error::Error as _;

use refrain::{Error, ErrorKind, Result};
use refrain_stores::postgres::{Dial, Wire};
use tokio_postgres::{Transaction, error::SqlState};

/// The table as a DBA creates it.
pub const SCHEMA: &str = include_str!("../../sql/queue.sql");

const IS_THERE: &str = "SELECT to_regclass('refrain_queue') IS NOT NULL";

/// Makes the table, where there is none; answers whether there was none.
///
/// # Errors
/// When the server cannot be reached or refuses; the message says what to do.
///
/// # Cancellation
/// May be dropped; the table is then there or not.
pub async fn migrate(address: &str) -> Result<bool> {
    ensure(&Dial::new(address)?).await
}

pub(super) async fn ensure(dial: &Dial) -> Result<bool> {
    let mut wire = dial.connect(|_| ()).await?;
    let failed = |error: tokio_postgres::Error| told(dial, &error);
    choose_schema(dial, &wire).await.map_err(failed)?;
    let there: bool = wire
        .client()
        .query_one_scalar(IS_THERE, &[])
        .await
        .map_err(failed)?;
    if there {
        return Ok(false);
    }
    let transaction = wire.client_mut().transaction().await.map_err(failed)?;
    let made = make(&transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(made)
}

/// One process at a time.
async fn make(transaction: &Transaction<'_>) -> Result<bool, tokio_postgres::Error> {
    let wait = "SELECT pg_advisory_xact_lock(hashtextextended('refrain queue', 0))";
    transaction.execute(wait, &[]).await?;
    let there = transaction.query_one(IS_THERE, &[]).await?;
    let there: bool = there.try_get(0)?;
    if !there {
        transaction.batch_execute(SCHEMA).await?;
    }
    Ok(!there)
}

/// Has the table looked for where the address says.
pub(super) async fn choose_schema(dial: &Dial, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    match dial.schema() {
        // A plain name: the address was checked for that.
        Some(schema) => {
            let choose = format!("SET search_path = \"{schema}\"");
            wire.client().batch_execute(&choose).await
        }
        None => Ok(()),
    }
}

/// An error of the server's, with what to do about it.
pub(super) fn told(dial: &Dial, error: &tokio_postgres::Error) -> Error {
    let fix = match error.code() {
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
            "it has no table refrain_queue; make it with `refrain migrate --queue --store URL`, and its schema before"
        }
        Some(&SqlState::UNDEFINED_COLUMN | &SqlState::DATATYPE_MISMATCH) => {
            "its table refrain_queue is another one than `refrain migrate --queue --print` shows; change it, or name another schema with ?schema="
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "have a DBA run what `refrain migrate --queue --print` prints, and GRANT SELECT, INSERT, UPDATE, DELETE ON refrain_queue"
        }
        _ => return dial.told(error),
    };
    let message = format!("{dial}: {}; {fix}", words(error));
    Error::new(ErrorKind::Invalid, message)
}

/// Everything that the error knows, on one line. The driver itself says little more than "db error".
pub(super) fn words(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return format!("{} ({})", said.message(), said.code().code());
    }
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
