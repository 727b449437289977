//! Where a consumer's messages come from.

use std::time::Duration;

use crate::policy::Address;

/// A queue, stream or topic, and who consumes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The broker: `nats://`, `amqp://`, `redis://`, `postgres://`, `kafka://` or `sqs://`.
    pub url: Address,
    /// The stream, queue or topic on it.
    pub queue: String,
    /// The consumer's name: the durable consumer or group at the broker, and the scope of its keys.
    pub consumer: String,
    /// How long a delivery may be held without a sign of life before it is delivered again, where the broker lets that be chosen.
    pub ack_wait: Duration,
}

impl Source {
    /// How long a delivery is held where nothing else is said.
    pub const ACK_WAIT: Duration = Duration::from_secs(30);

    /// This queue at this broker, for the consumer of this name.
    pub fn new(
        url: impl Into<String>,
        queue: impl Into<String>,
        consumer: impl Into<String>,
    ) -> Self {
        Self {
            url: Address::new(url),
            queue: queue.into(),
            consumer: consumer.into(),
            ack_wait: Self::ACK_WAIT,
        }
    }
}
