//! Natural unique keys: insert a row, or fetch the existing one.
//!
//! ```no_run
//! # async fn example(client: &tokio_postgres::Client) -> refrain::Result<()> {
//! use refrain_stores::postgres::{Fetched, NaturalKey};
//!
//! // CREATE TABLE orders (customer bigint, cart bigint, total bigint, UNIQUE (customer, cart))
//! let orders = NaturalKey::new("orders", &["customer", "cart"]);
//! let order = orders
//!     .insert_or_fetch(client, &[("customer", &7_i64), ("cart", &12_i64), ("total", &990_i64)])
//!     .await?;
//! match order {
//!     Fetched::New(row) => println!("ordered: {}", row.get::<_, i64>("total")),
//!     Fetched::Existing(row) => println!("ordered before: {}", row.get::<_, i64>("total")),
//! }
//! # Ok(())
//! # }
//! ```

use refrain::{Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, Row, types::ToSql};

use super::errors::StatementError;

/// Maximum number of tries if the row is deleted and inserted concurrently.
const TRIES_MAX: u32 = 8;

/// Table with a natural key: columns with a unique constraint or index, none of them null.
#[derive(Debug, Clone)]
pub struct NaturalKey {
    table: String,
    key: Vec<String>,
}

/// Result of [`NaturalKey::insert_or_fetch`].
#[derive(Debug)]
pub enum Fetched {
    /// The row was inserted.
    New(Row),
    /// The row existed. The caller has to check whether its other columns match.
    Existing(Row),
}

impl Fetched {
    /// Returns the row, inserted or existing.
    #[must_use]
    pub fn into_row(self) -> Row {
        let (Self::New(row) | Self::Existing(row)) = self;
        row
    }
}

impl NaturalKey {
    /// Creates a `NaturalKey` for a table, `name` or `schema.name`, and its key columns.
    #[must_use]
    pub fn new(table: &str, key: &[&str]) -> Self {
        Self {
            table: qualified(table),
            key: key.iter().map(|column| column.to_string()).collect(),
        }
    }

    /// Inserts a row with these columns, or fetches the row with the same key.
    ///
    /// Of several concurrent calls one inserts; the others wait for its commit and fetch its row.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a key column has no value; otherwise the server's error.
    ///
    /// # Cancellation
    /// Safe to drop; the row may have been inserted.
    pub async fn insert_or_fetch(
        &self,
        client: &impl GenericClient,
        columns: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<Fetched> {
        let values: Vec<_> = columns.iter().map(|(_, value)| *value).collect();
        let wanted = self.wanted(columns)?;
        let failed = |error| StatementError::from(error).into_error();
        for _ in 0..TRIES_MAX {
            let inserted = client.query_opt(&self.insert(columns), &values).await;
            if let Some(row) = inserted.map_err(failed)? {
                return Ok(Fetched::New(row));
            }
            let found = client.query_opt(&self.fetch(), &wanted).await;
            if let Some(row) = found.map_err(failed)? {
                return Ok(Fetched::Existing(row));
            }
        }
        let message = format!(
            "a row of {} conflicts but is not visible to this transaction; use isolation level READ COMMITTED, or check whether another session keeps deleting the row",
            self.table
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Values of the key columns, in the order of the key.
    fn wanted<'a>(
        &self,
        columns: &[(&str, &'a (dyn ToSql + Sync))],
    ) -> Result<Vec<&'a (dyn ToSql + Sync)>> {
        let value = |name: &String| {
            let found = columns.iter().find(|(column, _)| column == name);
            found.map(|(_, value)| *value).ok_or_else(|| {
                let message = format!(
                    "{} needs a value for {name}, a column of its key",
                    self.table
                );
                Error::new(ErrorKind::Invalid, message)
            })
        };
        self.key.iter().map(value).collect()
    }

    fn insert(&self, columns: &[(&str, &(dyn ToSql + Sync))]) -> String {
        let names: Vec<_> = columns.iter().map(|(name, _)| quoted(name)).collect();
        let places: Vec<_> = (1..=columns.len())
            .map(|place| format!("${place}"))
            .collect();
        let key: Vec<_> = self.key.iter().map(|name| quoted(name)).collect();
        format!(
            "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO NOTHING RETURNING *",
            self.table,
            names.join(", "),
            places.join(", "),
            key.join(", ")
        )
    }

    fn fetch(&self) -> String {
        let conditions: Vec<_> = (1..)
            .zip(&self.key)
            .map(|(place, name)| format!("{} = ${place}", quoted(name)))
            .collect();
        format!(
            "SELECT * FROM {} WHERE {}",
            self.table,
            conditions.join(" AND ")
        )
    }
}

/// Quotes `name` or `schema.name` for SQL.
pub(super) fn qualified(table: &str) -> String {
    let parts: Vec<_> = table.split('.').map(quoted).collect();
    parts.join(".")
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
