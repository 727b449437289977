//! Message brokers for Refrain's consumers, one file each, so that the library itself names none.
//!
//! Each sits behind a feature of its own name and passes the one suite in `refrain-testkit`.

use std::sync::Arc;

use refrain::{
    Error, ErrorKind, Result,
    consume::{Broker, Publisher, Source},
};

/// Connects to the broker that the source's address names.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a scheme that this build does not know; otherwise as the broker's own `connect`.
pub async fn open(source: &Source) -> Result<Arc<dyn Broker>> {
    Err(unknown(source.url.as_str()))
}

/// Connects to a broker to publish only.
///
/// # Errors
/// As for [`open`].
pub async fn open_publisher(url: &str) -> Result<Arc<dyn Publisher>> {
    Err(unknown(url))
}

fn unknown(url: &str) -> Error {
    let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
    let message = format!(
        "`{scheme}` is no broker that this build knows; write nats://, amqp://, redis://, postgres://, kafka:// or sqs://, and see which features it was built with"
    );
    Error::new(ErrorKind::Unsupported, message)
}
