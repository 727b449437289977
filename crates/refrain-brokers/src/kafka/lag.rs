//! Counts the messages between the group's committed offsets and the ends of the partitions.
//!
//! Kafka does not tell a delivered message from a waiting one: both are uncommitted.

use std::{sync::Arc, time::Duration};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Lag, Source},
};
use tokio::sync::oneshot;

use super::{Kafka, convert_error, errors::LastLogLine, list, servers, settings};

/// Timeout of each request; short, because nothing waits for these counts.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// What is counted.
struct Counting {
    topic: String,
    /// Whether a group without a committed offset starts at the end.
    starts_at_end: bool,
    servers: String,
    voice: LastLogLine,
}

pub(super) async fn lag(kafka: &Kafka) -> Result<Lag> {
    let counting = Counting {
        topic: kafka.seat.topic.clone(),
        starts_at_end: kafka.seat.starts_at_end,
        servers: kafka.publisher.servers.clone(),
        voice: kafka.publisher.voice.clone(),
    };
    count_apart(kafka.seat.consumer()?, counting).await
}

/// Counts with a consumer that has the group's name, for its committed offsets, and joins no group.
pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let mut settings = settings(source)?;
    settings.set("enable.auto.commit", "false");
    let counting = Counting {
        topic: source.queue.clone(),
        starts_at_end: list::starts_at_end(&settings),
        servers: servers(&settings),
        voice: LastLogLine::default(),
    };
    let consumer = settings.create_with_context(counting.voice.clone());
    let consumer = consumer.map_err(|error| convert_error(&counting.servers, error))?;
    count_apart::<_, BaseConsumer<LastLogLine>>(Arc::new(consumer), counting).await
}

/// Counts on a thread of its own: it blocks until the time is over if no broker answers, and the end of the program need
/// not wait for it.
async fn count_apart<C: ConsumerContext, T: Consumer<C> + Send + Sync + 'static>(
    consumer: Arc<T>,
    counting: Counting,
) -> Result<Lag> {
    let servers = counting.servers.clone();
    let (done, counted) = oneshot::channel();
    std::thread::spawn(move || {
        // An error means that the caller no longer waits.
        let _ = done.send(counting.count(&*consumer));
    });
    let lost = |error| {
        let message = format!("cannot read the offsets of Kafka at {servers}");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    counted.await.map_err(lost)?.map(Lag::waiting)
}

impl Counting {
    fn count<C: ConsumerContext>(&self, consumer: &impl Consumer<C>) -> Result<u64> {
        let Self {
            topic,
            servers,
            voice,
            ..
        } = self;
        let partitions = list::partitions(consumer, topic, servers, voice)?;
        let open = list::uncommitted(consumer, topic, partitions, self.starts_at_end, ANSWER_MAX);
        let open = open.map_err(|error| voice.explain(servers, error, ErrorKind::Unavailable))?;
        let counts = open.into_iter().map(|(_, offsets)| offsets.count() as u64);
        Ok(counts.sum())
    }
}
