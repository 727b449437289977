//! The caller's own transaction, whichever driver made it: statements and parameters go in as they are for
//! `tokio-postgres`, and rows come out so that they are read the same way.

use tokio_postgres::{
    Row, Transaction,
    error::SqlState,
    types::{FromSql, ToSql, Type},
};

use super::trouble::{Trouble, words};

#[cfg(feature = "sqlx")]
mod sqlx;

/// A transaction that a claim can be made in: `&mut tokio_postgres::Transaction`, or `&mut sqlx::Transaction` with the
/// feature `sqlx`.
///
/// It is not to be implemented elsewhere: what may be asked of it changes with the store.
pub trait CallersTransaction: Within {}

impl<T: Within> CallersTransaction for T {}

/// A value and its type: statements are not prepared, so that a pool in between may do as it likes.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Asks within a transaction.
pub trait Within: Send {
    /// What a query gives.
    type Row: Cells + Send + Sync;

    /// The rows that a statement gives.
    fn query(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, Said>> + Send;

    /// How many rows a statement has changed.
    fn execute(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<u64, Said>> + Send;
}

/// A row that can be read column by column.
pub trait Cells {
    /// The value in this place, or why it cannot be read.
    fn cell<'a, T: FromSql<'a>>(&'a self, place: usize) -> Result<T, String>;
}

/// What a driver says went wrong.
#[derive(Debug)]
pub struct Said {
    /// `None` where it was not the server that said it.
    pub(super) code: Option<SqlState>,
    pub(super) words: String,
}

impl From<tokio_postgres::Error> for Said {
    fn from(error: tokio_postgres::Error) -> Self {
        Self {
            code: error.code().cloned(),
            words: words(&error),
        }
    }
}

impl From<Said> for Trouble {
    fn from(said: Said) -> Self {
        Self::new(said.code.as_ref(), &said.words)
    }
}

impl Cells for Row {
    fn cell<'a, T: FromSql<'a>>(&'a self, place: usize) -> Result<T, String> {
        self.try_get(place).map_err(|error| words(&error))
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
