//! The outbox: messages that were appended in the transaction that they tell of, and wait to be published.
//!
//! A [`Relay`](super::Relay) takes them from here to a broker. The table is kept by a driver's own crate.

use std::{fmt::Debug, time::Duration};

use super::{Answer, Message};

/// Where messages wait for a relay. Several relays may take from one outbox at once.
///
/// What was taken is held for a lease, on the outbox's own clock, and may be taken by others when that has lapsed.
/// Of a group, only what comes first is handed out, and what follows it in the same go: never what is behind a message that
/// somebody else holds, that rests, or that is [`Held`](Fate::Held).
pub trait Outbox: Debug + Send + Sync + 'static {
    /// Takes up to `at_most` messages, in the order of each group.
    ///
    /// # Cancellation
    /// Dropped, what was taken can be taken again when the lease has lapsed.
    fn take(&self, at_most: usize, lease: Duration) -> Answer<'_, Taken>;

    /// The lease of these begins anew; answers those that are still this relay's.
    ///
    /// # Cancellation
    /// May be dropped: the leases are then renewed or not.
    fn renew<'a>(&'a self, ids: &'a [i64], lease: Duration) -> Answer<'a, Vec<i64>>;

    /// These are published: the broker has confirmed them. Also of what somebody else has taken meanwhile: it is true all the same.
    ///
    /// # Cancellation
    /// May be dropped: they are then marked or not.
    fn mark<'a>(&'a self, ids: &'a [i64]) -> Answer<'a, ()>;

    /// Gives these back, all in one step: nobody may see the next of a group free while the one before it is held.
    /// What is not this relay's any more is left alone.
    ///
    /// # Cancellation
    /// May be dropped: they are then given back now, or when their lease has lapsed.
    fn give_back<'a>(&'a self, returns: &'a [Return]) -> Answer<'a, ()>;

    /// Waits until something may be there to take, for `at_most` this long. It may be wrong, and somebody else may be faster.
    ///
    /// # Cancellation
    /// May be dropped.
    fn wait(&self, at_most: Duration) -> Answer<'_, ()>;

    /// How much waits.
    ///
    /// # Cancellation
    /// May be dropped.
    fn backlog(&self) -> Answer<'_, Backlog>;

    /// What the broker refused, the oldest first.
    ///
    /// # Cancellation
    /// May be dropped.
    fn refused(&self, at_most: usize) -> Answer<'_, Vec<Refused>>;

    /// Lets everything that was refused be tried again; answers how many that are.
    ///
    /// # Cancellation
    /// May be dropped: they then wait again or not.
    fn redrive(&self) -> Answer<'_, u64>;
}

/// What [`Outbox::take`] answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Held by this relay until the lease lapses. In each group, in order.
    pub entries: Vec<Entry>,
    /// Whether it is worth while to ask again at once.
    pub is_more: bool,
}

/// One message that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What the outbox calls it.
    pub id: i64,
    /// The queue, stream or topic that it is for.
    pub destination: String,
    /// What is published. It has an [`id`](Message::id), the same with every attempt.
    pub message: Message,
    /// How often it was taken, this time included.
    pub attempt: u32,
    /// How often the broker has refused it.
    pub refusals: u32,
}

/// One message that is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Return {
    /// What the outbox calls it.
    pub id: i64,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a message that was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Anybody may take it at once: it was not tried, or the broker was not there.
    Free,
    /// It rests, and its group with it; whether the broker has it is not known.
    Rests {
        /// For how long.
        delay: Duration,
        /// What the broker said.
        error: String,
    },
    /// The broker refused it, which is counted. It rests, and its group with it.
    Refused {
        /// For how long.
        delay: Duration,
        /// What the broker said.
        error: String,
    },
    /// It was refused too often. It waits for a person, and its group with it.
    Held {
        /// What the broker said.
        error: String,
    },
    /// It was refused too often. It is set aside, and its group goes on without it.
    Parked {
        /// What the broker said.
        error: String,
    },
}

/// How much waits in an outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that wait to be published. Counted up to [`Backlog::COUNTED_MAX`].
    pub waiting: u64,
    /// Messages that wait for a person. Counted as far.
    pub refused: u64,
    /// How long the oldest message that waits has done so.
    pub oldest: Option<Duration>,
}

impl Backlog {
    /// How far messages are counted.
    pub const COUNTED_MAX: u64 = 100_000;
}

/// A message that the broker refused too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What the outbox calls it.
    pub id: i64,
    /// The message's own id.
    pub message_id: String,
    /// The queue, stream or topic that it is for.
    pub destination: String,
    /// Its group.
    pub group: Option<String>,
    /// Whether its group waits for it.
    pub is_held: bool,
    /// What the broker said.
    pub error: String,
    /// How long ago it was appended.
    pub age: Duration,
}
