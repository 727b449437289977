//! Finds or declares queues.

use std::time::Duration;

use lapin::{
    Connection,
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable, ShortString},
};
use refrain::{Error, ErrorKind, Result};
use tokio::time::{sleep, timeout};

use super::{ANSWER, connect, errors};

/// A server killed right after it declares a quorum queue may lose the queue and its messages, because it
/// persists the declaration up to 0.5 s later. So a new queue stays empty for this time.
const SETTLING: Duration = Duration::from_secs(1);

/// Declares a durable quorum queue unless the queue exists; an existing queue is used as it is.
pub(super) async fn ensure(connection: &Connection, server: &str, queue: &str) -> Result<()> {
    let name = name(queue)?;
    if exists(connection, server, &name).await? {
        return Ok(());
    }
    declare_durably(connection, server, name, quorum()).await?;
    tracing::info!(server, queue, "declared a durable quorum queue");
    Ok(())
}

/// Declares a queue and waits until the declaration survives a server crash.
pub(super) async fn declare_durably(
    connection: &Connection,
    server: &str,
    queue: ShortString,
    arguments: FieldTable,
) -> Result<()> {
    declare(connection, server, queue, arguments).await?;
    sleep(SETTLING).await;
    Ok(())
}

/// Declares a queue; for an existing queue with the same arguments, resets its expiry timer.
pub(super) async fn declare(
    connection: &Connection,
    server: &str,
    queue: ShortString,
    arguments: FieldTable,
) -> Result<()> {
    let channel = connect::channel(connection, server).await?;
    let declaring = channel.queue_declare(queue, QueueDeclareOptions::durable(), arguments);
    errors::wait_for_reply(server, declaring).await.map(|_| ())
}

/// Checks whether a queue exists.
pub(super) async fn exists(
    connection: &Connection,
    server: &str,
    queue: &ShortString,
) -> Result<bool> {
    let count = count(connection, server, queue).await?;
    Ok(count.is_some())
}

/// Returns the number of messages that wait in a queue; `None` if the queue does not exist.
///
/// On a separate channel, because a missing queue closes the channel.
pub(super) async fn count(
    connection: &Connection,
    server: &str,
    queue: &ShortString,
) -> Result<Option<u32>> {
    let channel = connect::channel(connection, server).await?;
    let passive = QueueDeclareOptions::durable().passive();
    let asking = channel.queue_declare(queue.clone(), passive, FieldTable::default());
    let asked = timeout(ANSWER, asking).await;
    match asked.map_err(|_| errors::timed_out(server))? {
        Ok(found) => Ok(Some(found.message_count())),
        Err(error) if errors::code(&error) == Some(errors::NOT_FOUND) => Ok(None),
        Err(error) => Err(errors::convert_error(server, &error)),
    }
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("quorum".into()),
    );
    arguments
}

/// Checks the length of a name: AMQP allows 1 to 255 bytes.
pub(super) fn name(text: &str) -> Result<ShortString> {
    let fitting = ShortString::try_new(text).ok();
    fitting
        .filter(|name| !name.as_str().is_empty())
        .ok_or_else(|| {
            let message = format!("invalid RabbitMQ name {text:?}; use 1 to 255 bytes");
            Error::new(ErrorKind::Invalid, message)
        })
}
