//! Transactional outbox in PostgreSQL: a transaction appends its messages to a table, and a relay publishes them.
//!
//! The table `refrain_outbox` is in the service's database. `refrain migrate --outbox` creates it or prints its SQL.
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use refrain::consume::Message;
//! use refrain_stores::postgres::Outbox;
//!
//! let outbox = Outbox::new();
//! let transaction = client.transaction().await?;
//! transaction.execute("UPDATE orders SET paid = true WHERE id = 7", &[]).await?;
//! let paid = Message::new(r#"{"order":7}"#).with_group("order-7").with_content_type("application/json");
//! outbox.append(&transaction, "orders.paid", &paid).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

use refrain::{
    Error, ErrorKind, Result,
    consume::{HEADER_BYTES_MAX, Message},
};
use tokio_postgres::{
    Transaction,
    types::{ToSql, Type},
};

use super::{
    address::Address,
    connect::PostgresContext,
    dial::Dial,
    errors::{self, StatementError},
};

mod reader;
pub use reader::PostgresOutbox;

mod rows;
mod statements;

const SCRIPT: &str = include_str!("../../sql/outbox.sql");
/// Maximum size of a payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a destination, group, id, content type or header name, in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Appends messages to the outbox in the caller's transaction.
///
/// It holds no connection, so it is cheap to clone or create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    table: String,
    insert: String,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// Uses the outbox that the transaction's search path finds.
    #[must_use]
    pub fn new() -> Self {
        Self::with_table("refrain_outbox".into())
    }

    /// Uses the outbox in this schema.
    #[must_use]
    pub fn in_schema(schema: &str) -> Self {
        Self::with_table(format!("{}.refrain_outbox", super::natural::quoted(schema)))
    }

    fn with_table(table: String) -> Self {
        let insert = format!(
            "INSERT INTO {table} (destination, message_id, group_key, content_type, header_names, header_values, payload) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)"
        );
        Self { table, insert }
    }

    /// Appends a message, which is published after the transaction commits; returns the message id.
    ///
    /// The id is that of the message, or a random UUID. Every publish of the message carries it.
    /// Messages of one destination and group are published in commit order: a transaction that appends to a group locks
    /// the group until it ends, and other transactions that append to it wait.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the message is too large or contains invalid text; checked before any statement is
    /// sent. Otherwise the server's error; the transaction has to be rolled back.
    ///
    /// # Cancellation
    /// If dropped, the transaction must be rolled back.
    pub async fn append(
        &self,
        transaction: &Transaction<'_>,
        destination: &str,
        message: &Message,
    ) -> Result<String> {
        check(destination, message)?;
        let id = message.id.clone().unwrap_or_else(random_id);
        let (names, values): (Vec<_>, Vec<_>) = message
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), &value[..]))
            .unzip();
        let payload = &message.payload[..];
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&destination, Type::TEXT),
            (&id, Type::TEXT),
            (&message.group, Type::TEXT),
            (&message.content_type, Type::TEXT),
            (&names, Type::TEXT_ARRAY),
            (&values, Type::BYTEA_ARRAY),
            (&payload, Type::BYTEA),
        ];
        let appended = transaction.execute_typed(&self.insert, &parameters).await;
        appended.map_err(|error| self.convert_error(error))?;
        Ok(id)
    }

    fn convert_error(&self, error: tokio_postgres::Error) -> Error {
        use tokio_postgres::error::SqlState;
        if error.code() == Some(&SqlState::UNDEFINED_TABLE) {
            let message = format!("table {} does not exist; {CREATE}", self.table);
            return Error::new(ErrorKind::Invalid, message);
        }
        StatementError::from(error).into_error()
    }
}

const CREATE: &str = "create it with the statements that `refrain migrate --outbox --print` prints";

/// Returns the SQL that creates the outbox, for a DBA or for the service's own migrations. Does not connect.
///
/// With `?schema=NAME` in the address the SQL names the schema; otherwise the table is created in the first schema of
/// the search path.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the address cannot be parsed.
pub fn script(address: Option<&str>) -> Result<String> {
    let prefix = match address {
        Some(address) => prefix(&Address::parse(address)?),
        None => String::new(),
    };
    Ok(SCRIPT.replace("__schema__", &prefix))
}

/// Creates the outbox in the database at this address, unless it exists.
///
/// # Errors
/// If the server is unreachable or rejects the SQL.
///
/// # Cancellation
/// Safe to drop; the table may have been created.
pub async fn migrate(address: &str) -> Result<()> {
    let dial = Dial::new(address)?;
    let (wire, _) = dial.connect_with_facts(|_| ()).await?;
    // Sent as one simple query, which runs in one implicit transaction.
    let limits = "SET lock_timeout = '60s'; SET statement_timeout = '120s'";
    let script = format!("{limits};\n{}", script(Some(address))?);
    let made = wire.client.batch_execute(&script).await;
    made.map_err(|error| dial.told(&error))
}

/// Schema prefix of the table name.
fn prefix(address: &Address) -> String {
    match address.is_schema_named {
        true => format!("{}.", address.quoted_schema()),
        false => String::new(),
    }
}

/// Validates a message before anything is sent: an error of the server would abort the caller's transaction.
fn check(destination: &str, message: &Message) -> Result<()> {
    let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let named = |text: &Option<String>| text.clone().unwrap_or_default();
    let names = [
        ("destination", destination.to_owned()),
        ("id", named(&message.id)),
        ("group", named(&message.group)),
        ("content type", named(&message.content_type)),
    ];
    let headers = message
        .headers
        .iter()
        .map(|(name, _)| ("header", name.clone()));
    for (what, name) in names.into_iter().chain(headers) {
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return bad(format!(
                "the {what} of an outbox message has {} bytes or contains a NUL; use at most {NAME_BYTES_MAX} bytes without NUL",
                name.len()
            ));
        }
    }
    if destination.is_empty() || message.id.as_deref() == Some("") {
        return bad("an outbox message has an empty destination or id; set the destination to a queue, and omit an empty id".into());
    }
    let sizes = message
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len());
    let header_bytes: usize = sizes.sum();
    if message.payload.len() > PAYLOAD_BYTES_MAX || header_bytes > HEADER_BYTES_MAX {
        return bad(format!(
            "an outbox message has {} bytes of payload and {header_bytes} bytes of headers; the limits are {PAYLOAD_BYTES_MAX} and {HEADER_BYTES_MAX}: store large data elsewhere, and send a reference to it",
            message.payload.len()
        ));
    }
    Ok(())
}

/// Random UUID (version 4).
fn random_id() -> String {
    let bits: u128 = rand::random();
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Error while the outbox is opened, with the fix.
fn convert_error(error: &tokio_postgres::Error, address: &Address) -> Error {
    use tokio_postgres::error::SqlState;
    let (kind, what) = match error.code() {
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => (
            ErrorKind::Invalid,
            format!(
                "table refrain_outbox does not exist, or has the columns of another version; {CREATE}"
            ),
        ),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => (
            ErrorKind::Invalid,
            "run GRANT SELECT, UPDATE, DELETE ON refrain_outbox TO this role".into(),
        ),
        _ => return errors::convert_error(error, address),
    };
    Error::new(
        kind,
        format!("{address}: {}: {what}", errors::describe_error(error)),
    )
}

#[cfg(test)]
mod tests {
    //! Some brokers require ids to be UUIDs. An invalid message must not abort the caller's transaction.

    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let (one, two) = (random_id(), random_id());
        assert_ne!(one, two);
        assert_eq!((one.len(), &one[14..15]), (36, "4"), "{one}");
        assert!("89ab".contains(&one[19..20]), "{one}");
    }

    #[test]
    fn invalid_messages_are_rejected_before_the_insert() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let large = Message::new(vec![0; PAYLOAD_BYTES_MAX + 1]);
        for (destination, message, words) in [
            ("", Message::new(""), "empty destination"),
            ("a\0b", Message::new(""), "NUL"),
            ("a", Message::new("").with_id(""), "empty destination or id"),
            ("a", Message::new("").with_id(&long), "the id of"),
            ("a", Message::new("").with_group(&long), "the group of"),
            (
                "a",
                Message::new("").with_header("n\0", "v"),
                "the header of",
            ),
            (
                "a",
                Message::new("").with_header("n", vec![0; HEADER_BYTES_MAX]),
                "of headers",
            ),
            ("a", large, "send a reference to it"),
        ] {
            let error = check(destination, &message).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        assert!(check("a", &Message::new("").with_group("g").with_id("1")).is_ok());
    }

    #[test]
    fn the_script_names_the_schema_where_the_address_does() {
        let plain = script(Some("postgres://app@db/app")).unwrap();
        assert!(plain.contains("EXISTS refrain_outbox (") && !plain.contains("__"));
        let named = script(Some("postgres://app@db/app?schema=shop")).unwrap();
        assert!(named.contains("EXISTS \"shop\".refrain_outbox ("));
    }
}
