//! Checks the server, and joins and leaves the consumer group.

use std::time::Duration;

use ::redis::{RedisError, Script, cmd};
use refrain::{Error, ErrorKind, Result};

use super::{StreamMember, connection::StreamConnection, millis};

/// The first version with XAUTOCLAIM, which claims overdue entries in one command.
const VERSION_MIN: (u32, u32) = (6, 2);
/// A member without pending entries is removed after this time without a sign of life.
const SILENT_MAX: Duration = Duration::from_secs(86_400);

/// Checks that the server supports streams, and warns if its settings may lose them.
pub(super) async fn check_server(line: &StreamConnection) -> Result<()> {
    let info: String = line.send_with_retry(&cmd("INFO")).await?;
    let shown = &line.shown;
    let fact = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.trim().split_once(':'));
        lines.find(|(field, _)| *field == name).map(|(_, it)| it)
    };
    let version = version(fact("redis_version").unwrap_or_default());
    if version < VERSION_MIN {
        let message = format!(
            "the Redis server at {shown} is version {}.{}; Redis Streams need 6.2 or newer",
            version.0, version.1
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let policy = fact("maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" {
        tracing::warn!(
            "the Redis server at {shown} evicts keys when it is full (maxmemory-policy is {policy}): \
             a stream may be evicted with all its messages; set maxmemory-policy noeviction"
        );
    }
    if fact("aof_enabled") == Some("0") {
        tracing::warn!(
            "the Redis server at {shown} may lose messages when it restarts: appendonly is off; set appendonly yes"
        );
    }
    Ok(())
}

/// Creates the group if missing, and removes members that ended long ago.
pub(super) async fn join(seat: &StreamMember) -> Result<()> {
    let start = if seat.settings.starts_new { "$" } else { "0" };
    make_group(seat, start).await?;
    remove_members(seat, "").await.map(drop)
}

/// Creates the group again, from the beginning of the stream, so that no entry is skipped; handled messages
/// are known by their keys.
pub(super) async fn join_again(seat: &StreamMember) -> Result<()> {
    let StreamMember { stream, group, .. } = seat;
    tracing::warn!(
        stream,
        group,
        "the consumer group does not exist any more, perhaps its stream was deleted; creating it again at the start of the stream"
    );
    make_group(seat, "0").await
}

/// Removes this member if it has no pending entries.
pub(super) async fn leave(seat: &StreamMember) -> Result<()> {
    match remove_members(seat, &seat.consumer).await {
        Err(error) if error.kind() != ErrorKind::Unavailable => Err(error),
        // If the server is unavailable, another member's join removes this one later.
        _ => Ok(()),
    }
}

async fn make_group(seat: &StreamMember, start: &str) -> Result<()> {
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(&seat.stream).arg(&seat.group);
    create.arg(start).arg("MKSTREAM");
    match seat.line.send_with_retry::<()>(&create).await {
        Err(error) if group_exists(&error) => Ok(()),
        made => made,
    }
}

fn group_exists(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(|source| source.code() == Some("BUSYGROUP"))
}

async fn remove_members(seat: &StreamMember, leaving: &str) -> Result<i64> {
    let script = Script::new(include_str!("../../lua/streams-tidy.lua"));
    let mut tidy = script.prepare_invoke();
    tidy.key(&seat.stream).arg(&seat.group);
    tidy.arg(leaving).arg(millis(SILENT_MAX));
    seat.line.run(&tidy).await
}

fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
