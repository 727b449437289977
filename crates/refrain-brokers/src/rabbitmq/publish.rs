//! Publishing: done when the server has confirmed the message, and that a queue took it.

use std::{collections::HashSet, sync::Mutex as StdMutex};

use lapin::{
    BasicProperties, Channel,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use refrain::{Error, ErrorKind, Result, consume::Message};
use tokio::sync::Semaphore;

use super::{RabbitPublisher, codec, queues, trouble};

/// How many messages may wait for their confirmation at once, each on a channel of its own.
const CHANNELS_MAX: usize = 64;
/// Destinations that are known to be there; more of them are asked for each time.
const KNOWN_MAX: usize = 1_000;

/// Channels that nobody uses at the moment, and what is known of the server.
///
/// A channel carries one message at a time: a message that no queue takes comes back without a number,
/// and only so it is certain which one it was.
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

/// Publishes to a queue, which is made if it is missing, or through an exchange.
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
    to_queue(rabbit, destination, &message.payload, properties).await
}

async fn to_queue(
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
    /// No queue takes it.
    Returned,
}

/// Publishes one message and waits for the server's word.
pub(super) async fn send(
    rabbit: &RabbitPublisher,
    exchange: ShortString,
    key: ShortString,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<Sent> {
    // The semaphore is never closed.
    let _turn = rabbit.pool.turns.acquire().await;
    let channel = match rabbit.pool.take() {
        Some(channel) => channel,
        None => confirming(rabbit).await?,
    };
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let publishing = async {
        let sent = channel.basic_publish(exchange, key, options, payload, properties);
        sent.await?.await
    };
    // A channel whose answer did not come is never used again: the next message would get it.
    let confirmed = trouble::answered(rabbit.server(), publishing).await?;
    let is_refused = confirmed.is_nack();
    let is_returned = confirmed.take_message().is_some();
    rabbit.pool.give_back(channel);
    match (is_refused, is_returned) {
        (true, _) => Err(refused(rabbit)),
        (false, true) => Ok(Sent::Returned),
        (false, false) => Ok(Sent::Held),
    }
}

async fn confirming(rabbit: &RabbitPublisher) -> Result<Channel> {
    let channel = rabbit.desk.channel().await?;
    let selecting = channel.confirm_select(ConfirmSelectOptions::default());
    trouble::answered(rabbit.server(), selecting).await?;
    Ok(channel)
}

impl Pool {
    fn take(&self) -> Option<Channel> {
        let mut idle = lock(&self.idle);
        // Those of a connection that was lost are of no use to anybody.
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

/// Nothing here panics while it holds a lock, and what a lock guards is whole at every moment.
fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn unroutable(rabbit: &RabbitPublisher, destination: &str) -> Error {
    let message = format!(
        "no queue at RabbitMQ {} takes {destination:?}; declare it, or bind a queue to that exchange and routing key",
        rabbit.server()
    );
    Error::new(ErrorKind::Invalid, message)
}

fn refused(rabbit: &RabbitPublisher) -> Error {
    let message = format!(
        "RabbitMQ at {} did not take the message: its queue is full, or not available",
        rabbit.server()
    );
    Error::new(ErrorKind::Full, message)
}
