//! Message brokers for Refrain's consumers, one module per broker. The `refrain` crate itself depends on no
//! broker client.
//!
//! Each module has its own Cargo feature and passes the broker conformance suite in `refrain-testkit`.

use std::sync::Arc;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Broker, DeadLetter, Publisher, Source},
    policy::Address,
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

/// Compiles the examples of the brokers page as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/brokers.md")]
struct BrokersPage;

/// Connects to the broker that the source's address names.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if this build does not support the scheme; otherwise the errors of the
/// broker's `connect`.
pub async fn open(source: &Source) -> Result<Arc<dyn Broker>> {
    source.url.check()?;
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
    Address::new(url).check()?;
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

/// Lists up to `at_most` dead letters of a queue, oldest first, without removing them.
///
/// The source's consumer is the consumer of the redrive. Dead letters that it acknowledged were already
/// redriven and are not listed. Reading changes nothing, except on two brokers: RabbitMQ and SQS hide the
/// listed letters from other consumers until the list is complete, and quorum queues and SQS count the read
/// as a delivery. These two do not list letters that another consumer holds.
///
/// # Errors
/// As [`open`].
///
/// # Cancellation
/// May be dropped. SQS then hides the letters read so far for up to 30 seconds.
pub async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    source.url.check()?;
    match scheme(source.url.as_str()) {
        #[cfg(feature = "nats")]
        "nats" | "tls" => Box::pin(nats::dead_letters(source, at_most)).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Box::pin(postgres::dead_letters(source, at_most)).await,
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Box::pin(redis_streams::dead_letters(source, at_most)).await,
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => Box::pin(rabbitmq::dead_letters(source, at_most)).await,
        #[cfg(feature = "kafka")]
        "kafka" => kafka::dead_letters(source, at_most).await,
        #[cfg(feature = "sqs")]
        "sqs" => Box::pin(sqs::dead_letters(source, at_most)).await,
        _ => {
            let _ = at_most;
            Err(unknown(source.url.as_str()))
        }
    }
}

/// Returns the URL scheme without a `+` suffix; the broker's module parses the suffix.
fn scheme(url: &str) -> &str {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.split('+').next().unwrap_or_default()
}

/// The supported brokers: URL schemes, name, Cargo feature, and whether this build includes the broker.
const BROKERS: [(&[&str], &str, &str, bool); 6] = [
    (&["nats", "tls"], "NATS", "nats", cfg!(feature = "nats")),
    (
        &["amqp", "amqps"],
        "RabbitMQ",
        "amqp",
        cfg!(feature = "amqp"),
    ),
    (
        &["redis", "rediss"],
        "Redis Streams",
        "redis",
        cfg!(feature = "redis"),
    ),
    (
        &["postgres", "postgresql"],
        "PostgreSQL",
        "postgres",
        cfg!(feature = "postgres"),
    ),
    (&["kafka"], "Kafka", "kafka", cfg!(feature = "kafka")),
    (&["sqs"], "SQS", "sqs", cfg!(feature = "sqs")),
];

/// Checks that this build supports the broker at an address, without connecting to the broker.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the build lacks the broker; the message contains the build command to add it.
pub fn check_support(address: &Address) -> Result<()> {
    let scheme = scheme(address.as_str());
    let broker = BROKERS.iter().find(|(names, ..)| names.contains(&scheme));
    let message = match broker {
        Some((.., true)) => return Ok(()),
        Some((_, name, feature, _)) => missing(name, feature),
        None => format!(
            "`{address}` is no address of a broker; write nats://, amqp://, redis://, postgres://, kafka:// or sqs://"
        ),
    };
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn missing(name: &str, feature: &str) -> String {
    format!(
        "built without {name} support; rebuild with: cargo build --release --features {feature}"
    )
}

fn unknown(url: &str) -> Error {
    let unsupported = check_support(&Address::new(url)).err();
    unsupported.unwrap_or_else(|| Error::new(ErrorKind::Unsupported, "unknown broker"))
}

#[cfg(test)]
mod tests {
    //! A build without a broker reports, before anything starts, the build command that adds the broker.

    use super::*;

    #[test]
    fn a_broker_that_is_not_built_in_is_named_with_the_command() {
        for (schemes, name, feature, is_built) in BROKERS {
            for scheme in schemes {
                let address = Address::new(format!("{scheme}://u:secret@h"));
                let said = check_support(&address).map_err(|error| error.to_string());
                let expected = match is_built {
                    true => Ok(()),
                    false => Err(missing(name, feature)),
                };
                assert_eq!(said, expected, "{scheme}");
            }
        }
        assert_eq!(
            missing("Kafka", "kafka"),
            "built without Kafka support; rebuild with: cargo build --release --features kafka"
        );
        let stranger = check_support(&Address::new("mqtt://u:secret@h"));
        let said = stranger.unwrap_err().to_string();
        assert!(said.contains("`mqtt://***@h`"), "{said}");
    }

    /// The command-line crate uses the same feature names as this crate.
    #[test]
    fn the_command_has_the_features_that_are_named() {
        let manifest = include_str!("../../refrain-cli/Cargo.toml");
        for feature in ["nats", "amqp", "kafka", "sqs"] {
            let line = format!("{feature} = [\"refrain-brokers/{feature}\"");
            assert!(manifest.contains(&line), "{line}");
        }
    }
}
