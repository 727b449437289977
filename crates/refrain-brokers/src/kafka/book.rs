//! Tracks the unacknowledged messages of each partition, and the offset up to which all are acknowledged,
//! which is committed.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use refrain::consume::Message;
use tokio::time::Instant;

/// Identifies a message: partition, offset, and the assignment that it was fetched under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionOffset {
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// A partition that is revoked and assigned again gets a new number.
    pub(super) turn: u64,
}

/// A message that waits for delivery.
#[derive(Debug, Clone)]
pub(super) struct WaitingMessage {
    pub(super) place: PartitionOffset,
    pub(super) message: Message,
    pub(super) attempt: u32,
    due: Instant,
}

/// State of all assigned partitions.
#[derive(Debug, Default)]
pub(super) struct PartitionBook {
    parts: HashMap<i32, PartitionOffsets>,
    turns: u64,
    /// Partitions that have returned a message or their end.
    seen: BTreeSet<i32>,
    /// Fetched or nacked messages. Not sorted by due time: they are few.
    waiting: VecDeque<WaitingMessage>,
}

#[derive(Debug)]
struct PartitionOffsets {
    turn: u64,
    /// Offsets of messages that are delivered or wait for delivery.
    open: BTreeSet<i64>,
    /// The offset after the last fetched message.
    next: i64,
}

impl PartitionBook {
    /// Adds a fetched message.
    pub(super) fn add_fetched(&mut self, partition: i32, offset: i64, message: Message) {
        self.seen.insert(partition);
        let Self { parts, turns, .. } = self;
        let part = parts.entry(partition).or_insert_with(|| {
            *turns += 1;
            PartitionOffsets {
                turn: *turns,
                open: BTreeSet::new(),
                next: offset,
            }
        });
        let turn = part.turn;
        part.next = part.next.max(offset + 1);
        part.open.insert(offset);
        let place = PartitionOffset {
            partition,
            offset,
            turn,
        };
        self.waiting.push_back(WaitingMessage {
            place,
            message,
            attempt: 1,
            due: Instant::now(),
        });
    }

    /// Records that a partition has returned its end.
    pub(super) fn mark_seen(&mut self, partition: i32) {
        self.seen.insert(partition);
    }

    /// Whether each of these partitions has returned a message or its end.
    pub(super) fn were_seen(&self, partitions: &[i32]) -> bool {
        partitions.iter().all(|it| self.seen.contains(it))
    }

    /// Takes up to `at_most` due messages, in the order in which they were added.
    pub(super) fn take(&mut self, at_most: usize) -> Vec<WaitingMessage> {
        let now = Instant::now();
        let mut taken = Vec::new();
        let mut left = VecDeque::new();
        for waiting in self.waiting.drain(..) {
            match waiting.due <= now && taken.len() < at_most {
                true => taken.push(waiting),
                false => left.push_back(waiting),
            }
        }
        self.waiting = left;
        taken
    }

    /// The earliest due time of the waiting messages.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Marks a message as acknowledged; returns the offset to commit. `None` if the partition was revoked.
    pub(super) fn acknowledge(&mut self, place: PartitionOffset) -> Option<i64> {
        let part = self.part(place)?;
        part.open.remove(&place.offset);
        Some(part.open.first().copied().unwrap_or(part.next))
    }

    /// Queues a message for redelivery, unless the partition was revoked.
    pub(super) fn requeue(
        &mut self,
        place: PartitionOffset,
        message: Message,
        attempt: u32,
        delay: Duration,
    ) {
        if self.part(place).is_some() {
            self.waiting.push_back(WaitingMessage {
                place,
                message,
                attempt: attempt + 1,
                due: Instant::now() + delay,
            });
        }
    }

    pub(super) fn is_ours(&mut self, place: PartitionOffset) -> bool {
        self.part(place).is_some()
    }

    /// Removes a revoked partition.
    pub(super) fn forget(&mut self, partition: i32) {
        self.parts.remove(&partition);
        self.seen.remove(&partition);
        self.waiting
            .retain(|waiting| waiting.place.partition != partition);
    }

    fn part(&mut self, place: PartitionOffset) -> Option<&mut PartitionOffsets> {
        let part = self.parts.get_mut(&place.partition)?;
        let is_open = part.turn == place.turn && part.open.contains(&place.offset);
        is_open.then_some(part)
    }
}

#[cfg(test)]
mod tests {
    //! Handlers finish in any order, and partitions come and go: a committed offset covers only
    //! acknowledged messages.

    use super::*;

    fn book(offsets: std::ops::Range<i64>) -> (PartitionBook, Vec<PartitionOffset>) {
        let mut book = PartitionBook::default();
        offsets.for_each(|offset| book.add_fetched(0, offset, Message::default()));
        let places = book.take(100).iter().map(|it| it.place).collect();
        (book, places)
    }

    #[test]
    fn commits_only_up_to_the_first_unfinished_message() {
        let (mut book, places) = book(5..9);
        for (done, upto) in [(2, 5), (0, 6), (3, 6), (1, 9)] {
            assert_eq!(book.acknowledge(places[done]), Some(upto));
        }
        assert_eq!(book.acknowledge(places[0]), None, "it was done before");
    }

    #[test]
    fn returned_message_blocks_the_commit_and_counts_its_attempts() {
        let (mut book, places) = book(0..2);
        book.requeue(places[0], Message::default(), 1, Duration::ZERO);
        assert_eq!(book.acknowledge(places[1]), Some(0));
        let again = book.take(8).remove(0);
        assert_eq!((again.place, again.attempt), (places[0], 2));
        book.requeue(places[0], Message::default(), 2, Duration::from_secs(60));
        assert!(book.take(8).is_empty());
        assert!(book.next_due().is_some());
        assert_eq!(book.acknowledge(places[0]), Some(2));
    }

    #[test]
    fn reassigned_partition_rejects_old_positions() {
        let (mut book, places) = book(0..2);
        book.forget(0);
        assert_eq!(book.acknowledge(places[0]), None);
        book.add_fetched(0, 0, Message::default());
        assert!(!book.is_ours(places[0]));
        book.requeue(places[0], Message::default(), 1, Duration::ZERO);
        let again = book.take(8);
        assert_eq!(again.len(), 1);
        assert_eq!(book.acknowledge(again[0].place), Some(1));
    }
}
