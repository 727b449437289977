//! Converts errors of the driver and the server into messages with the fix.

use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use refrain::{Error, ErrorKind, RecordId};

/// Error for an operator. `shown` is the address without the password.
pub(super) fn told(error: RedisError, shown: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let (kind, what) = match (error.kind(), code) {
        (_, "OOM") => (
            ErrorKind::Full,
            "is full; raise its maxmemory, or shorten retention",
        ),
        (_, "WRONGTYPE") => (
            ErrorKind::Corrupt,
            "has a key under the store's prefix that is not the store's; choose another ?prefix=",
        ),
        (Kind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => (
            ErrorKind::Unavailable,
            "refused user or password; check what stands before the @ of the address",
        ),
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::Unavailable,
            "does not give the user enough rights; grant it `~PREFIX* &PREFIX* +@read +@write +@scripting +@transaction +@connection +@pubsub +info +config|get +time`",
        ),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "is a replica and takes no writes; name the primary, or use redis+sentinel://",
        ),
        (Kind::Server(ServerErrorKind::BusyLoading), _) => (
            ErrorKind::Unavailable,
            "is still loading its records; it answers soon",
        ),
        (Kind::Io, _) if error.is_timeout() => (
            ErrorKind::Unavailable,
            "did not answer in time; check address, TLS (redis:// or rediss://) and what stands between",
        ),
        (Kind::Io, _) => (
            ErrorKind::Unavailable,
            "cannot be reached, or broke off; check address, TLS (redis:// or rediss://) and that it runs",
        ),
        (Kind::MasterNameNotFoundBySentinel, _) => (
            ErrorKind::Unavailable,
            "has no such service by its Sentinels; check the name behind the last /",
        ),
        _ => (ErrorKind::Unavailable, "did not do what was asked"),
    };
    let told = Error::new(kind, format!("the Redis server at {shown} {what}"));
    match was_refused(&error) {
        true => told.unapplied().with_source(error),
        false => told.with_source(error),
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
pub(super) fn unheard_of(id: RecordId) -> Error {
    let message = format!("the server's answer about record {id} cannot be read");
    Error::new(ErrorKind::Corrupt, message)
}

/// Wrong number of answers.
pub(super) fn miscounted() -> Error {
    let message = "a script of the store gave another number of answers than it was asked for";
    Error::new(ErrorKind::Corrupt, message)
}

/// Error that a script found in a record.
pub(super) fn found(what: &[u8], id: RecordId, shown: &str) -> Error {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("record {id} {what}"));
    match what {
        b"version" => Error::new(
            ErrorKind::Unsupported,
            format!(
                "record {id} is of a newer version of the format than this build reads; use that build"
            ),
        ),
        b"foreign" => corrupt("is another record under its key"),
        b"outcome" => corrupt("is completed, and its outcome is gone before its time"),
        b"lost" => lost(shown),
        b"other" => replaced(shown),
        _ => corrupt("is damaged: it does not fit its digest"),
    }
}

/// The runtime of the connection has shut down.
pub(super) fn ended(shown: &str) -> Error {
    let message = format!("the runtime that talks to the Redis server at {shown} has ended");
    Error::new(ErrorKind::Unavailable, message)
}

/// The server did not answer in time.
pub(super) fn silent(shown: &str) -> Error {
    let message = format!(
        "the Redis server at {shown} did not answer in time; check address, TLS (redis:// or rediss://) and what stands between"
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// The server has lost acknowledged writes.
pub(super) fn lost(shown: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the Redis server at {shown} has lost this store's mark, and records with it: nothing is granted, \
             because what ran would run again; restore its data, or stop all nodes and begin a new store \
             with ?accept_lost_records=true in the address"
        ),
    )
    .unapplied()
}

/// The server has no mark, but there is evidence of an earlier store.
pub(super) fn lost_before(what: &str, shown: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the Redis server at {shown} has lost this store's records ({what}): every key would be new, \
             and what ran would run again; restore its data, or stop all nodes and begin a new store \
             with ?accept_lost_records=true in the address, once"
        ),
    )
}

/// The server holds another store than the one that was opened.
pub(super) fn replaced(shown: &str) -> Error {
    let message = format!(
        "the Redis server at {shown} holds another store than before; restart Refrain if that is meant"
    );
    Error::new(ErrorKind::Unavailable, message)
}
