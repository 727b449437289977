//! Optimistic locking: read a row with its version, change it, and write it only if no other writer changed it.
//!
//! ```no_run
//! # async fn example(client: &tokio_postgres::Client) -> refrain::Result<()> {
//! use refrain_stores::postgres::{Changes, Versioned};
//!
//! // CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL DEFAULT 0)
//! let accounts = Versioned::new("accounts", "id");
//! let row = accounts
//!     .update(client, &7_i64, |row| {
//!         let balance: i64 = row.get("balance");
//!         Some(Changes::default().set("balance", balance - 20))
//!     })
//!     .await?;
//! println!("left: {}", row.get::<_, i64>("balance"));
//! # Ok(())
//! # }
//! ```

use std::{fmt, time::Duration};

use refrain::{Backoff, Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, Row, types::ToSql};

use super::{
    errors::StatementError,
    natural::{qualified, quoted},
};

/// Backoff after a lost update.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));

/// Table whose rows have a version column for optimistic locking.
#[derive(Debug, Clone)]
pub struct Versioned {
    table: String,
    key: String,
    version: String,
    tries_max: u32,
}

/// Columns of a row and their new values.
#[derive(Default)]
pub struct Changes(Vec<(String, Box<dyn ToSql + Sync + Send>)>);

impl Changes {
    /// Sets a column.
    #[must_use]
    pub fn set(mut self, column: &str, value: impl ToSql + Sync + Send + 'static) -> Self {
        self.0.push((column.into(), Box::new(value)));
        self
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(column, value)| (column, value)))
            .finish()
    }
}

impl Versioned {
    /// Default maximum number of tries.
    pub const TRIES_MAX: u32 = 20;

    /// Creates a `Versioned` for a table, `name` or `schema.name`, its key column, and the bigint column `version`.
    #[must_use]
    pub fn new(table: &str, key: &str) -> Self {
        Self {
            table: qualified(table),
            key: quoted(key),
            version: quoted("version"),
            tries_max: Self::TRIES_MAX,
        }
    }

    /// Sets the name of the version column.
    #[must_use]
    pub fn with_version(mut self, column: &str) -> Self {
        self.version = quoted(column);
        self
    }

    /// Sets the maximum number of tries, at least 1.
    #[must_use]
    pub fn with_tries_max(mut self, tries_max: u32) -> Self {
        self.tries_max = tries_max.max(1);
        self
    }

    /// Updates a row, and returns it. `change` gets the current row, again for every try, and returns the changes.
    ///
    /// If `change` returns `None`, the row stays unchanged. A transaction must be READ COMMITTED: at higher isolation
    /// levels a retry does not see the concurrent change.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the row does not exist; [`ErrorKind::Unavailable`] if other writers won every try.
    ///
    /// # Cancellation
    /// Safe to drop; the row may have been updated once.
    pub async fn update(
        &self,
        client: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        mut change: impl FnMut(&Row) -> Option<Changes>,
    ) -> Result<Row> {
        let failed = |error| StatementError::from(error).into_error();
        let read = format!(
            "SELECT {}::int8, * FROM {} WHERE {} = $1",
            self.version, self.table, self.key
        );
        for attempt in 1..=self.tries_max {
            let row = client.query_opt(&read, &[key]).await.map_err(failed)?;
            let row = row.ok_or_else(|| self.missing())?;
            let Some(changes) = change(&row) else {
                return Ok(row);
            };
            let version: i64 = row.try_get(0).map_err(failed)?;
            let mut values: Vec<&(dyn ToSql + Sync)> = vec![key, &version];
            values.extend(
                changes
                    .0
                    .iter()
                    .map(|(_, value)| &**value as &(dyn ToSql + Sync)),
            );
            let written = client.query_opt(&self.write(&changes), &values).await;
            if let Some(row) = written.map_err(failed)? {
                return Ok(row);
            }
            tokio::time::sleep(BACKOFF.pause(attempt)).await;
        }
        let message = format!(
            "a row of {} was changed concurrently {} times in a row; try again, or raise the attempt limit",
            self.table, self.tries_max
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn write(&self, changes: &Changes) -> String {
        let sets: String = (3..)
            .zip(&changes.0)
            .map(|(place, (column, _))| format!(", {} = ${place}", quoted(column)))
            .collect();
        let Self {
            table,
            key,
            version,
            ..
        } = self;
        format!(
            "UPDATE {table} SET {version} = {version} + 1{sets} WHERE {key} = $1 AND {version} = $2::int8 RETURNING *"
        )
    }

    fn missing(&self) -> Error {
        let message = format!("row not found in {}", self.table);
        Error::new(ErrorKind::Invalid, message)
    }
}
