//! Source of a consumer's messages.

use std::time::Duration;

use crate::policy::Address;

/// Queue, stream or topic, with the name of its consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Address of the broker, with one of its [schemes](crate::policy::schemes).
    pub url: Address,
    /// Stream, queue or topic.
    pub queue: String,
    /// Consumer name: the durable consumer or group at the broker, and the scope of its keys.
    pub consumer: String,
    /// Time without acknowledgement or progress report after which the broker redelivers, if configurable.
    pub ack_wait: Duration,
}

impl Source {
    /// Default of `ack_wait`.
    pub const ACK_WAIT: Duration = Duration::from_secs(30);

    /// Creates a source for a consumer of this queue.
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
