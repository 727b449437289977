//! Apache Kafka (`kafka://host:port,…`), read through a consumer group.
//!
//! The group has the consumer's name. Messages with the same key (their [`group`](Message::group)) are
//! delivered in order; messages without a key have no order. The committed offset of a partition covers
//! only messages that are acknowledged without a gap: after a rebalance the new owner starts at the first
//! unacknowledged message, and may receive later ones again that were acknowledged.
//!
//! A delivery may be held for as long as this member owns its partition. A nacked message waits in this
//! process, and this process counts the attempts.
//!
//! Query parameters are librdkafka settings, as in
//! `kafka://h:9093?security.protocol=ssl&ssl.ca.location=/etc/ca.pem`. TLS, SASL (PLAIN, SCRAM) and all
//! compression codecs are built in.
//!
//! ```no_run
//! # async fn run() -> refrain::Result<()> {
//! use refrain::consume::{Broker, Source};
//! let source = Source::new("kafka://127.0.0.1:9092", "orders", "billing");
//! let broker = refrain_brokers::kafka::Kafka::connect(&source).await?;
//! let deliveries = broker.pull(16, std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, StreamConsumer},
    error::KafkaError,
    message::BorrowedMessage,
    producer::{FutureProducer, FutureRecord},
    util::Timeout,
};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source, Ticket},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

mod address;
mod book;
mod contact;
mod errors;
mod lag;
mod list;
mod record;

use book::{PartitionBook, PartitionOffset, WaitingMessage};
use contact::Contact;
use errors::{LastLogLine, convert_error};
use lag::LagReader;
pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;

const ANSWER_MAX: Duration = Duration::from_secs(10);
/// While this many messages wait for delivery, nothing new is fetched.
const WAITING_MAX: usize = 10_000;
/// Redelivery delay of a delivery that was dropped without ack or nack.
const DROPPED_FOR: Duration = Duration::from_secs(1);
/// Interval between checks whether the group has assigned partitions.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long an unreadable batch is reported after it was last fetched. librdkafka fetches it again and
/// again, so after this time without one the batch was read or skipped by another member.
const UNREADABLE_FOR: Duration = Duration::from_secs(30);

/// Publisher to Kafka topics.
pub struct KafkaPublisher {
    producer: FutureProducer<LastLogLine>,
    servers: String,
    voice: LastLogLine,
}

/// Consumer of a Kafka topic, as a member of a consumer group.
pub struct Kafka {
    publisher: KafkaPublisher,
    seat: Arc<KafkaMember>,
    lag: Arc<LagReader>,
}

/// Membership in a consumer group.
struct KafkaMember {
    topic: String,
    /// `None` after close.
    consumer: Mutex<Option<Arc<StreamConsumer<KafkaContext>>>>,
    book: Arc<Mutex<PartitionBook>>,
    /// Notified when a message is nacked or the broker is closed.
    bell: Notify,
    /// Time of the last unreadable batch, and the error message.
    unreadable: Mutex<Option<(Instant, String)>>,
    contact: Mutex<Contact>,
}

/// Client context that handles revoked partitions and librdkafka's log.
struct KafkaContext {
    book: Arc<Mutex<PartitionBook>>,
    voice: LastLogLine,
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.voice.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.voice.error(error, reason);
    }
}

impl ConsumerContext for KafkaContext {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(partitions) = rebalance {
            let mut book = locked(&self.book);
            for partition in partitions.elements() {
                book.forget(partition.partition());
            }
        }
    }
}

impl KafkaPublisher {
    /// Creates a publisher; librdkafka connects when it is needed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address, or a setting that librdkafka rejects.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut settings = address::parse(url)?;
        let servers = servers(&settings);
        settings
            // With idempotence on, librdkafka's own retries cause no duplicates and keep the order.
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", ANSWER_MAX.as_millis().to_string());
        let voice = LastLogLine::default();
        let producer = settings.create_with_context(voice.clone());
        Ok(Self {
            producer: producer.map_err(|error| convert_error(&servers, error))?,
            servers,
            voice,
        })
    }
}

impl Kafka {
    /// Joins the consumer group of the source's consumer on the source's topic, which must exist.
    ///
    /// A new group starts at the earliest message; with the query parameter `auto.offset.reset=latest`, at
    /// the end. [`ack_wait`](Source::ack_wait) has no effect.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address, a setting that librdkafka rejects, or a missing
    /// topic; [`ErrorKind::Unavailable`] if no broker answers.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        let publisher = KafkaPublisher::connect(source.url.as_str()).await?;
        let settings = settings(source)?;
        let book = Arc::<Mutex<PartitionBook>>::default();
        let watch = KafkaContext {
            book: book.clone(),
            voice: publisher.voice.clone(),
        };
        let failed = |error| convert_error(&publisher.servers, error);
        let consumer: StreamConsumer<KafkaContext> =
            settings.create_with_context(watch).map_err(failed)?;
        let consumer = Arc::new(consumer);
        list::check_topic(consumer.clone(), &source.queue, &publisher).await?;
        consumer.subscribe(&[&source.queue]).map_err(failed)?;
        let seat = Arc::new(KafkaMember {
            topic: source.queue.clone(),
            consumer: Mutex::new(Some(consumer)),
            book,
            bell: Notify::new(),
            unreadable: Mutex::default(),
            contact: Mutex::new(Contact::new()),
        });
        Ok(Self {
            publisher,
            seat,
            lag: LagReader::new(settings, &source.queue),
        })
    }
}

fn settings(source: &Source) -> Result<ClientConfig> {
    let mut settings = address::parse(source.url.as_str())?;
    let mut default = |name: &str, value: &str| {
        if settings.get(name).is_none() {
            settings.set(name, value);
        }
    };
    default("auto.offset.reset", "earliest");
    // Incremental rebalancing: members join and leave without revoking all partitions of the others.
    default("partition.assignment.strategy", "cooperative-sticky");
    // A busy member does not poll for more messages; its heartbeats show that it is alive.
    default("max.poll.interval.ms", "86400000");
    default("auto.commit.interval.ms", "250");
    settings
        .set("group.id", &source.consumer)
        .set("enable.auto.offset.store", "false")
        // Tells an empty partition from one that was not fetched yet.
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "true");
    Ok(settings)
}

impl Publisher for KafkaPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let headers = record::headers(message);
            let mut record = FutureRecord::<str, [u8]>::to(destination)
                .payload(&message.payload)
                .headers(headers);
            if let Some(group) = &message.group {
                record = record.key(group);
            }
            let sent = self.producer.send(record, Timeout::After(ANSWER_MAX)).await;
            // The message itself is valid: a later retry may succeed.
            let kind = ErrorKind::Unavailable;
            sent.map(drop)
                .map_err(|(error, _)| self.voice.explain(&self.servers, error, kind))
        })
    }
}

impl Publisher for Kafka {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for Kafka {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(self.pull_within(at_most.max(1), wait))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: true,
            counts_attempts: false,
            ack_wait: None,
            age_max: None,
        }
    }

    fn ready(&self, wait: Duration) -> Answer<'_, ()> {
        Box::pin(self.ready_within(wait))
    }

    fn trouble(&self) -> Option<Error> {
        let lost = locked(&self.seat.contact).trouble();
        lost.or_else(|| self.seat.unreadable())
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(self.lag.clone().lag())
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.lag.close();
            let consumer = locked(&self.seat.consumer).take();
            self.seat.bell.notify_waiters();
            let Some(consumer) = consumer else {
                return Ok(());
            };
            let closing = tokio::task::spawn_blocking(move || {
                // An error for nothing to commit is ignored.
                let _ = consumer.commit_consumer_state(CommitMode::Sync);
            });
            closing.await.map_err(|error| {
                let message = "cannot close the Kafka consumer";
                Error::new(ErrorKind::Unavailable, message).with_source(error)
            })
        })
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.lag.close();
        if let Some(consumer) = locked(&self.seat.consumer).take() {
            // Leaving the group blocks for a while, so it runs on a separate thread.
            std::thread::spawn(move || drop(consumer));
        }
    }
}

impl Kafka {
    async fn pull_within(&self, at_most: usize, wait: Duration) -> Result<Vec<Delivery>> {
        let deadline = Instant::now() + wait;
        let consumer = self.seat.consumer()?;
        let mut trouble = None;
        loop {
            // No await between taking and returning the messages, so that a cancelled pull loses none.
            let taken = locked(&self.seat.book).take(at_most);
            if !taken.is_empty() {
                return Ok(taken.into_iter().map(|it| self.seat.delivery(it)).collect());
            }
            if Instant::now() >= deadline {
                let trouble = trouble.or_else(|| self.trouble());
                return trouble.map_or(Ok(Vec::new()), Err);
            }
            match self.fetch(&consumer, deadline).await {
                Ok(()) => trouble = None,
                Err(error) => trouble = Some(error),
            }
            self.seat.consumer()?;
            if let Err(error) = self.fetch_more(&consumer, at_most).await {
                trouble = Some(error);
            }
            self.check_contact(&consumer);
        }
    }

    /// Asks the brokers for an answer if they were silent for long, or after an error: librdkafka reports that
    /// they are away only once in a while, and not when they are back.
    fn check_contact(&self, consumer: &Arc<StreamConsumer<KafkaContext>>) {
        if !locked(&self.seat.contact).starts_asking() {
            return;
        }
        let (consumer, seat) = (consumer.clone(), self.seat.clone());
        let KafkaPublisher { servers, voice, .. } = &self.publisher;
        let (servers, voice) = (servers.clone(), voice.clone());
        // Blocks until the time is over if no broker answers, and the end of the program need not wait for it.
        std::thread::spawn(move || {
            let answer = consumer.fetch_metadata(Some(&seat.topic), ANSWER_MAX);
            let answer = answer.map(drop);
            let kind = ErrorKind::Unavailable;
            let answer = answer.map_err(|error| voice.explain(&servers, error, kind));
            locked(&seat.contact).record_reply(answer);
        });
    }

    /// Waits until partitions are assigned and each has returned a message or its end.
    async fn ready_within(&self, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let consumer = self.seat.consumer()?;
        let mut wrong = None;
        loop {
            let failed = |error| convert_error(&self.publisher.servers, error);
            let ours = consumer.assignment().map_err(failed)?;
            let ours: Vec<_> = ours.elements().iter().map(|it| it.partition()).collect();
            let is_full = locked(&self.seat.book).waiting() >= WAITING_MAX;
            let is_seen = !ours.is_empty() && locked(&self.seat.book).were_seen(&ours);
            if is_full || is_seen {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(
                    wrong.unwrap_or_else(|| errors::not_ready(&self.seat.topic, ours.len(), wait))
                );
            }
            if let Ok(received) = timeout(LOOK_EVERY, consumer.recv()).await
                && let Err(error) = self.take(&consumer, received)
            {
                wrong = Some(error);
            }
            self.seat.consumer()?;
        }
    }

    /// Waits for the first message, or until a nacked message is due.
    async fn fetch(
        &self,
        consumer: &StreamConsumer<KafkaContext>,
        deadline: Instant,
    ) -> Result<()> {
        let (due, waiting) = {
            let book = locked(&self.seat.book);
            (book.next_due(), book.waiting())
        };
        let until = due.map_or(deadline, |due| due.min(deadline));
        let left = until.saturating_duration_since(Instant::now());
        let rung = self.seat.bell.notified();
        if waiting >= WAITING_MAX {
            let _ = timeout(left, rung).await;
            return Ok(());
        }
        tokio::select! {
            received = timeout(left, consumer.recv()) => match received {
                Ok(received) => {
                    let taken = self.take(consumer, received);
                    if taken.is_err() {
                        // librdkafka repeats such errors rapidly while no broker answers.
                        tokio::time::sleep(left.min(Duration::from_millis(50))).await;
                    }
                    taken
                }
                Err(_) => Ok(()),
            },
            () = rung => Ok(()),
        }
    }

    /// Takes the messages that librdkafka has already fetched.
    async fn fetch_more(
        &self,
        consumer: &StreamConsumer<KafkaContext>,
        at_most: usize,
    ) -> Result<()> {
        while locked(&self.seat.book).waiting() < at_most {
            match timeout(Duration::ZERO, consumer.recv()).await {
                Ok(received) => self.take(consumer, received)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Records what librdkafka returned: a message, the current end of a partition, or an error.
    fn take(
        &self,
        consumer: &StreamConsumer<KafkaContext>,
        received: Result<BorrowedMessage<'_>, KafkaError>,
    ) -> Result<()> {
        match received {
            Ok(record) => self.seat.add_record(&record),
            Err(KafkaError::PartitionEOF(partition)) => {
                locked(&self.seat.contact).record_contact();
                locked(&self.seat.book).mark_seen(partition);
            }
            Err(error) if errors::is_unreadable(&error) => {
                locked(&self.seat.contact).record_contact();
                let error = errors::unreadable(&self.seat.topic, consumer, &error);
                *locked(&self.seat.unreadable) = Some((Instant::now(), error.to_string()));
                return Err(error);
            }
            Err(error) => {
                let error = convert_error(&self.publisher.servers, error);
                locked(&self.seat.contact).record_error(&error);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl KafkaMember {
    fn consumer(&self) -> Result<Arc<StreamConsumer<KafkaContext>>> {
        locked(&self.consumer).clone().ok_or_else(|| {
            let message = "this broker connection is closed; open a new one";
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    fn unreadable(&self) -> Option<Error> {
        let unreadable = locked(&self.unreadable);
        let (_, message) = unreadable
            .as_ref()
            .filter(|(met, _)| met.elapsed() < UNREADABLE_FOR)?;
        Some(Error::new(ErrorKind::Unavailable, message.clone()))
    }

    fn add_record(&self, record: &BorrowedMessage<'_>) {
        let message = record::read(record);
        locked(&self.contact).record_contact();
        locked(&self.book).add_fetched(record.partition(), record.offset(), message);
    }

    fn delivery(self: &Arc<Self>, waiting: WaitingMessage) -> Delivery {
        let WaitingMessage {
            place,
            message,
            attempt,
            ..
        } = waiting;
        let held = KafkaTicket {
            seat: self.clone(),
            place,
            again: Some(message.clone()),
            attempt,
        };
        Delivery {
            message,
            attempt,
            ticket: Box::new(held),
        }
    }

    /// Stores the offset for the next automatic commit: everything before `upto` is done.
    fn commit(&self, partition: i32, upto: i64) -> Result<()> {
        let mut offsets = TopicPartitionList::new();
        let added = offsets.add_partition_offset(&self.topic, partition, Offset::Offset(upto));
        let stored = added.and_then(|()| match self.consumer() {
            Ok(consumer) => consumer.store_offsets(&offsets),
            Err(_) => Err(KafkaError::Canceled),
        });
        stored.map_err(|error| convert_error(&self.topic, error))
    }

    fn no_longer_held(&self, place: PartitionOffset) -> Error {
        let message = format!(
            "message {} of partition {} of {} is already settled, or its partition was assigned to another consumer",
            place.offset, place.partition, self.topic
        );
        Error::new(ErrorKind::Held, message)
    }
}

/// Acknowledgement handle of a message in an assigned partition.
struct KafkaTicket {
    seat: Arc<KafkaMember>,
    place: PartitionOffset,
    /// The message to redeliver; `None` after an acknowledgement.
    again: Option<Message>,
    attempt: u32,
}

impl KafkaTicket {
    fn give_back(&mut self, delay: Duration) {
        if let Some(message) = self.again.take() {
            locked(&self.seat.book).requeue(self.place, message, self.attempt, delay);
            self.seat.bell.notify_waiters();
        }
    }
}

impl Drop for KafkaTicket {
    fn drop(&mut self) {
        self.give_back(DROPPED_FOR);
    }
}

impl Ticket for KafkaTicket {
    fn ack(mut self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let place = self.place;
            let upto = locked(&self.seat.book).acknowledge(place);
            self.again = None;
            let Some(upto) = upto else {
                return Err(self.seat.no_longer_held(place));
            };
            self.seat.commit(place.partition, upto)
        })
    }

    fn nack(mut self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            self.give_back(delay);
            Ok(())
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            match locked(&self.seat.book).is_ours(self.place) {
                true => Ok(()),
                false => Err(self.seat.no_longer_held(self.place)),
            }
        })
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn servers(settings: &ClientConfig) -> String {
    settings
        .get("bootstrap.servers")
        .unwrap_or_default()
        .to_owned()
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KafkaPublisher")
            .field(&self.servers)
            .finish()
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("servers", &self.publisher.servers)
            .field("topic", &self.seat.topic)
            .finish_non_exhaustive()
    }
}
