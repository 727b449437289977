//! RabbitMQ: `amqp://USER:PASSWORD@HOST[:PORT]/VHOST`, or `amqps://` with TLS.
//!
//! An existing queue, quorum or classic, is used as it is; a missing one is declared as a durable quorum
//! queue. Publishes are confirmed, and a message that reaches no queue is an error. To publish through an
//! exchange, write `exchange:NAME/ROUTING-KEY` as the destination; a message that came through an exchange
//! has that as its subject.
//!
//! A message that is nacked with a delay waits in a queue `refrain.delay.MILLISECONDS.QUEUE` and returns
//! when the delay ends. This requires RabbitMQ 3.10. The server deletes unused delay queues.
//!
//! Query parameters: RabbitMQ's own `heartbeat`, `connection_timeout`, `channel_max`, `frame_max` and
//! `auth_mechanism`; `ca=FILE` (PEM, the CA of the server's certificate), `cert=FILE` and `key=FILE` (PEM,
//! the client certificate and its key).

use std::{fmt, sync::Arc, time::Duration};

use refrain::{
    Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source},
};
use tokio::sync::Mutex;

mod address;
mod codec;
mod connect;
mod delay;
mod errors;
mod feed;
mod lag;
mod list;
mod publish;
mod queues;
mod ticket;

use connect::RabbitConnection;
use feed::Feed;
pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;

/// Timeout of a request to the server.
const ANSWER: Duration = Duration::from_secs(5);

/// A consumer of a RabbitMQ queue, with a publisher on a second connection.
///
/// The server's `consumer_timeout` (30 minutes by default) limits how long a delivery may stay
/// unacknowledged. It cannot be extended.
pub struct Rabbit {
    publisher: RabbitPublisher,
    queue: String,
    /// Part of the consumer tag that operators see in the list of consumers.
    consumer: String,
    /// A connection separate from the publisher's, because a server short of memory or disk stops reading
    /// from publishing connections.
    desk: RabbitConnection,
    /// The incoming deliveries; `None` while disconnected.
    feed: Mutex<Option<Feed>>,
}

/// Publisher to queues and through exchanges.
#[derive(Clone)]
pub struct RabbitPublisher {
    desk: Arc<RabbitConnection>,
    pool: Arc<publish::Pool>,
}

impl Rabbit {
    /// Connects, and finds or declares the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](refrain::ErrorKind::Unavailable) if the server is unreachable,
    /// [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) for an unusable address, password, virtual host or queue.
    ///
    /// # Cancellation
    /// May be dropped; the queue may have been declared.
    pub async fn connect(source: &Source) -> Result<Self> {
        let address = address::Address::parse(source.url.as_str())?;
        delay::check_queue_name(&source.queue)?;
        let desk = RabbitConnection::new(address.clone());
        let connection = desk.connection().await?;
        queues::ensure(&connection, desk.server(), &source.queue).await?;
        Ok(Self {
            publisher: RabbitPublisher::new(address),
            queue: source.queue.clone(),
            consumer: source.consumer.clone(),
            desk,
            feed: Mutex::new(None),
        })
    }
}

impl RabbitPublisher {
    /// Connects to publish only.
    ///
    /// # Errors
    /// As [`Rabbit::connect`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let publisher = Self::new(address::Address::parse(url)?);
        publisher.desk.connection().await?;
        Ok(publisher)
    }

    fn new(address: address::Address) -> Self {
        Self {
            desk: Arc::new(RabbitConnection::new(address)),
            pool: Arc::default(),
        }
    }

    fn server(&self) -> &str {
        self.desk.server()
    }
}

impl Publisher for RabbitPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(publish::publish(self, destination, message))
    }
}

impl Publisher for Rabbit {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for Rabbit {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(feed::pull(self, at_most, wait))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: false,
            // A quorum queue also counts prefetched deliveries that no handler saw.
            counts_attempts: false,
            ack_wait: None,
            age_max: None,
        }
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(lag::lag(&self.desk, &self.queue))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            *self.feed.lock().await = None;
            self.desk.close().await;
            self.publisher.desk.close().await;
            Ok(())
        })
    }
}

impl fmt::Debug for Rabbit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rabbit")
            .field("server", &self.desk.server())
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RabbitPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitPublisher")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}
