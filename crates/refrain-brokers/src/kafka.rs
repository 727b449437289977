//! `kafka://host:port,…`: Apache Kafka, read as a consumer group.
//!
//! The group is called as the consumer is. The messages of one key (which is their [`group`](Message::group)) are handed out
//! in order; those without a key have no order. Of each partition only so much is committed as is done without a gap:
//! whoever takes it over begins with the first message that was not acknowledged, and may meet some that were.
//!
//! A message can be held for as long as its partition is ours. Given back, it waits in this process.
//! Attempts are counted in this process.
//!
//! Settings of librdkafka stand behind the address, as in `kafka://h:9093?security.protocol=ssl&ssl.ca.location=/etc/ca.pem`.
//! TLS, SASL (PLAIN, SCRAM) and all compressions are built in.
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
    consume::{Answer, Broker, Delivery, Guarantees, Message, Publisher, Source, Ticket},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

mod address;
mod book;
mod record;
mod trouble;

use book::{Book, Place, Waiting};
use trouble::{Voice, told};

const ANSWER_MAX: Duration = Duration::from_secs(10);
/// While so many wait to be handed out again, nothing new is fetched.
const WAITING_MAX: usize = 10_000;
/// What is dropped without a word comes again after that.
const DROPPED_FOR: Duration = Duration::from_secs(1);
/// How often it is looked whether the group has formed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A batch that cannot be read is met again and again; not so for that long, it has been read or skipped by somebody.
const UNREADABLE_FOR: Duration = Duration::from_secs(30);

/// Publishes to topics.
pub struct KafkaPublisher {
    producer: FutureProducer<Voice>,
    servers: String,
    voice: Voice,
}

/// A topic, read as a member of a group.
pub struct Kafka {
    publisher: KafkaPublisher,
    seat: Arc<Seat>,
}

/// A place in a group.
struct Seat {
    topic: String,
    /// Until it is closed.
    consumer: Mutex<Option<Arc<StreamConsumer<Watch>>>>,
    book: Arc<Mutex<Book>>,
    /// Rung when something was given back, or all is over.
    bell: Notify,
    /// When a batch was met last that cannot be read, and why.
    unreadable: Mutex<Option<(Instant, String)>>,
}

/// Hears of partitions that are taken away.
struct Watch {
    book: Arc<Mutex<Book>>,
    voice: Voice,
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.voice.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.voice.error(error, reason);
    }
}

impl ConsumerContext for Watch {
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
    /// Makes ready to publish; Kafka is asked when something is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is none, or a setting that librdkafka does not take.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut settings = address::parse(url)?;
        let servers = servers(&settings);
        settings
            // What librdkafka itself sends again arrives once, and in order.
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", ANSWER_MAX.as_millis().to_string());
        let voice = Voice::default();
        let producer = settings.create_with_context(voice.clone());
        Ok(Self {
            producer: producer.map_err(|error| told(&servers, error))?,
            servers,
            voice,
        })
    }
}

impl Kafka {
    /// Joins the group of the source's consumer on the source's topic, which must be there.
    ///
    /// A new group begins with the first message that there is; `?auto.offset.reset=latest` begins with what comes.
    /// [`ack_wait`](Source::ack_wait) has no meaning here.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is none, a setting that librdkafka does not take, or a topic that is not
    /// there; [`ErrorKind::Unavailable`] where no broker answers.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        let publisher = KafkaPublisher::connect(source.url.as_str()).await?;
        let settings = settings(source)?;
        let book = Arc::<Mutex<Book>>::default();
        let watch = Watch {
            book: book.clone(),
            voice: publisher.voice.clone(),
        };
        let failed = |error| told(&publisher.servers, error);
        let consumer: StreamConsumer<Watch> =
            settings.create_with_context(watch).map_err(failed)?;
        let consumer = Arc::new(consumer);
        look(consumer.clone(), &source.queue, &publisher).await?;
        consumer.subscribe(&[&source.queue]).map_err(failed)?;
        let seat = Arc::new(Seat {
            topic: source.queue.clone(),
            consumer: Mutex::new(Some(consumer)),
            book,
            bell: Notify::new(),
            unreadable: Mutex::default(),
        });
        Ok(Self { publisher, seat })
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
    // Others come and go without that all lose their partitions.
    default("partition.assignment.strategy", "cooperative-sticky");
    // Whoever has enough to do does not ask for more; that he lives shows otherwise.
    default("max.poll.interval.ms", "86400000");
    default("auto.commit.interval.ms", "250");
    settings
        .set("group.id", &source.consumer)
        .set("enable.auto.offset.store", "false")
        // Tells "nothing is there" from "nothing was fetched yet".
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "true");
    Ok(settings)
}

/// Whether there is such a topic.
async fn look(
    consumer: Arc<StreamConsumer<Watch>>,
    topic: &str,
    publisher: &KafkaPublisher,
) -> Result<()> {
    let KafkaPublisher { servers, voice, .. } = publisher;
    let (name, shown, voice) = (topic.to_owned(), servers.clone(), voice.clone());
    let asking = tokio::task::spawn_blocking(move || {
        let found = consumer.fetch_metadata(Some(&name), ANSWER_MAX);
        let found = found.map_err(|error| voice.explain(&shown, error, ErrorKind::Invalid))?;
        let is_there = found
            .topics()
            .iter()
            .any(|it| it.name() == name && it.error().is_none() && !it.partitions().is_empty());
        if is_there {
            return Ok(());
        }
        let message = format!("Kafka at {shown} has no topic {name}; create it, or check its name");
        Err(Error::new(ErrorKind::Invalid, message))
    });
    asking.await.map_err(|error| {
        let message = format!("the topics of Kafka at {servers} could not be asked for");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?
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
            // Nothing is wrong with the message: it can be published later.
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
        self.seat.unreadable()
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let consumer = locked(&self.seat.consumer).take();
            self.seat.bell.notify_waiters();
            let Some(consumer) = consumer else {
                return Ok(());
            };
            let closing = tokio::task::spawn_blocking(move || {
                // Nothing to commit is no error.
                let _ = consumer.commit_consumer_state(CommitMode::Sync);
            });
            closing.await.map_err(|error| {
                let message = "the consumer of Kafka could not be closed";
                Error::new(ErrorKind::Unavailable, message).with_source(error)
            })
        })
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        if let Some(consumer) = locked(&self.seat.consumer).take() {
            // Leaving the group takes a while, for which nobody else on this thread is to wait.
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
            // In one go, so that what is taken is handed over even where this is dropped at its next wait.
            let taken = locked(&self.seat.book).take(at_most);
            if !taken.is_empty() {
                return Ok(taken.into_iter().map(|it| self.seat.delivery(it)).collect());
            }
            if Instant::now() >= deadline {
                let trouble = trouble.or_else(|| self.seat.unreadable());
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
        }
    }

    /// Waits until partitions are ours, and each has shown a message or its end.
    async fn ready_within(&self, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let consumer = self.seat.consumer()?;
        let mut wrong = None;
        loop {
            let failed = |error| told(&self.publisher.servers, error);
            let ours = consumer.assignment().map_err(failed)?;
            let ours: Vec<_> = ours.elements().iter().map(|it| it.partition()).collect();
            let is_full = locked(&self.seat.book).waiting() >= WAITING_MAX;
            let is_seen = !ours.is_empty() && locked(&self.seat.book).were_seen(&ours);
            if is_full || is_seen {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(
                    wrong.unwrap_or_else(|| trouble::not_ready(&self.seat.topic, ours.len(), wait))
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

    /// Waits for the first message, or for one that was given back.
    async fn fetch(&self, consumer: &StreamConsumer<Watch>, deadline: Instant) -> Result<()> {
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
                        // Such errors come in swarms while no broker answers.
                        tokio::time::sleep(left.min(Duration::from_millis(50))).await;
                    }
                    taken
                }
                Err(_) => Ok(()),
            },
            () = rung => Ok(()),
        }
    }

    /// What is here already.
    async fn fetch_more(&self, consumer: &StreamConsumer<Watch>, at_most: usize) -> Result<()> {
        while locked(&self.seat.book).waiting() < at_most {
            match timeout(Duration::ZERO, consumer.recv()).await {
                Ok(received) => self.take(consumer, received)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Notes what came: a message, the end of a partition for now, or what is wrong.
    fn take(
        &self,
        consumer: &StreamConsumer<Watch>,
        received: Result<BorrowedMessage<'_>, KafkaError>,
    ) -> Result<()> {
        match received {
            Ok(record) => self.seat.note(&record),
            Err(KafkaError::PartitionEOF(partition)) => locked(&self.seat.book).seen(partition),
            Err(error) if trouble::is_unreadable(&error) => {
                let error = trouble::unreadable(&self.seat.topic, consumer, &error);
                *locked(&self.seat.unreadable) = Some((Instant::now(), error.to_string()));
                return Err(error);
            }
            Err(error) => return Err(told(&self.publisher.servers, error)),
        }
        Ok(())
    }
}

impl Seat {
    fn consumer(&self) -> Result<Arc<StreamConsumer<Watch>>> {
        locked(&self.consumer).clone().ok_or_else(|| {
            let message = "this broker was closed; open it anew to go on";
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

    fn note(&self, record: &BorrowedMessage<'_>) {
        let message = record::read(record);
        locked(&self.book).fetched(record.partition(), record.offset(), message);
    }

    fn delivery(self: &Arc<Self>, waiting: Waiting) -> Delivery {
        let Waiting {
            place,
            message,
            attempt,
            ..
        } = waiting;
        let held = Held {
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

    /// Has everything before this offset committed soon.
    fn commit(&self, partition: i32, upto: i64) -> Result<()> {
        let mut offsets = TopicPartitionList::new();
        let added = offsets.add_partition_offset(&self.topic, partition, Offset::Offset(upto));
        let stored = added.and_then(|()| match self.consumer() {
            Ok(consumer) => consumer.store_offsets(&offsets),
            Err(_) => Err(KafkaError::Canceled),
        });
        stored.map_err(|error| told(&self.topic, error))
    }

    fn somebody_elses(&self, place: Place) -> Error {
        let message = format!(
            "message {} of partition {} of {} is done with, or its partition was given to somebody else",
            place.offset, place.partition, self.topic
        );
        Error::new(ErrorKind::Held, message)
    }
}

/// A message of a partition that is ours.
struct Held {
    seat: Arc<Seat>,
    place: Place,
    /// To be handed out again, unless it was acknowledged.
    again: Option<Message>,
    attempt: u32,
}

impl Held {
    fn give_back(&mut self, delay: Duration) {
        if let Some(message) = self.again.take() {
            locked(&self.seat.book).again(self.place, message, self.attempt, delay);
            self.seat.bell.notify_waiters();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(DROPPED_FOR);
    }
}

impl Ticket for Held {
    fn ack(mut self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let place = self.place;
            let upto = locked(&self.seat.book).done(place);
            self.again = None;
            let Some(upto) = upto else {
                return Err(self.seat.somebody_elses(place));
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
                false => Err(self.seat.somebody_elses(self.place)),
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
