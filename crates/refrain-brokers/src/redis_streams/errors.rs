//! Maps Redis errors to errors that name the server, the cause and the fix.

use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use refrain::{Error, ErrorKind};

/// Converts an error of the Redis client. `shown` is the address without its password.
pub(super) fn convert_error(error: RedisError, shown: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let (kind, what) = match (error.kind(), code) {
        (_, "OOM") => (
            ErrorKind::Full,
            "is full; raise its maxmemory, or add ?trim=handled to the address",
        ),
        (_, "WRONGTYPE") => (
            ErrorKind::Invalid,
            "has a key of that name that is not a stream; use another stream name, or delete the key",
        ),
        (Kind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => (
            ErrorKind::Invalid,
            "rejected the user or password; check USER:PASSWORD before the @ in the address",
        ),
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::Invalid,
            "denied a command because the user lacks permissions; grant it `~STREAM* +@stream +@hash +@scripting +@connection +pexpire +time +info`",
        ),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "is a replica and rejects writes; use the address of the primary",
        ),
        (Kind::Server(ServerErrorKind::BusyLoading), _) => (
            ErrorKind::Unavailable,
            "is still loading its data; try again shortly",
        ),
        (Kind::Io, _) if error.is_timeout() => (ErrorKind::Unavailable, "did not respond in time"),
        (Kind::Io, _) => (
            ErrorKind::Unavailable,
            "is unreachable or closed the connection; check the address, TLS (redis:// or rediss://), and that it is running",
        ),
        _ => (ErrorKind::Unavailable, "returned an error"),
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
