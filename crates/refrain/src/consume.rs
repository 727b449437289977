//! Messages: the same record and the same engine, whether work arrives by request or by queue.
//!
//! A [`Broker`] hands out deliveries, and a [`Consumer`] sees each of them through: it is claimed under the consumer's name
//! and the message's key, handled, settled, and only then acknowledged. What can never be handled becomes a dead letter,
//! which a [`Redrive`] lets through again on purpose.
//!
//! This is no broker of its own: [`Memory`] aside, brokers live in a crate apart, and any that passes the broker suite of
//! `refrain-testkit` will do.

use std::{fmt, fmt::Debug, pin::Pin, time::Duration};

use crate::{Error, Result};

mod attempts;
pub(crate) use attempts::brief;
mod attend;

pub use crate::backoff::Backoff;

mod cloudevents;

mod consumer;
pub use consumer::{Consumer, IN_FLIGHT_MAX};

mod dead;
pub use dead::{
    DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_FINGERPRINT, DEAD_FIRST_FAILURE, DEAD_ID, DEAD_KEY,
    DEAD_LAST_FAILURE, DEAD_POSITION, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE, DeadReason, REDRIVE,
    REDRIVES_MAX,
};

mod job;
pub use job::{Failure, Job};

mod key;
pub use key::{KeySource, find_key};

mod lanes;

mod letter;
pub use letter::DeadLetter;

mod memory;
pub use memory::{Memory, MemoryQueue};

mod message;
pub use message::{HEADER_BYTES_MAX, Message, Position};

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

mod source;
pub use source::Source;

mod tally;
pub use tally::{Count, Tally};

mod work;
pub use work::{Task, Worked, Worker, caught};

/// What a broker answers with. Boxed, so that one consumer serves any broker: a message costs far more than the box.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Takes messages.
pub trait Publisher: Debug + Send + Sync + 'static {
    /// Publishes to a queue, stream or topic; done when the broker holds the message as durably as it can.
    ///
    /// The message's [`id`](Message::id) goes along as the transport's own dedupe id, where it has one.
    /// An error leaves it open whether the message is held: publish it again, under the same id.
    ///
    /// # Cancellation
    /// Dropped, the message may be held or not.
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()>;
}

/// Hands out messages and takes them back.
pub trait Broker: Publisher {
    /// The next deliveries, `at_most` of them; waits up to `wait` for the first.
    ///
    /// A lost connection is made again behind the scenes: an error says that nothing could be had within `wait`.
    /// One that is [retryable](crate::Error::is_retryable) is waited out by a consumer, any other ends it.
    ///
    /// # Cancellation
    /// May be dropped: what was fetched and not handed over is delivered again later.
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>>;

    /// What this broker can promise.
    fn guarantees(&self) -> Guarantees;

    /// Waits until messages can be handed out: where members of a group share them, until this one has its share.
    ///
    /// An empty [`pull`](Self::pull) means that nothing is there only after this. Nothing to wait for where the server answers
    /// each pull by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where that is not so within `wait`.
    ///
    /// # Cancellation
    /// May be dropped, as a pull.
    fn ready(&self, wait: Duration) -> Answer<'_, ()> {
        let _ = wait;
        Box::pin(std::future::ready(Ok(())))
    }

    /// What keeps some messages from being handed out although others are; `None` where nothing is known to.
    fn trouble(&self) -> Option<Error> {
        None
    }

    /// Lets go of the connection. What is neither acknowledged nor given back is delivered again later.
    fn close(&self) -> Answer<'_, ()>;
}

/// One handing out of a message. Dropped, it is delivered again when the broker's own patience ends.
pub struct Delivery {
    /// What was published.
    pub message: Message,
    /// How often the message was handed out, this time included; 1 where the broker does not count.
    pub attempt: u32,
    /// What the broker calls this delivery.
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

/// A delivery in the broker's eyes: to be acknowledged, given back, or held longer.
pub trait Ticket: Send + Sync {
    /// It is done with: never to be delivered again. Done when the broker knows it, as far as the transport can tell.
    ///
    /// # Errors
    /// When the broker could not be told: it will deliver again.
    fn ack(self: Box<Self>) -> Answer<'static, ()>;

    /// Gives it back, to be delivered again not before `delay` has passed.
    ///
    /// # Errors
    /// When the broker could not be told: it will deliver again when its own patience ends.
    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()>;

    /// It is still being handled: the broker's patience begins anew. Nothing to do where that has no end.
    ///
    /// # Errors
    /// When the broker could not be told, or has given the message to somebody else.
    fn extend(&self) -> Answer<'_, ()>;
}

/// What a broker can promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// Messages of one [`group`](Message::group) are handed out in order.
    ///
    /// Then one that failed is tried again in its place: giving it back would let the next one overtake it.
    pub is_ordered: bool,
    /// [`Delivery::attempt`] counts also what other processes and earlier connections were handed.
    pub counts_attempts: bool,
    /// How long a delivery may be held without [`Ticket::extend`] until it is delivered again; `None` where that has no end.
    pub ack_wait: Option<Duration>,
    /// How long after it was published a message may still be delivered; `None` where the broker cannot tell.
    pub age_max: Option<Duration>,
}
