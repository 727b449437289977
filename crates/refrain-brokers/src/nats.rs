//! NATS JetStream: `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST…]`, or `tls://` where the connection must be encrypted.
//!
//! A queue is the name of a stream, or a subject that a stream takes.
//! Where there is neither, a stream is made: kept in files, one subject, no limits but the server's own.
//! The consumer is a durable pull consumer with explicit acknowledgements; one that is there is used as it is.
//!
//! Behind a `?` come `credentials=FILE` (a `.creds` file), `ca=FILE` (PEM, who signs the servers' certificates),
//! `cert=FILE` and `key=FILE` (PEM, who we are).

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{self, Context, consumer::PullConsumer};
use refrain::{
    Result,
    consume::{Answer, Broker, Delivery, Guarantees, Message, Publisher, Source},
};

mod address;
mod codec;
mod connect;
mod list;
mod publish;
mod pull;
mod streams;
mod ticket;
mod trouble;

use connect::Link;
pub(crate) use list::dead_letters;

/// How long JetStream may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A consumer of a stream, and a publisher beside it.
#[derive(Debug)]
pub struct Nats {
    publisher: NatsPublisher,
    consumer: PullConsumer,
    guarantees: Guarantees,
}

/// A publisher to any subject that a stream takes.
#[derive(Clone)]
pub struct NatsPublisher {
    context: Context,
    link: Arc<Link>,
}

impl Nats {
    /// Connects, and finds or makes the stream and the durable consumer.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](refrain::ErrorKind::Unavailable) when the server cannot be reached or has no JetStream,
    /// [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) for an address, a name or a consumer that cannot be used.
    ///
    /// # Cancellation
    /// May be dropped; a stream or consumer may have been made.
    pub async fn connect(source: &Source) -> Result<Self> {
        let publisher = NatsPublisher::connect(source.url.as_str()).await?;
        let found = streams::find(&publisher, source).await?;
        Ok(Self {
            guarantees: found.guarantees,
            consumer: found.consumer,
            publisher,
        })
    }
}

impl NatsPublisher {
    /// Connects to publish only.
    ///
    /// # Errors
    /// As [`Nats::connect`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = address::Address::parse(url)?;
        let (client, link) = connect::connect(&address).await?;
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER);
        Ok(Self { context, link })
    }

    fn server(&self) -> &str {
        &self.link.server
    }
}

impl Publisher for NatsPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(publish::publish(self, destination, message))
    }
}

impl Publisher for Nats {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for Nats {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(pull::pull(self, at_most, wait))
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let drained = self.publisher.context.client().drain().await;
            drained.map_err(|error| trouble::unavailable(self.publisher.server(), error))
        })
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}
