//! Message brokers for Refrain's consumers, one file each, so that the library itself names none.
//!
//! Each sits behind a feature of its own name and passes the one suite in `refrain-testkit`.

use std::sync::Arc;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Broker, Publisher, Source},
};

#[cfg(feature = "kafka")]
pub mod kafka;

#[cfg(feature = "nats")]
pub mod nats;

#[cfg(feature = "postgres")]
pub mod postgres;

#[cfg(feature = "amqp")]
pub mod rabbitmq;

#[cfg(feature = "redis")]
pub mod redis_streams;

#[cfg(feature = "sqs")]
pub mod sqs;

#[cfg(any(feature = "postgres", feature = "sqs"))]
mod headers;

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqs"))]
mod shelf;

#[cfg(feature = "nats")]
mod tls;

/// The example of the page about brokers, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/brokers.md")]
struct BrokersPage;

/// Connects to the broker that the source's address names.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a scheme that this build does not know; otherwise as the broker's own `connect`.
pub async fn open(source: &Source) -> Result<Arc<dyn Broker>> {
    let url = source.url.as_str();
    match scheme(url) {
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Arc::new(kafka::Kafka::connect(source).await?)),
        #[cfg(feature = "nats")]
        "nats" | "tls" => Ok(Arc::new(Box::pin(nats::Nats::connect(source)).await?)),
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => Ok(Arc::new(Box::pin(rabbitmq::Rabbit::connect(source)).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(postgres::PostgresQueue::connect(source).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Arc::new(
            redis_streams::RedisStreams::connect(source).await?,
        )),
        #[cfg(feature = "sqs")]
        "sqs" => Ok(Arc::new(sqs::Sqs::connect(source).await?)),
        _ => Err(unknown(url)),
    }
}

/// Connects to a broker to publish only.
///
/// # Errors
/// As for [`open`].
pub async fn open_publisher(url: &str) -> Result<Arc<dyn Publisher>> {
    match scheme(url) {
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Arc::new(kafka::KafkaPublisher::connect(url).await?)),
        #[cfg(feature = "nats")]
        "nats" | "tls" => Ok(Arc::new(Box::pin(nats::NatsPublisher::connect(url)).await?)),
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => Ok(Arc::new(
            Box::pin(rabbitmq::RabbitPublisher::connect(url)).await?,
        )),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(postgres::PostgresPublisher::connect(url).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Arc::new(redis_streams::RedisPublisher::connect(url).await?)),
        #[cfg(feature = "sqs")]
        "sqs" => Ok(Arc::new(sqs::SqsPublisher::connect(url).await?)),
        _ => Err(unknown(url)),
    }
}

/// Without what stands behind a `+`: that is for the broker to read.
fn scheme(url: &str) -> &str {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.split('+').next().unwrap_or_default()
}

fn unknown(url: &str) -> Error {
    let scheme = scheme(url);
    let message = format!(
        "`{scheme}` is no broker that this build knows; write nats://, amqp://, redis://, postgres://, kafka:// or sqs://, and see which features it was built with"
    );
    Error::new(ErrorKind::Unsupported, message)
}
