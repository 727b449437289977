//! Delayed redelivery without a plugin: a queue with a message TTL that dead-letters expired messages to
//! their original queue.
//!
//! The message is published to the delay queue and confirmed before its delivery is acknowledged: a crash
//! between the two causes a duplicate, never a loss. Expired messages return through the quorum queue's
//! at-least-once dead-lettering.

use std::time::Duration;

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};
use refrain::{Error, ErrorKind, Result};

use super::{
    RabbitPublisher,
    publish::{self, Sent},
    queues,
};

const SHORTEST_MS: u64 = 32;
/// About 12.4 days: the server stores milliseconds in 32 bits, and the queue must outlive its messages.
const LONGEST_MS: u64 = 1 << 30;
/// The server deletes a delay queue that is unused for its TTL plus this time, in milliseconds.
const UNUSED_MS: u64 = 60 * 60 * 1_000;
/// Leaves room for the prefix `refrain.delay.MILLISECONDS.`.
const QUEUE_BYTES_MAX: usize = 220;

/// Checks that the queue's name is short enough for the name of a delay queue.
pub(super) fn check_queue_name(queue: &str) -> Result<()> {
    if (1..=QUEUE_BYTES_MAX).contains(&queue.len()) {
        return Ok(());
    }
    let message = format!("invalid queue name {queue:?}; use 1 to {QUEUE_BYTES_MAX} bytes");
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Publishes a message to the delay queue, from which it returns to `queue` after the delay.
pub(super) async fn publish_delayed(
    rabbit: &RabbitPublisher,
    queue: &str,
    delay: Duration,
    payload: &[u8],
    properties: BasicProperties,
) -> Result<()> {
    let milliseconds = rounded(delay);
    let name = queues::name(&format!("refrain.delay.{milliseconds}.{queue}"))?;
    let connection = rabbit.desk.connection().await?;
    let (server, arguments) = (rabbit.server(), arguments(milliseconds, queue));
    match queues::exists(&connection, server, &name).await? {
        // Declared again for every message, which resets the server's expiry timer of the queue.
        true => queues::declare(&connection, server, name.clone(), arguments).await?,
        false => queues::declare_durably(&connection, server, name.clone(), arguments).await?,
    }
    let exchange = ShortString::default();
    match publish::send(rabbit, exchange, name, payload, properties).await? {
        Sent::Held => Ok(()),
        Sent::Returned => {
            let message = format!(
                "a delay queue disappeared from RabbitMQ at {}",
                rabbit.server()
            );
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}

fn arguments(milliseconds: u64, queue: &str) -> FieldTable {
    let number = |number: u64| AMQPValue::LongLongInt(number as i64);
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", number(milliseconds)),
        ("x-expires", number(milliseconds + UNUSED_MS)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
        // The default strategy loses a message if the server stops while it dead-letters the message.
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        arguments.insert(name.into(), value);
    }
    arguments
}

/// Rounds up to one of four steps per power of two, at most 25% longer, so that there are few delay queues.
fn rounded(delay: Duration) -> u64 {
    let exact = delay.as_nanos().div_ceil(1_000_000);
    let exact = u64::try_from(exact).unwrap_or(u64::MAX);
    let exact = exact.clamp(SHORTEST_MS, LONGEST_MS);
    let step = 1 << (exact.ilog2() - 2);
    exact.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    //! A delay must not end early, and one queue per millisecond would overload the server.

    use super::*;

    #[test]
    fn a_delay_is_never_shorter_and_at_most_a_quarter_longer() {
        let mut steps = std::collections::HashSet::new();
        for exact in (0..100_000).chain([1 << 29, (1 << 29) + 1]) {
            let rounded = rounded(Duration::from_millis(exact));
            assert!(rounded >= exact, "{exact} became {rounded}");
            assert!(rounded <= (exact + exact / 4).max(SHORTEST_MS));
            steps.insert(rounded);
        }
        assert!(steps.len() < 60, "{} queues", steps.len());
        assert_eq!(rounded(Duration::from_nanos(1)), SHORTEST_MS);
        assert_eq!(rounded(Duration::MAX), LONGEST_MS);
    }
}
