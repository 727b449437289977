//! Queues: found, or made.

use lapin::{
    Connection,
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable, ShortString},
};
use refrain::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::{ANSWER, connect, trouble};

/// Finds the queue, or makes it. Whether it is a quorum queue, which counts deliveries, as far as that can be learnt.
pub(super) async fn find_or_make(
    connection: &Connection,
    server: &str,
    queue: &str,
) -> Result<bool> {
    let name = name(queue)?;
    let passive = QueueDeclareOptions::durable().passive();
    let is_there = declare(connection, server, &name, passive).await? != Declared::IsMissing;
    // Of a queue that is there as we would make it, the same declaration tells the kind, and changes nothing.
    let made = declare(connection, server, &name, QueueDeclareOptions::durable()).await?;
    match (is_there, made) {
        (true, made) => Ok(made == Declared::Is),
        (false, Declared::Is) => {
            tracing::info!(server, queue, "made a durable quorum queue");
            Ok(true)
        }
        (false, _) => {
            let message = format!(
                "there is no queue {queue:?} at RabbitMQ {server}, and this user may not declare it; \
                 declare it, or allow that"
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

/// Makes the queue if it is missing.
pub(super) async fn ensure(connection: &Connection, server: &str, queue: &str) -> Result<()> {
    find_or_make(connection, server, queue).await.map(|_| ())
}

#[derive(PartialEq, Eq)]
enum Declared {
    Is,
    IsOther,
    IsMissing,
}

/// On a channel of its own: a refusal closes the channel.
async fn declare(
    connection: &Connection,
    server: &str,
    queue: &ShortString,
    options: QueueDeclareOptions,
) -> Result<Declared> {
    let channel = connect::channel(connection, server).await?;
    let declaring = channel.queue_declare(queue.clone(), options, quorum());
    let declared = timeout(ANSWER, declaring).await;
    let error = match declared.map_err(|_| trouble::silent(server))? {
        Ok(_) => return Ok(Declared::Is),
        Err(error) => error,
    };
    match trouble::code(&error) {
        Some(trouble::NOT_FOUND) => Ok(Declared::IsMissing),
        Some(trouble::PRECONDITION) => Ok(Declared::IsOther),
        // Whoever may read and write a queue need not be allowed to declare it.
        Some(trouble::REFUSED) if !options.passive => Ok(Declared::IsOther),
        _ => Err(trouble::of(server, &error)),
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

/// AMQP's names are short.
pub(super) fn name(text: &str) -> Result<ShortString> {
    let fitting = ShortString::try_new(text).ok();
    fitting
        .filter(|name| !name.as_str().is_empty())
        .ok_or_else(|| {
            let message = format!("{text:?} is no name for RabbitMQ; take one of 1 to 255 bytes");
            Error::new(ErrorKind::Invalid, message)
        })
}
