//! Publishing: complete when the server confirms the message and did not return it as unroutable.

use std::{collections::HashSet, sync::Mutex as StdMutex};

use lapin::{
    BasicProperties, Channel,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use refrain::{Error, ErrorKind, Result, consume::Message};
use tokio::sync::Semaphore;

use super::{RabbitPublisher, codec, errors, queues};

/// Maximum of messages that wait for a confirmation, each on its own channel.
const CHANNELS_MAX: usize = 64;
/// Maximum of queues remembered as existing; others are checked at every publish.
const KNOWN_MAX: usize = 1_000;

/// Idle channels and the queues known to exist.
///
/// A channel carries one message at a time: an unroutable message is returned without a delivery tag, so
/// only this tells which message it was.
pub(super) struct Pool {
    idle: StdMutex<Vec<Channel>>,
    known: StdMutex<HashSet<String>>,
    turns: Semaphore,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            idle: StdMutex::default(),
            known: StdMutex::default(),
            turns: Semaphore::new(CHANNELS_MAX),
        }
    }
}

/// Publishes to a queue, which is declared if missing, or through an exchange.
pub(super) async fn publish(
    rabbit: &RabbitPublisher,
    destination: &str,
    message: &Message,
) -> Result<()> {
    let properties = codec::properties_of(message)?;
    if let Some(target) = destination.strip_prefix(codec::EXCHANGE) {
        let (exchange, key) = target.split_once('/').unwrap_or((target, ""));
        let exchange = queues::name(exchange)?;
        let key = ShortString::try_new(key).map_err(|_| unroutable(rabbit, destination))?;
        return match send(rabbit, exchange, key, &message.payload, properties).await? {
            Sent::Held => Ok(()),
            Sent::Returned => Err(unroutable(rabbit, destination)),
        };
    }
    publish_to_queue(rabbit, destination, &message.payload, properties).await
}

async fn publish_to_queue(
    rabbit: &RabbitPublisher,
    queue: &str,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<()> {
    let name = queues::name(queue)?;
    for is_known in [rabbit.pool.knows(queue), false] {
        if !is_known {
            let connection = rabbit.desk.connection().await?;
            queues::ensure(&connection, rabbit.server(), queue).await?;
            rabbit.pool.learn(queue);
        }
        let (exchange, name) = (ShortString::default(), name.clone());
        match send(rabbit, exchange, name, payload, properties.clone()).await? {
            Sent::Held => return Ok(()),
            Sent::Returned => rabbit.pool.forget(queue),
        }
    }
    Err(unroutable(rabbit, queue))
}

#[derive(Debug)]
pub(super) enum Sent {
    Held,
    /// No queue received the message.
    Returned,
}

/// Publishes one message and waits for the confirmation.
pub(super) async fn send(
    rabbit: &RabbitPublisher,
    exchange: ShortString,
    key: ShortString,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<Sent> {
    // `acquire` cannot fail: the semaphore is never closed.
    let _turn = rabbit.pool.turns.acquire().await;
    let channel = match rabbit.pool.take() {
        Some(channel) => channel,
        None => open_confirm_channel(rabbit).await?,
    };
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let publishing = async {
        let sent = channel.basic_publish(exchange, key, options, payload, properties);
        sent.await?.await
    };
    // A channel without a timely answer is not reused: the late answer would be taken for the next message's.
    let confirmed = errors::wait_for_reply(rabbit.server(), publishing).await?;
    let is_refused = confirmed.is_nack();
    let is_returned = confirmed.take_message().is_some();
    rabbit.pool.give_back(channel);
    match (is_refused, is_returned) {
        (true, _) => Err(refused(rabbit)),
        (false, true) => Ok(Sent::Returned),
        (false, false) => Ok(Sent::Held),
    }
}

async fn open_confirm_channel(rabbit: &RabbitPublisher) -> Result<Channel> {
    let channel = rabbit.desk.channel().await?;
    let selecting = channel.confirm_select(ConfirmSelectOptions::default());
    errors::wait_for_reply(rabbit.server(), selecting).await?;
    Ok(channel)
}

impl Pool {
    fn take(&self) -> Option<Channel> {
        let mut idle = lock(&self.idle);
        // Drops the channels of a lost connection.
        idle.retain(|channel| channel.status().connected());
        idle.pop()
    }

    fn give_back(&self, channel: Channel) {
        lock(&self.idle).push(channel);
    }

    fn knows(&self, destination: &str) -> bool {
        lock(&self.known).contains(destination)
    }

    fn learn(&self, destination: &str) {
        let mut known = lock(&self.known);
        if known.len() < KNOWN_MAX {
            known.insert(destination.into());
        }
    }

    fn forget(&self, destination: &str) {
        lock(&self.known).remove(destination);
    }
}

/// Ignores poisoning: no code panics while it holds a lock, and the guarded data is always consistent.
fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn unroutable(rabbit: &RabbitPublisher, destination: &str) -> Error {
    let message = format!(
        "no queue at RabbitMQ {} receives messages for {destination:?}; declare the queue, or bind a queue to that exchange and routing key",
        rabbit.server()
    );
    Error::new(ErrorKind::Invalid, message)
}

fn refused(rabbit: &RabbitPublisher) -> Error {
    let message = format!(
        "RabbitMQ at {} rejected the message: its queue is full or unavailable",
        rabbit.server()
    );
    Error::new(ErrorKind::Full, message)
}
