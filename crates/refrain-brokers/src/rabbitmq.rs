//! RabbitMQ: `amqp://USER:PASSWORD@HOST[:PORT]/VHOST`, or `amqps://` with TLS.
//!
//! A queue that is there is used as it is, quorum or classic; one that is missing is declared as a durable quorum queue.
//! Publishing is confirmed, and a message that no queue takes is an error.
//! To publish through an exchange, write `exchange:NAME/ROUTING-KEY` for the destination;
//! a message that came through one has that for its subject.
//!
//! What is given back with a delay waits in a queue `refrain.delay.MILLISECONDS.QUEUE`, from which it returns when its time has come;
//! this wants RabbitMQ 3.10. Such queues go by themselves when they are not used.
//!
//! Behind a `?` come RabbitMQ's own `heartbeat`, `connection_timeout`, `channel_max`, `frame_max` and `auth_mechanism`,
//! and `ca=FILE` (PEM, who signs the server's certificate), `cert=FILE` and `key=FILE` (PEM, who we are).

use std::{fmt, sync::Arc, time::Duration};

use refrain::{
    Result,
    consume::{Answer, Broker, Delivery, Guarantees, Message, Publisher, Source},
};
use tokio::sync::Mutex;

mod address;
mod codec;
mod connect;
mod delay;
mod feed;
mod publish;
mod queues;
mod ticket;
mod trouble;

use connect::Desk;
use feed::Feed;

/// How long the server may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A consumer of a queue, and a publisher beside it.
///
/// How long a delivery may be held is the server's `consumer_timeout`, half an hour by default, and cannot be extended.
pub struct Rabbit {
    publisher: RabbitPublisher,
    queue: String,
    /// For the tag that operators see in the list of consumers.
    consumer: String,
    /// A connection apart from the publisher's: a server that is short of room stops reading from those who publish.
    desk: Desk,
    /// What comes in; `None` while there is no connection.
    feed: Mutex<Option<Feed>>,
}

/// A publisher to queues, and through exchanges.
#[derive(Clone)]
pub struct RabbitPublisher {
    desk: Arc<Desk>,
    pool: Arc<publish::Pool>,
}

impl Rabbit {
    /// Connects, and finds or makes the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](refrain::ErrorKind::Unavailable) when the server cannot be reached,
    /// [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) for an address, a password, a virtual host or a queue that cannot be used.
    ///
    /// # Cancellation
    /// May be dropped; the queue may have been made.
    pub async fn connect(source: &Source) -> Result<Self> {
        let address = address::Address::parse(source.url.as_str())?;
        delay::fits(&source.queue)?;
        let desk = Desk::new(address.clone());
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
            desk: Arc::new(Desk::new(address)),
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
            // A quorum queue counts also what it sent ahead and nobody looked at.
            counts_attempts: false,
            ack_wait: None,
            age_max: None,
        }
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
