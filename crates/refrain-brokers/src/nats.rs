//! NATS JetStream: `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST…]`, or `tls://` to require TLS.
//!
//! A queue is the name of a stream or a subject of a stream. If neither exists, a stream is created: file
//! storage, one subject, no limits except the server's. The consumer is a durable pull consumer with
//! explicit acknowledgements; an existing consumer keeps its configuration.
//!
//! Query parameters: `credentials=FILE` (a `.creds` file), `ca=FILE` (PEM, the CA of the servers'
//! certificates), `cert=FILE` and `key=FILE` (PEM, the client certificate and its key).

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{self, Context, consumer::PullConsumer};
use refrain::{
    Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source},
};

mod address;
mod codec;
mod connect;
mod errors;
mod lag;
mod list;
mod publish;
mod pull;
mod streams;
mod ticket;

use connect::NatsConnection;
pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;

/// Timeout of a JetStream request.
const ANSWER: Duration = Duration::from_secs(5);

/// A durable consumer of a JetStream stream, with a publisher on the same connection.
#[derive(Debug)]
pub struct Nats {
    publisher: NatsPublisher,
    consumer: PullConsumer,
    guarantees: Guarantees,
}

/// Publisher to the subjects of JetStream streams.
#[derive(Clone)]
pub struct NatsPublisher {
    context: Context,
    link: Arc<NatsConnection>,
}

impl Nats {
    /// Connects, and finds or creates the stream and the durable consumer.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](refrain::ErrorKind::Unavailable) if the server is unreachable or has no
    /// JetStream, [`ErrorKind::Invalid`](refrain::ErrorKind::Invalid) for an invalid address or name, or an
    /// unusable consumer.
    ///
    /// # Cancellation
    /// May be dropped; the stream or the consumer may have been created.
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

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(lag::lag(self))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let drained = self.publisher.context.client().drain().await;
            drained.map_err(|error| errors::unavailable(self.publisher.server(), error))
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
