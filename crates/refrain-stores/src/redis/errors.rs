//! Converts errors of the driver and the server into messages with the fix.

use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use refrain::{Error, ErrorKind, RecordId};

/// Error for an operator. `shown` is the address without the password.
pub(super) fn convert_error(error: RedisError, shown: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let (kind, what) = match (error.kind(), code) {
        (_, "OOM") => (
            ErrorKind::Full,
            "is full; raise its maxmemory, or shorten retention",
        ),
        (_, "WRONGTYPE") => (
            ErrorKind::Corrupt,
            "has a foreign key under the store's prefix; use another ?prefix=",
        ),
        (Kind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => (
            ErrorKind::Unavailable,
            "rejected the user or password; check USER:PASSWORD before the @ in the address",
        ),
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::Unavailable,
            "denied a command because the user lacks permissions; grant it `~PREFIX* &PREFIX* +@read +@write +@scripting +@transaction +@connection +@pubsub +info +config|get +time`",
        ),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "is a replica and rejects writes; use the address of the primary, or redis+sentinel://",
        ),
        (Kind::Server(ServerErrorKind::BusyLoading), _) => (
            ErrorKind::Unavailable,
            "is still loading its data; try again shortly",
        ),
        (Kind::Io, _) if error.is_timeout() => (
            ErrorKind::Unavailable,
            "did not respond in time; check the address, TLS (redis:// or rediss://) and firewalls",
        ),
        (Kind::Io, _) => (
            ErrorKind::Unavailable,
            "is unreachable or closed the connection; check the address, TLS (redis:// or rediss://), and that it is running",
        ),
        (Kind::MasterNameNotFoundBySentinel, _) => (
            ErrorKind::Unavailable,
            "is not known to its Sentinels as a service; check the service name after the last /",
        ),
        _ => (ErrorKind::Unavailable, "returned an error"),
    };
    let converted = Error::new(kind, format!("the Redis server at {shown} {what}"));
    match was_refused(&error) {
        true => converted.unapplied().with_source(error),
        false => converted.with_source(error),
    }
}

/// Whether the server rejected the command without running it.
fn was_refused(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, NoPerm, ReadOnly};
    matches!(
        error.kind(),
        Kind::AuthenticationFailed
            | Kind::Server(BusyLoading | ClusterDown | MasterDown | NoPerm | ReadOnly)
    )
}

/// Answer that none of the store's scripts returns.
pub(super) fn undecodable_reply(id: RecordId) -> Error {
    let message = format!("cannot decode the server's reply about record {id}");
    Error::new(ErrorKind::Corrupt, message)
}

/// Wrong number of answers.
pub(super) fn wrong_reply_count() -> Error {
    let message = "a Lua script of the store returned the wrong number of replies";
    Error::new(ErrorKind::Corrupt, message)
}

/// Error that a script found in a record.
pub(super) fn script_error(what: &[u8], id: RecordId, shown: &str) -> Error {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("record {id} {what}"));
    match what {
        b"version" => Error::new(
            ErrorKind::Unsupported,
            format!(
                "record {id} has a newer format version than this build supports; upgrade Refrain"
            ),
        ),
        b"foreign" => corrupt("has the contents of another record"),
        b"outcome" => {
            corrupt("is completed, but its outcome is missing before the end of retention")
        }
        b"lost" => mark_lost(shown),
        b"other" => store_replaced(shown),
        _ => corrupt("is damaged: its digest does not match"),
    }
}

/// The runtime of the connection has shut down.
pub(super) fn runtime_stopped(shown: &str) -> Error {
    let message =
        format!("the runtime of the connection to the Redis server at {shown} has stopped");
    Error::new(ErrorKind::Unavailable, message)
}

/// The server did not answer in time.
pub(super) fn timed_out(shown: &str) -> Error {
    let message = format!(
        "the Redis server at {shown} did not respond in time; check the address, TLS (redis:// or rediss://) and firewalls"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The server has lost acknowledged writes.
pub(super) fn mark_lost(shown: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the Redis server at {shown} has lost this store's mark, and records with it: no claim is granted, because completed requests would execute again; restore the server's data, or stop all nodes and start a new store with ?accept_lost_records=true in the address"
        ),
    )
    .unapplied()
}

/// The server has no mark, but there is evidence of an earlier store.
pub(super) fn records_lost(what: &str, shown: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the Redis server at {shown} has lost this store's records ({what}): every key would be new, and completed requests would execute again; restore the server's data, or stop all nodes and start a new store once with ?accept_lost_records=true in the address"
        ),
    )
}

/// The server holds another store than the one that was opened.
pub(super) fn store_replaced(shown: &str) -> Error {
    let message = format!(
        "the Redis server at {shown} holds a different store than before; restart Refrain if this is intended"
    );
    Error::new(ErrorKind::Unavailable, message)
}
