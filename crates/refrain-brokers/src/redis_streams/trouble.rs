//! Maps Redis errors to errors that name the server, the cause and the fix.

use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use refrain::{Error, ErrorKind};

/// Converts an error of the Redis client. `shown` is the address without its password.
pub(super) fn told(error: RedisError, shown: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let (kind, what) = match (error.kind(), code) {
        (_, "OOM") => (
            ErrorKind::Full,
            "is full; raise its maxmemory, or write ?trim=handled behind the address",
        ),
        (_, "WRONGTYPE") => (
            ErrorKind::Invalid,
            "has something else than a stream under that name; name another stream, or remove the key",
        ),
        (Kind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => (
            ErrorKind::Invalid,
            "refused user or password; check what stands before the @ of the address",
        ),
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::Invalid,
            "does not give the user enough rights; grant it `~STREAM* +@stream +@hash +@scripting +@connection +pexpire +time +info`",
        ),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "is a replica and takes no writes; name the primary",
        ),
        (Kind::Server(ServerErrorKind::BusyLoading), _) => (
            ErrorKind::Unavailable,
            "is still loading its data; it answers soon",
        ),
        (Kind::Io, _) if error.is_timeout() => (ErrorKind::Unavailable, "did not answer in time"),
        (Kind::Io, _) => (
            ErrorKind::Unavailable,
            "cannot be reached, or broke off; check address, TLS (redis:// or rediss://) and that it runs",
        ),
        _ => (ErrorKind::Unavailable, "did not do what was asked"),
    };
    Error::new(kind, format!("the Redis server at {shown} {what}")).with_source(error)
}

/// Whether the consumer group is missing: never created, or deleted with its stream.
pub(super) fn is_no_group(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOGROUP" | "UNBLOCKED"))
}

/// Whether the connection is no longer usable.
pub(super) fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error() || error.is_timeout()
        // A server that became a replica or is loading its data.
        || matches!(
            error.kind(),
            Kind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading)
        )
}
