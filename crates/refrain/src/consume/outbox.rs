//! Transactional outbox: messages inserted in the same transaction as the change they announce, to be published later.
//!
//! A [`Relay`](super::Relay) publishes them to a broker. The crate of a database driver implements the table.

use std::{fmt::Debug, time::Duration};

use super::{Answer, Message};

/// Storage of messages that wait for a relay. Several relays may use one outbox concurrently.
///
/// A taken message is held for a lease, measured by the outbox's own clock; other relays may take it after the lease
/// lapses. Of each group, only the first messages are handed out: never one that follows a message that another relay
/// holds, that rests, or that is [`Held`](Fate::Held).
pub trait Outbox: Debug + Send + Sync + 'static {
    /// Takes up to `at_most` messages, in the order of each group.
    ///
    /// # Cancellation
    /// If dropped, taken messages can be taken again after the lease lapses.
    fn take(&self, at_most: usize, lease: Duration) -> Answer<'_, Taken>;

    /// Renews the lease of these messages; returns the IDs that this relay still holds.
    ///
    /// # Cancellation
    /// Safe to drop: the leases may or may not be renewed.
    fn renew<'a>(&'a self, ids: &'a [i64], lease: Duration) -> Answer<'a, Vec<i64>>;

    /// Marks messages as published, after the broker confirmed them. Valid even if another relay has taken them
    /// meanwhile.
    ///
    /// # Cancellation
    /// Safe to drop: the messages may or may not be marked.
    fn mark<'a>(&'a self, ids: &'a [i64]) -> Answer<'a, ()>;

    /// Returns messages to the outbox in one atomic step, so that the next message of a group is never free while the
    /// one before it is held. Messages that this relay no longer holds are left unchanged.
    ///
    /// # Cancellation
    /// Safe to drop: the messages become free now, or after their lease lapses.
    fn give_back<'a>(&'a self, returns: &'a [Return]) -> Answer<'a, ()>;

    /// Waits until there may be messages to take, up to `at_most`. May wake spuriously, and another relay may be
    /// faster.
    ///
    /// # Cancellation
    /// Safe to drop.
    fn wait(&self, at_most: Duration) -> Answer<'_, ()>;

    /// Returns the number and age of waiting messages.
    ///
    /// # Cancellation
    /// Safe to drop.
    fn backlog(&self) -> Answer<'_, Backlog>;

    /// Returns up to `at_most` messages that the broker refused, the oldest first.
    ///
    /// # Cancellation
    /// Safe to drop.
    fn refused(&self, at_most: usize) -> Answer<'_, Vec<Refused>>;

    /// Queues all refused messages again; returns their number.
    ///
    /// # Cancellation
    /// Safe to drop: the messages may or may not be queued again.
    fn redrive(&self) -> Answer<'_, u64>;
}

/// Result of [`Outbox::take`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Messages held by this relay until the lease lapses, in the order of each group.
    pub entries: Vec<Entry>,
    /// Whether to take again at once, because there may be more.
    pub is_more: bool,
}

/// One waiting message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// ID of the row in the outbox.
    pub id: i64,
    /// Queue, stream or topic to publish to.
    pub destination: String,
    /// Message to publish. Its [`id`](Message::id) is the same at every attempt.
    pub message: Message,
    /// Number of times that it was taken, including this one.
    pub attempt: u32,
    /// Number of refusals by the broker.
    pub refusals: u32,
}

/// A message returned to the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Return {
    /// ID of the row in the outbox.
    pub id: i64,
    /// New state of the message.
    pub fate: Fate,
}

/// New state of a message that was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Free to be taken at once: it was not tried, or the broker was unreachable.
    Free,
    /// It rests together with its group. The broker may or may not have stored it.
    Rests {
        /// How long it rests.
        delay: Duration,
        /// Error of the broker.
        error: String,
    },
    /// The broker refused it, which is counted. It rests together with its group.
    Refused {
        /// How long it rests.
        delay: Duration,
        /// Error of the broker.
        error: String,
    },
    /// Refused too often. It waits for an operator, and blocks its group.
    Held {
        /// Error of the broker.
        error: String,
    },
    /// Refused too often. It waits for an operator, and its group continues without it.
    Parked {
        /// Error of the broker.
        error: String,
    },
}

/// Number and age of messages in an outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that wait to be published, counted up to [`Backlog::COUNTED_MAX`].
    pub waiting: u64,
    /// Refused messages that wait for an operator, counted up to the same limit.
    pub refused: u64,
    /// Age of the oldest waiting message.
    pub oldest: Option<Duration>,
}

impl Backlog {
    /// Limit of the counts.
    pub const COUNTED_MAX: u64 = 100_000;
}

/// A message that the broker refused too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// ID of the row in the outbox.
    pub id: i64,
    /// ID of the message.
    pub message_id: String,
    /// Queue, stream or topic to publish to.
    pub destination: String,
    /// Ordering group.
    pub group: Option<String>,
    /// Whether it blocks its group.
    pub is_held: bool,
    /// Error of the broker.
    pub error: String,
    /// Time since it was inserted.
    pub age: Duration,
}
