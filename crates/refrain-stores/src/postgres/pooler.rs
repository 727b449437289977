//! Detects connection poolers that share server connections between clients.
//!
//! PgBouncer in transaction mode assigns the same server connection to many clients, one transaction after the other.
//! Settings, prepared statements, `LISTEN` and session locks then apply to other clients, and are missing here.
//! A pooler does not identify itself, but it is detected when two connections share a server process.

use std::time::Duration;

use refrain::{Error, ErrorKind};
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::address::Address;

/// Limit for the comparison. A pooler without a free server connection makes its clients wait.
const COMPARE_MAX: Duration = Duration::from_secs(10);
/// Repeated, because a pooler may by chance use different server connections several times.
const ROUNDS: usize = 4;
/// Server process of a connection. The start time distinguishes processes of different servers with the same PID.
const PROCESS: &str = "SELECT pg_catalog.pg_backend_pid()::text || ' ' || backend_start::text \
     FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())";

/// Result of comparing two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sessions {
    /// Each has its own server process, or the server does not report processes.
    Own,
    /// The connections share server processes.
    Shared,
    /// No answer in time, or a connection broke.
    Unknown,
}

/// Compares the server processes of two connections. Sends simple queries only, which leave no session state.
pub(super) async fn compare(one: &Client, other: &Client) -> Sessions {
    let comparing = async {
        let mut first = None;
        for _ in 0..ROUNDS {
            // The first connection twice: with two queries a round, a pooler that uses two server connections in turn
            // would give each client the same one every time.
            let asked = [
                process(one).await?,
                process(other).await?,
                process(one).await?,
            ];
            let [Some(one), Some(other), Some(again)] = asked else {
                // Speaks the protocol, but is not PostgreSQL.
                return Some(Sessions::Own);
            };
            let is_shared = one == other || one != again;
            let pair = (one, other);
            let is_same = first.get_or_insert_with(|| pair.clone()) == &pair;
            if is_shared || !is_same {
                return Some(Sessions::Shared);
            }
        }
        Some(Sessions::Own)
    };
    let compared = timeout(COMPARE_MAX, comparing).await;
    compared.ok().flatten().unwrap_or(Sessions::Unknown)
}

/// The inner `None` is a server that does not report its process; the outer `None` is a broken connection.
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

pub(super) fn unknown(address: &Address) -> Error {
    let seconds = COMPARE_MAX.as_secs();
    let message = format!(
        "{address}: two connections did not both answer within {seconds} s, so it is not known whether a connection pooler shares server connections between clients; give the pooler more server connections, or connect to the server directly"
    );
    Error::new(ErrorKind::Unavailable, message)
}

pub(super) fn refused(address: &Address) -> Error {
    let message = format!(
        "{address}: a connection pooler shares server connections between clients (PgBouncer with \
         pool_mode = transaction or statement): settings, prepared statements and LISTEN of one client would affect other clients; set pool_mode = session for this database or user, or connect to the server directly"
    );
    Error::new(ErrorKind::Unsupported, message)
}
