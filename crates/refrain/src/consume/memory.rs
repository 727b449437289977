//! In-process broker, for tests and small programs.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{Answer, Broker, Delivery, Guarantees, Lag, Message, Position, Publisher, Ticket};
use crate::{Error, ErrorKind, Result};

/// Maximum number of messages in a queue, and in a topic without subscriptions.
const MESSAGES_MAX: usize = 100_000;

/// Topics in memory. Clones share them.
///
/// Each consumer name that has [subscribed](Self::subscribe) to a topic gets every message published after that;
/// subscriptions with the same name share the messages. Messages published before the first subscription wait for it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    topics: Arc<Mutex<HashMap<String, Topic>>>,
    options: MemoryOptions,
}

#[derive(Debug, Clone, Copy)]
struct MemoryOptions {
    ack_wait: Duration,
    is_ordered: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            ack_wait: super::Source::ACK_WAIT,
            is_ordered: false,
        }
    }
}

#[derive(Debug, Default)]
struct Topic {
    published: u64,
    /// Messages published before the first subscription.
    waiting: VecDeque<Message>,
    /// By consumer name.
    queues: HashMap<String, Arc<SubscriberQueue>>,
}

/// Messages of a topic for one consumer name.
#[derive(Debug)]
struct SubscriberQueue {
    options: MemoryOptions,
    entries: Mutex<QueueEntries>,
    /// Notified when a message may be ready for delivery.
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueEntries {
    next: u64,
    deliveries: u64,
    by_place: BTreeMap<u64, QueuedMessage>,
}

#[derive(Debug)]
struct QueuedMessage {
    message: Message,
    /// Time at which it entered the queue.
    since: Instant,
    attempt: u32,
    /// Time from which it may be delivered: at once, after a delay, or after the acknowledgement timeout of its holder.
    ready: Instant,
    /// Number of the delivery that holds it.
    held_by: Option<u64>,
}

impl Memory {
    /// Creates a broker without topics, with an acknowledgement timeout of 30 s.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the acknowledgement timeout of queues created from now on.
    #[must_use]
    pub fn with_ack_wait(mut self, ack_wait: Duration) -> Self {
        self.options.ack_wait = ack_wait;
        self
    }

    /// Makes queues created from now on preserve the order within groups.
    ///
    /// While a message of a group is held or delayed, later ones are delivered only together with it.
    #[must_use]
    pub fn with_order(mut self) -> Self {
        self.options.is_ordered = true;
        self
    }

    /// Subscribes a consumer to a topic.
    #[must_use]
    pub fn subscribe(&self, topic: &str, consumer: &str) -> MemoryQueue {
        let mut topics = lock(&self.topics);
        let topic = topics.entry(topic.into()).or_default();
        let queue = topic.queues.entry(consumer.into()).or_insert_with(|| {
            Arc::new(SubscriberQueue {
                options: self.options,
                entries: Mutex::default(),
                changed: Notify::new(),
            })
        });
        for message in topic.waiting.drain(..) {
            // Cannot fail: a topic holds no more messages than a queue.
            let _ = queue.push(message);
        }
        MemoryQueue {
            memory: self.clone(),
            queue: queue.clone(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Number of messages that the consumer has not acknowledged.
    #[must_use]
    pub fn backlog(&self, topic: &str, consumer: &str) -> usize {
        let topics = lock(&self.topics);
        let queue = topics
            .get(topic)
            .and_then(|topic| topic.queues.get(consumer));
        queue.map_or(0, |queue| queue.lock().by_place.len())
    }

    fn put(&self, destination: &str, message: &Message) -> Result<()> {
        let mut topics = lock(&self.topics);
        let topic = topics.entry(destination.into()).or_default();
        let is_full = |queue: &Arc<SubscriberQueue>| queue.lock().by_place.len() >= MESSAGES_MAX;
        if topic.waiting.len() >= MESSAGES_MAX || topic.queues.values().any(is_full) {
            let message =
                format!("the topic {destination} is full: it holds {MESSAGES_MAX} messages");
            return Err(Error::new(ErrorKind::Full, message));
        }
        let mut message = message.clone();
        message.subject = destination.into();
        message.position = Some(Position {
            log: destination.into(),
            partition: 0,
            offset: topic.published.to_string(),
        });
        topic.published += 1;
        if topic.queues.is_empty() {
            topic.waiting.push_back(message);
            return Ok(());
        }
        topic
            .queues
            .values()
            .try_for_each(|queue| queue.push(message.clone()))
    }
}

impl Publisher for Memory {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move { self.put(destination, message) })
    }
}

/// Subscription of a consumer to a topic in memory.
#[derive(Debug)]
pub struct MemoryQueue {
    memory: Memory,
    queue: Arc<SubscriberQueue>,
    is_closed: AtomicBool,
}

impl Publisher for MemoryQueue {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.memory.publish(destination, message)
    }
}

impl Broker for MemoryQueue {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(async move {
            let deadline = Instant::now() + wait;
            loop {
                if self.is_closed.load(Ordering::Relaxed) {
                    let message = "the subscription is closed; subscribe again";
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                let changed = self.queue.changed.notified();
                let (deliveries, next) = self.queue.take(at_most);
                let now = Instant::now();
                if !deliveries.is_empty() || now >= deadline {
                    return Ok(deliveries);
                }
                let until = next.map_or(deadline, |next| next.min(deadline));
                tokio::select! {
                    () = changed => {}
                    () = sleep_until(until) => {}
                }
            }
        })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: self.queue.options.is_ordered,
            counts_attempts: true,
            ack_wait: Some(self.queue.options.ack_wait),
            age_max: None,
        }
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(async { Ok(self.queue.lag()) })
    }

    fn close(&self) -> Answer<'_, ()> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.queue.changed.notify_waiters();
        Box::pin(async { Ok(()) })
    }
}

impl SubscriberQueue {
    fn push(&self, message: Message) -> Result<()> {
        let mut entries = self.lock();
        let place = entries.next;
        entries.next += 1;
        entries.by_place.insert(
            place,
            QueuedMessage {
                message,
                since: Instant::now(),
                attempt: 0,
                ready: Instant::now(),
                held_by: None,
            },
        );
        drop(entries);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns the messages that are ready, and the time when the next one will be.
    fn take(self: &Arc<Self>, at_most: usize) -> (Vec<Delivery>, Option<Instant>) {
        let now = Instant::now();
        let mut entries = self.lock();
        let entries = &mut *entries;
        let mut deliveries = Vec::new();
        let mut next: Option<Instant> = None;
        // Groups with an earlier message that is not ready.
        let mut blocked = HashSet::new();
        for (place, entry) in &mut entries.by_place {
            if deliveries.len() == at_most {
                break;
            }
            let group = entry.message.group.clone();
            let group = group.filter(|_| self.options.is_ordered);
            if group.as_ref().is_some_and(|group| blocked.contains(group)) {
                continue;
            }
            if entry.ready > now {
                next = Some(next.map_or(entry.ready, |next| next.min(entry.ready)));
                blocked.extend(group);
                continue;
            }
            entries.deliveries += 1;
            entry.attempt += 1;
            entry.ready = now + self.options.ack_wait;
            entry.held_by = Some(entries.deliveries);
            deliveries.push(Delivery {
                message: entry.message.clone(),
                attempt: entry.attempt,
                ticket: Box::new(MemoryTicket {
                    queue: self.clone(),
                    place: *place,
                    number: entries.deliveries,
                }),
            });
        }
        (deliveries, next)
    }

    fn lag(&self) -> Lag {
        let now = Instant::now();
        let entries = self.lock();
        let is_held = |it: &&QueuedMessage| it.held_by.is_some() && it.ready > now;
        let held = entries.by_place.values().filter(is_held).count();
        let oldest = entries.by_place.values().next();
        Lag::waiting((entries.by_place.len() - held) as u64)
            .with_unacknowledged(held as u64)
            .with_oldest(oldest.map(|it| now - it.since))
    }

    fn lock(&self) -> MutexGuard<'_, QueueEntries> {
        lock(&self.entries)
    }
}

/// One delivery of one message.
struct MemoryTicket {
    queue: Arc<SubscriberQueue>,
    place: u64,
    number: u64,
}

impl MemoryTicket {
    /// Changes the entry, if this delivery still holds it.
    fn change(&self, change: impl FnOnce(&mut QueueEntries, u64)) -> Result<()> {
        let mut entries = self.queue.lock();
        let entry = entries.by_place.get(&self.place);
        match entry.is_some_and(|entry| entry.held_by == Some(self.number)) {
            true => {
                change(&mut entries, self.place);
                drop(entries);
                self.queue.changed.notify_waiters();
                Ok(())
            }
            false => {
                let message = "the message was redelivered or acknowledged meanwhile";
                Err(Error::new(ErrorKind::Held, message))
            }
        }
    }

    fn set_ready(&self, ready: Instant, is_held: bool) -> Result<()> {
        self.change(|entries, place| {
            if let Some(entry) = entries.by_place.get_mut(&place) {
                entry.ready = ready;
                entry.held_by = entry.held_by.filter(|_| is_held);
            }
        })
    }
}

impl Ticket for MemoryTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        let done = self.change(|entries, place| {
            entries.by_place.remove(&place);
        });
        Box::pin(async { done })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        let given = self.set_ready(Instant::now() + delay, false);
        Box::pin(async { given })
    }

    fn extend(&self) -> Answer<'_, ()> {
        let held = self.set_ready(Instant::now() + self.queue.options.ack_wait, true);
        Box::pin(async { held })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
