//! Message brokers for Refrain's consumers, one module per broker. The `refrain` crate itself depends on no
//! broker client.
//!
//! Each module has its own Cargo feature and passes the broker conformance suite in `refrain-testkit`.

use std::sync::Arc;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Broker, DeadLetter, Lag, Publisher, Source},
    policy::{
        Address,
        schemes::{Backend, BackendId, broker_usage},
    },
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
mod delivery_buffer;

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
    match supported(&source.url)? {
        #[cfg(feature = "kafka")]
        BackendId::Kafka => Ok(Arc::new(kafka::Kafka::connect(source).await?)),
        #[cfg(feature = "nats")]
        BackendId::Nats => Ok(Arc::new(Box::pin(nats::Nats::connect(source)).await?)),
        #[cfg(feature = "amqp")]
        BackendId::RabbitMq => Ok(Arc::new(Box::pin(rabbitmq::Rabbit::connect(source)).await?)),
        #[cfg(feature = "postgres")]
        BackendId::Postgres => Ok(Arc::new(postgres::PostgresQueue::connect(source).await?)),
        #[cfg(feature = "redis")]
        BackendId::Redis => Ok(Arc::new(
            redis_streams::RedisStreams::connect(source).await?,
        )),
        #[cfg(feature = "sqs")]
        BackendId::Sqs => Ok(Arc::new(sqs::Sqs::connect(source).await?)),
        _ => Err(unknown(&source.url)),
    }
}

/// Connects to a broker to publish only.
///
/// # Errors
/// As for [`open`].
pub async fn open_publisher(url: &str) -> Result<Arc<dyn Publisher>> {
    let address = Address::new(url);
    address.check()?;
    match supported(&address)? {
        #[cfg(feature = "kafka")]
        BackendId::Kafka => Ok(Arc::new(kafka::KafkaPublisher::connect(url).await?)),
        #[cfg(feature = "nats")]
        BackendId::Nats => Ok(Arc::new(Box::pin(nats::NatsPublisher::connect(url)).await?)),
        #[cfg(feature = "amqp")]
        BackendId::RabbitMq => Ok(Arc::new(
            Box::pin(rabbitmq::RabbitPublisher::connect(url)).await?,
        )),
        #[cfg(feature = "postgres")]
        BackendId::Postgres => Ok(Arc::new(postgres::PostgresPublisher::connect(url).await?)),
        #[cfg(feature = "redis")]
        BackendId::Redis => Ok(Arc::new(redis_streams::RedisPublisher::connect(url).await?)),
        #[cfg(feature = "sqs")]
        BackendId::Sqs => Ok(Arc::new(sqs::SqsPublisher::connect(url).await?)),
        _ => Err(unknown(&address)),
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
    match supported(&source.url)? {
        #[cfg(feature = "nats")]
        BackendId::Nats => Box::pin(nats::dead_letters(source, at_most)).await,
        #[cfg(feature = "postgres")]
        BackendId::Postgres => Box::pin(postgres::dead_letters(source, at_most)).await,
        #[cfg(feature = "redis")]
        BackendId::Redis => Box::pin(redis_streams::dead_letters(source, at_most)).await,
        #[cfg(feature = "amqp")]
        BackendId::RabbitMq => Box::pin(rabbitmq::dead_letters(source, at_most)).await,
        #[cfg(feature = "kafka")]
        BackendId::Kafka => kafka::dead_letters(source, at_most).await,
        #[cfg(feature = "sqs")]
        BackendId::Sqs => Box::pin(sqs::dead_letters(source, at_most)).await,
        _ => {
            let _ = at_most;
            Err(unknown(&source.url))
        }
    }
}

/// Returns how many messages of a queue the source's consumer has not finished, as [`Broker::lag`] does, without
/// connecting as that consumer: nothing is created, and no message is delivered.
///
/// # Errors
/// As [`open`].
///
/// # Cancellation
/// May be dropped.
pub async fn lag(source: &Source) -> Result<Lag> {
    source.url.check()?;
    match supported(&source.url)? {
        #[cfg(feature = "nats")]
        BackendId::Nats => Box::pin(nats::lag_of(source)).await,
        #[cfg(feature = "postgres")]
        BackendId::Postgres => Box::pin(postgres::lag_of(source)).await,
        #[cfg(feature = "redis")]
        BackendId::Redis => Box::pin(redis_streams::lag_of(source)).await,
        #[cfg(feature = "amqp")]
        BackendId::RabbitMq => Box::pin(rabbitmq::lag_of(source)).await,
        #[cfg(feature = "kafka")]
        BackendId::Kafka => kafka::lag_of(source).await,
        #[cfg(feature = "sqs")]
        BackendId::Sqs => Box::pin(sqs::lag_of(source)).await,
        _ => Err(unknown(&source.url)),
    }
}

/// Checks that this build supports the broker at an address, without connecting to the broker.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the build lacks the broker; the message contains the build command to add it.
pub fn check_support(address: &Address) -> Result<()> {
    supported(address).map(drop)
}

/// Returns the broker at an address, if this build supports it.
fn supported(address: &Address) -> Result<BackendId> {
    let (scheme, _) = address.as_str().split_once("://").unwrap_or_default();
    let backend = Backend::named(scheme).and_then(|it| Some((it, it.broker?)));
    match backend {
        Some((backend, _)) if is_built(backend.id) => Ok(backend.id),
        Some((backend, broker)) => {
            let message = missing(backend.title, broker.feature);
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        None => Err(unknown(address)),
    }
}

/// Whether this build includes the broker.
fn is_built(id: BackendId) -> bool {
    match id {
        BackendId::Kafka => cfg!(feature = "kafka"),
        BackendId::Nats => cfg!(feature = "nats"),
        BackendId::Postgres => cfg!(feature = "postgres"),
        BackendId::RabbitMq => cfg!(feature = "amqp"),
        BackendId::Redis => cfg!(feature = "redis"),
        BackendId::Sqs => cfg!(feature = "sqs"),
        _ => false,
    }
}

fn missing(title: &str, feature: &str) -> String {
    format!(
        "built without {title} support; rebuild with: cargo install --locked --path crates/refrain-cli --features {feature}"
    )
}

fn unknown(address: &Address) -> Error {
    let message = format!("unsupported broker `{address}`; write {}", broker_usage());
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    //! A build without a broker reports, before anything starts, the build command that adds the broker.

    use super::*;
    use refrain::policy::schemes::brokers;

    #[test]
    fn missing_broker_is_reported_with_build_command() {
        for (backend, broker) in brokers() {
            for scheme in broker.schemes {
                let address = Address::new(format!("{scheme}://u:secret@h"));
                let said = check_support(&address).map_err(|error| error.to_string());
                let expected = match is_built(backend.id) {
                    true => Ok(()),
                    false => Err(missing(backend.title, broker.feature)),
                };
                assert_eq!(said, expected, "{scheme}");
            }
        }
        assert_eq!(
            missing("Kafka", "kafka"),
            "built without Kafka support; rebuild with: cargo install --locked --path crates/refrain-cli --features kafka"
        );
        for address in ["mqtt://u:secret@h", "file:secret", "nats:secret", "secret"] {
            let said = check_support(&Address::new(address)).unwrap_err();
            assert!(said.to_string().starts_with("unsupported broker"), "{said}");
        }
        let said = check_support(&Address::new("mqtt://u:secret@h")).unwrap_err();
        assert!(said.to_string().contains("`mqtt://***@h`"), "{said}");
    }

    /// This crate and the command have a feature for every broker, of the name in the table.
    #[test]
    fn every_broker_has_its_features() {
        let (own, command) = (
            include_str!("../Cargo.toml"),
            include_str!("../../refrain-cli/Cargo.toml"),
        );
        let default = own.lines().find(|it| it.starts_with("default = "));
        for (_, broker) in brokers() {
            let feature = broker.feature;
            assert!(own.contains(&format!("\n{feature} = [")), "{feature}");
            // The command always has the default ones.
            if !default.unwrap().contains(&format!("\"{feature}\"")) {
                let line = format!("{feature} = [\"refrain-brokers/{feature}\"");
                assert!(command.contains(&line), "{line}");
            }
        }
    }
}
