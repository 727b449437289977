//! Message brokers for Refrain's consumers, one file each, so that the library itself names none.
//!
//! Each sits behind a feature of its own name and passes the one suite in `refrain-testkit`.

use std::sync::Arc;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Broker, Publisher, Source},
};

#[cfg(feature = "nats")]
pub mod nats;

#[cfg(feature = "amqp")]
pub mod rabbitmq;

#[cfg(feature = "nats")]
mod tls;

/// Connects to the broker that the source's address names.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a scheme that this build does not know; otherwise as the broker's own `connect`.
pub async fn open(source: &Source) -> Result<Arc<dyn Broker>> {
    let url = source.url.as_str();
    // Boxed: the drivers' futures are large and deep, and every caller's would be so, too.
    #[cfg(feature = "nats")]
    if nats::SCHEMES.contains(&scheme(url)) {
        return Ok(Arc::new(Box::pin(nats::Nats::connect(source)).await?));
    }
    #[cfg(feature = "amqp")]
    if rabbitmq::SCHEMES.contains(&scheme(url)) {
        return Ok(Arc::new(Box::pin(rabbitmq::Rabbit::connect(source)).await?));
    }
    Err(unknown(url))
}

/// Connects to a broker to publish only.
///
/// # Errors
/// As for [`open`].
pub async fn open_publisher(url: &str) -> Result<Arc<dyn Publisher>> {
    #[cfg(feature = "nats")]
    if nats::SCHEMES.contains(&scheme(url)) {
        return Ok(Arc::new(Box::pin(nats::NatsPublisher::connect(url)).await?));
    }
    #[cfg(feature = "amqp")]
    if rabbitmq::SCHEMES.contains(&scheme(url)) {
        let publisher = Box::pin(rabbitmq::RabbitPublisher::connect(url)).await?;
        return Ok(Arc::new(publisher));
    }
    Err(unknown(url))
}

/// What stands before `://`. Nothing else is ever shown: an address may carry a password.
fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

fn unknown(url: &str) -> Error {
    let scheme = scheme(url);
    let message = format!(
        "`{scheme}` is no broker that this build knows; write nats://, amqp://, redis://, postgres://, kafka:// or sqs://, and see which features it was built with"
    );
    Error::new(ErrorKind::Unsupported, message)
}
