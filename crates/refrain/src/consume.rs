//! Message consumers, which use the same records and the same engine as HTTP requests.
//!
//! A [`Broker`] delivers messages. A [`Consumer`] claims each delivery under the consumer's name and the message's key,
//! handles it, settles the claim, and only then acknowledges it. A message that can never be handled becomes a dead
//! letter, which a [`Redrive`] publishes again on an operator's request.
//!
//! This module contains no broker except [`Memory`]. Brokers live in a separate crate; any broker that passes the
//! conformance suite of `refrain-testkit` works.

use std::{fmt, fmt::Debug, pin::Pin, time::Duration};

use crate::{Error, Result, policy::Address};

mod attend;

pub use crate::{backoff::Backoff, failure::Failure};

mod cloudevents;

mod consumer;
pub use consumer::{Consumer, IN_FLIGHT_MAX};

mod dead;
pub use dead::{
    DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_FINGERPRINT, DEAD_FIRST_FAILURE, DEAD_ID, DEAD_KEY,
    DEAD_LAST_FAILURE, DEAD_POSITION, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE, DeadLetter,
    DeadReason, REDRIVE, REDRIVES_MAX,
};

mod key;
pub use key::{KeySource, find_key};

mod lag;
pub use lag::Lag;

mod memory;
pub use memory::{Memory, MemoryQueue};

mod message;
pub use message::{HEADER_BYTES_MAX, Job, Message, Position};

mod outbox;
pub use outbox::{Backlog, Entry, Fate, Outbox, Refused, Return, Taken};

mod pull;

mod redrive;
pub use redrive::{Redrive, Redriven};

mod relay;
pub use relay::{OnRefusal, Relay, RelayCounters, RelayCounts, RelayOptions};

mod sequence;
pub use sequence::{Gap, Sequence};

mod shared;

mod tally;
pub use tally::{Count, Tally};

mod work;
pub use work::{Task, Worked, Worker, caught};

/// Future returned by broker operations. Boxed, so that one consumer type serves any broker; the cost of the box is
/// negligible per message.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Publishes messages.
pub trait Publisher: Debug + Send + Sync + 'static {
    /// Publishes to a queue, stream or topic. Completes when the broker has stored the message as durably as it can.
    ///
    /// The message's [`id`](Message::id) is passed as the transport's deduplication ID, if it has one.
    /// After an error the broker may or may not have stored the message: publish it again under the same ID.
    ///
    /// # Cancellation
    /// If dropped, the broker may or may not have stored the message.
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()>;
}

/// Delivers messages, and receives acknowledgements.
pub trait Broker: Publisher {
    /// Returns up to `at_most` deliveries; waits up to `wait` for the first one.
    ///
    /// The broker reconnects in the background; an error means that no message could be fetched within `wait`.
    /// After a [retryable](crate::Error::is_retryable) error the consumer pauses and continues; any other ends it.
    ///
    /// # Cancellation
    /// Safe to drop: messages that were fetched but not returned are redelivered later.
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>>;

    /// Returns the guarantees of this broker.
    fn guarantees(&self) -> Guarantees;

    /// Waits until the broker can deliver messages; in a consumer group, until this member has its assignment, and for
    /// a broker whose pull may end before the server answers, until the server has answered once.
    ///
    /// Only after this does an empty [`pull`](Self::pull) mean that the queue is empty. Returns at once if the server
    /// answers each pull by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if that takes longer than `wait`.
    ///
    /// # Cancellation
    /// Safe to drop, like a pull.
    fn ready(&self, wait: Duration) -> Answer<'_, ()> {
        let _ = wait;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Error that a pull does not return: the server has not answered since, or some messages are blocked while others
    /// are delivered. `None` if no error is known.
    fn trouble(&self) -> Option<Error> {
        None
    }

    /// Returns how many messages the consumer has not finished, as far as the broker knows. Disturbs no delivery.
    ///
    /// The default knows nothing, and returns an empty [`Lag`].
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the server does not answer.
    ///
    /// # Cancellation
    /// Safe to drop.
    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(std::future::ready(Ok(Lag::default())))
    }

    /// Closes the connection. Deliveries that are neither acknowledged nor returned are redelivered later.
    fn close(&self) -> Answer<'_, ()>;
}

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

/// One delivery of a message. If dropped, the broker redelivers it after its acknowledgement timeout.
pub struct Delivery {
    /// The published message.
    pub message: Message,
    /// Delivery count, including this one; 1 if the broker does not count.
    pub attempt: u32,
    /// Handle to acknowledge or return this delivery.
    pub ticket: Box<dyn Ticket>,
}

impl Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Handle of a delivery at its broker: acknowledge, return or extend it.
pub trait Ticket: Send + Sync {
    /// Acknowledges the delivery, so that it is never redelivered. Completes when the broker confirms it, if its
    /// transport has confirmations.
    ///
    /// # Errors
    /// If the acknowledgement did not reach the broker, which then redelivers.
    fn ack(self: Box<Self>) -> Answer<'static, ()>;

    /// Returns the message to the broker, to be redelivered after `delay` at the earliest.
    ///
    /// # Errors
    /// If the request did not reach the broker, which then redelivers after its acknowledgement timeout.
    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()>;

    /// Restarts the acknowledgement timeout, because the message is still being handled. No-op for brokers without one.
    ///
    /// # Errors
    /// If the request did not reach the broker, or the broker has redelivered the message to another consumer.
    fn extend(&self) -> Answer<'_, ()>;
}

/// Guarantees of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// Messages of one [`group`](Message::group) are delivered in order.
    ///
    /// A failed message is then retried in place, because returning it would let the next one overtake it.
    pub is_ordered: bool,
    /// [`Delivery::attempt`] also counts deliveries to other processes and earlier connections.
    pub counts_attempts: bool,
    /// Acknowledgement timeout: time without [`Ticket::extend`] after which a delivery is redelivered; `None` without
    /// one.
    pub ack_wait: Option<Duration>,
    /// Maximum age at which a message may still be delivered; `None` if the broker does not report it.
    pub age_max: Option<Duration>,
}
