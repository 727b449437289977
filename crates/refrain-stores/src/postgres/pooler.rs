//! Poolers between the store and the server: whether a connection is a session of its own.
//!
//! PgBouncer in transaction mode hands the same server connection to many clients, one transaction after the other.
//! Settings, prepared statements, `LISTEN` and session locks then end up with somebody else, and are missing here.
//! A pooler does not say what it is, but two connections that are served by one server process give it away.

use std::time::Duration;

use refrain::{Error, ErrorKind};
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::address::Address;

/// A pooler in session mode without a free server connection lets the second client wait; that is not waited out.
const COMPARE_MAX: Duration = Duration::from_secs(5);
/// A pooler may have other server connections free by chance, also more than once.
const ROUNDS: usize = 4;
/// Which server process serves the connection. The moment of its start tells servers apart whose numbers are equal.
const PROCESS: &str = "SELECT pg_catalog.pg_backend_pid()::text || ' ' || backend_start::text \
     FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())";

/// What two connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sessions {
    /// Each has a server process of its own, or the server has none.
    Own,
    /// Server processes change hands.
    Shared,
    /// There was no answer in time, or a connection broke.
    Unknown,
}

/// Compares two connections by who serves them. Sends plain queries only, which leave nothing behind.
pub(super) async fn compare(one: &Client, other: &Client) -> Sessions {
    let comparing = async {
        let mut first = None;
        for _ in 0..ROUNDS {
            let (one, other) = (process(one).await?, process(other).await?);
            let (Some(one), Some(other)) = (one, other) else {
                // It speaks the protocol and is not PostgreSQL.
                return Some(Sessions::Own);
            };
            let pair = (one, other);
            let is_same = first.get_or_insert_with(|| pair.clone()) == &pair;
            if pair.0 == pair.1 || !is_same {
                return Some(Sessions::Shared);
            }
        }
        Some(Sessions::Own)
    };
    let compared = timeout(COMPARE_MAX, comparing).await;
    compared.ok().flatten().unwrap_or(Sessions::Unknown)
}

/// The inner `None` is a server that cannot tell, the outer one a connection that broke.
async fn process(client: &Client) -> Option<Option<String>> {
    match client.simple_query(PROCESS).await {
        Ok(messages) => Some(messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })),
        Err(_) if client.is_closed() => None,
        Err(_) => Some(None),
    }
}

pub(super) fn refused(address: &Address) -> Error {
    let message = format!(
        "{address}: a connection pooler shares server connections between clients (PgBouncer with \
         pool_mode = transaction or statement): settings, prepared statements and LISTEN of one client would end up \
         with another; set pool_mode = session for this database or user, or name the server itself"
    );
    Error::new(ErrorKind::Unsupported, message)
}
