//! Optimistic locking: read a row with its version, change it, and write it only if nobody else did meanwhile.
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
    natural::{qualified, quoted},
    trouble::Trouble,
};

/// Between attempts to write a row that another client changed first.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));

/// A table whose rows count how often they were changed.
#[derive(Debug, Clone)]
pub struct Versioned {
    table: String,
    key: String,
    version: String,
    tries_max: u32,
}

/// What becomes of a row: columns and their new values.
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
    /// How often it is tried at the most, unless told otherwise.
    pub const TRIES_MAX: u32 = 20;

    /// A table, `name` or `schema.name`, the column that names a row, and the bigint column `version`.
    #[must_use]
    pub fn new(table: &str, key: &str) -> Self {
        Self {
            table: qualified(table),
            key: quoted(key),
            version: quoted("version"),
            tries_max: Self::TRIES_MAX,
        }
    }

    /// The same with another column for the version.
    #[must_use]
    pub fn with_version(mut self, column: &str) -> Self {
        self.version = quoted(column);
        self
    }

    /// The same with another limit of tries.
    #[must_use]
    pub fn with_tries_max(mut self, tries_max: u32) -> Self {
        self.tries_max = tries_max.max(1);
        self
    }

    /// Changes a row as `change` says, which is shown the row as it is, anew for every try; answers the row as it became.
    ///
    /// `None` leaves it as it is. In a transaction it has to be READ COMMITTED: others do not see anybody's changes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where there is no such row, [`ErrorKind::Unavailable`] where others were faster every time.
    ///
    /// # Cancellation
    /// May be dropped; the row may then have been changed, once.
    pub async fn update(
        &self,
        client: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        mut change: impl FnMut(&Row) -> Option<Changes>,
    ) -> Result<Row> {
        let failed = |error| Trouble::from(error).into_error();
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
            "a row of {} was changed by others {} times in a row; try again, or raise the limit of tries",
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
        let message = format!("there is no such row in {}", self.table);
        Error::new(ErrorKind::Invalid, message)
    }
}
