//! The queue table: created if missing and permitted, and printed for a DBA to create.

use std::error::Error as _;

use refrain::{Error, ErrorKind, Result};
use refrain_stores::postgres::{Dial, Wire};
use tokio_postgres::{Transaction, error::SqlState};

/// The SQL script that creates the queue table.
pub const SCHEMA: &str = include_str!("../../sql/queue.sql");

const IS_THERE: &str = "SELECT to_regclass('refrain_queue') IS NOT NULL";

/// Creates the queue table if missing; returns whether it was created.
///
/// # Errors
/// If the server is unreachable or rejects the script; the message names the fix.
///
/// # Cancellation
/// May be dropped; the table may or may not have been created.
pub async fn migrate(address: &str) -> Result<bool> {
    ensure(&Dial::new(address)?).await
}

pub(super) async fn ensure(dial: &Dial) -> Result<bool> {
    let mut wire = dial.connect(|_| ()).await?;
    let failed = |error: tokio_postgres::Error| convert_error(dial, &error);
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
    let made = create_table(&transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(made)
}

/// Creates the table under an advisory lock: one process at a time.
async fn create_table(transaction: &Transaction<'_>) -> Result<bool, tokio_postgres::Error> {
    let wait = "SELECT pg_advisory_xact_lock(hashtextextended('refrain queue', 0))";
    transaction.execute(wait, &[]).await?;
    let there = transaction.query_one(IS_THERE, &[]).await?;
    let there: bool = there.try_get(0)?;
    if !there {
        transaction.batch_execute(SCHEMA).await?;
    }
    Ok(!there)
}

/// Sets the search path to the schema that the address names.
pub(super) async fn choose_schema(dial: &Dial, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    match dial.schema() {
        // Safe to interpolate: the address parser accepts only plain names.
        Some(schema) => {
            let choose = format!("SET search_path = \"{schema}\"");
            wire.client().batch_execute(&choose).await
        }
        None => Ok(()),
    }
}

/// Converts an error of the server, with the fix.
pub(super) fn convert_error(dial: &Dial, error: &tokio_postgres::Error) -> Error {
    let fix = match error.code() {
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
            "table refrain_queue does not exist; create its schema, then run `refrain migrate --queue --store URL`"
        }
        Some(&SqlState::UNDEFINED_COLUMN | &SqlState::DATATYPE_MISMATCH) => {
            "the columns of refrain_queue differ from those that `refrain migrate --queue --print` prints; alter the table, or use another schema with ?schema="
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            "have a DBA run the statements that `refrain migrate --queue --print` prints, and GRANT SELECT, INSERT, UPDATE, DELETE ON refrain_queue"
        }
        _ => return dial.told(error),
    };
    let message = format!("{dial}: {}; {fix}", describe_error(error));
    Error::new(ErrorKind::Invalid, message)
}

/// The complete error text on one line; the driver's own message is little more than "db error".
pub(super) fn describe_error(error: &tokio_postgres::Error) -> String {
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
