//! `kafka://host:port,…`: Apache Kafka, read as a consumer group.
//!
//! The group is called as the consumer is. The messages of one key (which is their [`group`](Message::group)) are handed out
//! in order; those without a key have no order. Of each partition only so much is committed as is done without a gap:
//! whoever takes it over begins with the first message that was not acknowledged, and may meet some that were.
//!
//! A message can be held for as long as its partition is ours. Given back, it waits in this process.
//! Attempts are counted in this process.
//!
//! Settings of librdkafka stand behind the address, as in `kafka://h:9092?security.protocol=ssl`;
//! TLS and SASL need the feature of `rdkafka` by that name.
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
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode},
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

use book::{Book, Place, Waiting};

const ANSWER_MAX: Duration = Duration::from_secs(10);
/// While so many wait to be handed out again, nothing new is fetched.
const WAITING_MAX: usize = 10_000;
/// What is dropped without a word comes again after that.
const DROPPED_FOR: Duration = Duration::from_secs(1);

/// Publishes to topics.
pub struct KafkaPublisher {
    producer: FutureProducer,
    servers: String,
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
}

/// Hears of partitions that are taken away.
struct Watch {
    book: Arc<Mutex<Book>>,
}

impl ClientContext for Watch {}

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
        let producer = settings.create();
        Ok(Self {
            producer: producer.map_err(|error| told(&servers, error))?,
            servers,
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
        let watch = Watch { book: book.clone() };
        let failed = |error| told(&publisher.servers, error);
        let consumer: StreamConsumer<Watch> =
            settings.create_with_context(watch).map_err(failed)?;
        let consumer = Arc::new(consumer);
        look(consumer.clone(), &source.queue, &publisher.servers).await?;
        consumer.subscribe(&[&source.queue]).map_err(failed)?;
        let seat = Arc::new(Seat {
            topic: source.queue.clone(),
            consumer: Mutex::new(Some(consumer)),
            book,
            bell: Notify::new(),
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
        .set("enable.auto.commit", "true");
    Ok(settings)
}

/// Whether there is such a topic.
async fn look(consumer: Arc<StreamConsumer<Watch>>, topic: &str, servers: &str) -> Result<()> {
    let (name, shown) = (topic.to_owned(), servers.to_owned());
    let asking = tokio::task::spawn_blocking(move || {
        let found = consumer.fetch_metadata(Some(&name), ANSWER_MAX);
        let found = found.map_err(|error| told(&shown, error))?;
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
            sent.map(drop)
                .map_err(|(error, _)| told(&self.servers, error))
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
                return trouble.map_or(Ok(Vec::new()), Err);
            }
            match self.fetch(&consumer, deadline).await {
                Ok(()) => trouble = None,
                Err(error) => trouble = Some(told(&self.publisher.servers, error)),
            }
            self.seat.consumer()?;
            self.fetch_more(&consumer, at_most).await;
        }
    }

    /// Waits for the first message, or for one that was given back.
    async fn fetch(
        &self,
        consumer: &StreamConsumer<Watch>,
        deadline: Instant,
    ) -> Result<(), KafkaError> {
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
                Ok(Ok(record)) => {
                    self.seat.note(&record);
                    Ok(())
                }
                Ok(Err(error)) => {
                    // Such errors come in swarms while no broker answers.
                    tokio::time::sleep(left.min(Duration::from_millis(50))).await;
                    Err(error)
                }
                Err(_) => Ok(()),
            },
            () = rung => Ok(()),
        }
    }

    /// What is here already.
    async fn fetch_more(&self, consumer: &StreamConsumer<Watch>, at_most: usize) {
        while locked(&self.seat.book).waiting() < at_most {
            match timeout(Duration::ZERO, consumer.recv()).await {
                Ok(Ok(record)) => self.seat.note(&record),
                _ => return,
            }
        }
    }
}

impl Seat {
    fn consumer(&self) -> Result<Arc<StreamConsumer<Watch>>> {
        locked(&self.consumer).clone().ok_or_else(|| {
            let message = "this broker was closed; open it anew to go on";
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    fn note(&self, record: &rdkafka::message::BorrowedMessage<'_>) {
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

/// An error for the person who meets it.
fn told(place: &str, error: KafkaError) -> Error {
    let (kind, fix) = match &error {
        KafkaError::ClientConfig(..) => (
            ErrorKind::Invalid,
            "check the settings behind the address; TLS and SASL need rdkafka's features `ssl` and `sasl`",
        ),
        error => match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::InvalidTopic,
            ) => (ErrorKind::Invalid, "create the topic, or check its name"),
            Some(
                RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::SaslAuthenticationFailed,
            ) => (
                ErrorKind::Invalid,
                "check user, password and rights: read and write on the topic, read on the group",
            ),
            _ => (
                ErrorKind::Unavailable,
                "check the address, and that the brokers run",
            ),
        },
    };
    Error::new(kind, format!("Kafka, {place}: {error}; {fix}"))
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
