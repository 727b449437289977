//! Errors of the server and the connection, with messages that name the fix.

use std::error::Error as _;

use refrain::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

use super::{address::Address, pooler};

/// Error of a statement, by whether the statement may have been applied.
#[derive(Debug)]
pub(super) enum StatementError {
    /// The connection is unusable. The statement may have been applied.
    Lost(Error),
    /// The server rejected the statement: nothing was applied.
    Refused(Error),
}

impl StatementError {
    /// `code` is `None` if the error does not come from the server.
    pub(super) fn new(code: Option<&SqlState>, words: &str) -> Self {
        let message = format!("PostgreSQL: {words}");
        match code {
            None => Self::Lost(Error::new(ErrorKind::Unavailable, message)),
            Some(code) if ends_connection(code) => {
                Self::Lost(Error::new(ErrorKind::Unavailable, message))
            }
            Some(code) => Self::Refused(Error::new(kind(code), message)),
        }
    }

    pub(super) fn into_error(self) -> Error {
        let (Self::Lost(error) | Self::Refused(error)) = self;
        error
    }
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::new(error.code(), &describe_error(&error))
    }
}

impl From<Error> for StatementError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Whether the server shuts down, became read-only, or lost the session's state.
fn ends_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            // Prepared statements are missing after a failover behind a pooler.
            SqlState::INVALID_SQL_STATEMENT_NAME,
        ]
        .contains(code)
}

fn kind(code: &SqlState) -> ErrorKind {
    match *code {
        SqlState::DISK_FULL => ErrorKind::Full,
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable,
    }
}

/// All details of an error on one line. The driver itself prints little more than "db error".
pub(super) fn describe_error(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let mut words = format!("{} ({})", said.message(), said.code().code());
        for more in [said.detail(), said.hint()].into_iter().flatten() {
            words = format!("{words}; {more}");
        }
        return words;
    }
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}

/// Error for a store that cannot be opened, with the fix.
pub(super) fn convert_error(error: &tokio_postgres::Error, address: &Address) -> Error {
    let user = address.config.get_user().unwrap_or("the user");
    let database = address.config.get_dbname().unwrap_or(user);
    let schema = &address.schema;
    let (kind, fix) = match error.code() {
        Some(code) => match *code {
            // A new session has its own statements, so another client shares it.
            SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => {
                return pooler::refused(address);
            }
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
                ErrorKind::Invalid,
                format!(
                    "check user and password in the address, sslcert and sslkey if the server requires a client certificate, and pg_hba.conf on the server (user {user})"
                ),
            ),
            SqlState::INVALID_CATALOG_NAME => (
                ErrorKind::Invalid,
                format!("create the database {database}, or use another one in the address"),
            ),
            SqlState::INSUFFICIENT_PRIVILEGE => {
                (ErrorKind::Invalid, rights(user, database, schema))
            }
            SqlState::TOO_MANY_CONNECTIONS => (
                ErrorKind::Unavailable,
                "raise max_connections on the server, or reduce the number of clients".into(),
            ),
            SqlState::CANNOT_CONNECT_NOW => (
                ErrorKind::Unavailable,
                "wait until the server has started".into(),
            ),
            _ => (ErrorKind::Unavailable, "check the server's log".into()),
        },
        None => without_code(&error.to_string(), &describe_error(error)),
    };
    Error::new(kind, format!("{address}: {}; {fix}", describe_error(error)))
}

/// Errors without a code. The driver distinguishes them only by message.
fn without_code(said: &str, words: &str) -> (ErrorKind, String) {
    let (kind, fix) = match said {
        // With TLS 1.3, a client certificate is rejected after the handshake.
        _ if words.contains("received fatal alert") => (
            ErrorKind::Invalid,
            "the server rejected the client's certificate: check sslcert and sslkey in the address, \
             and ssl_ca_file on the server",
        ),
        "authentication error" if words.contains("channel binding") => (
            ErrorKind::Invalid,
            "channel_binding=require needs TLS and a SCRAM password on the server; \
             write sslmode=verify-full, or channel_binding=prefer",
        ),
        "error performing TLS handshake" => (
            ErrorKind::Invalid,
            "check sslmode and sslrootcert in the address: sslmode=disable turns TLS off, sslmode=require does not verify the certificate, sslmode=verify-full verifies the certificate and its host name",
        ),
        "authentication error" | "invalid configuration" => (
            ErrorKind::Invalid,
            "check user and password in the address, postgres://USER:PASSWORD@HOST/DATABASE",
        ),
        _ => (
            ErrorKind::Unavailable,
            "check host and port in the address, and that the server is running and listens there",
        ),
    };
    (kind, fix.into())
}

/// What a DBA has to run if privileges are missing.
pub(super) fn rights(user: &str, database: &str, schema: &str) -> String {
    format!(
        "have a DBA run the statements that `refrain migrate --store URL --print` prints, or run GRANT CREATE ON DATABASE \"{database}\" TO \"{user}\"; \
         after that the store needs GRANT USAGE ON SCHEMA \"{schema}\", SELECT, INSERT, UPDATE, DELETE ON ALL TABLES \
         and USAGE ON ALL SEQUENCES in it"
    )
}
