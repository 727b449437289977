//! The caller's transaction, independent of the driver: statements, parameters and rows use the types of
//! `tokio-postgres`.

use tokio_postgres::{
    Row, Transaction,
    error::SqlState,
    types::{FromSql, ToSql, Type},
};

use super::errors::{StatementError, describe_error};

#[cfg(feature = "sqlx")]
mod sqlx;

/// Transaction in which a claim can be made: `tokio_postgres::Transaction` by `&` or `&mut`, or
/// `&mut sqlx::Transaction` with the feature `sqlx`.
///
/// Sealed: its methods change with the store.
pub trait CallersTransaction: Within {}

impl<T: Within> CallersTransaction for T {}

/// Value with its type. Statements are not prepared, so that poolers work.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Runs statements in a transaction.
pub trait Within: Send {
    /// Row of a query.
    type Row: Cells + Send + Sync;

    /// Runs a statement and returns its rows.
    fn query(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, Said>> + Send;

    /// Runs a statement and returns the number of affected rows.
    fn execute(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<u64, Said>> + Send;
}

/// Row with access by column index.
pub trait Cells {
    /// Value of a column, or why it cannot be read.
    fn cell<'a, T: FromSql<'a>>(&'a self, place: usize) -> Result<T, String>;
}

/// Error of a driver.
#[derive(Debug)]
pub struct Said {
    /// `None` if the error does not come from the server.
    pub(super) code: Option<SqlState>,
    pub(super) words: String,
}

impl From<tokio_postgres::Error> for Said {
    fn from(error: tokio_postgres::Error) -> Self {
        Self {
            code: error.code().cloned(),
            words: describe_error(&error),
        }
    }
}

impl From<Said> for StatementError {
    fn from(said: Said) -> Self {
        Self::new(said.code.as_ref(), &said.words)
    }
}

impl Cells for Row {
    fn cell<'a, T: FromSql<'a>>(&'a self, place: usize) -> Result<T, String> {
        self.try_get(place).map_err(|error| describe_error(&error))
    }
}

impl Within for &Transaction<'_> {
    type Row = Row;

    async fn query(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Said> {
        Ok(self.query_typed(text, parameters).await?)
    }

    async fn execute(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<u64, Said> {
        Ok(self.execute_typed(text, parameters).await?)
    }
}

impl Within for &mut Transaction<'_> {
    type Row = Row;

    async fn query(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Said> {
        Ok(self.query_typed(text, parameters).await?)
    }

    async fn execute(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<u64, Said> {
        Ok(self.execute_typed(text, parameters).await?)
    }
}
