//! Lists the dead letters of a topic without joining the consumer group and without commits: reading changes
//! nothing.

use std::{ops::Range, sync::Arc, time::Duration};

use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer, ConsumerContext, StreamConsumer},
    error::{KafkaError, KafkaResult},
};
use refrain::{
    Error, ErrorKind, Result,
    clock::Timestamp,
    consume::{DeadLetter, Source},
};
use tokio::time::Instant;

use super::{
    ANSWER_MAX, KafkaContext, KafkaPublisher, LOOK_EVERY, errors, errors::LastLogLine, record,
    servers, settings,
};

pub(crate) async fn dead_letters(source: &Source, at_most: usize) -> Result<Vec<DeadLetter>> {
    let mut settings = settings(source)?;
    settings.set("enable.auto.commit", "false");
    let starts_at_end = starts_at_end(&settings);
    let servers = servers(&settings);
    let voice = LastLogLine::default();
    let consumer: BaseConsumer<LastLogLine> = settings
        .create_with_context(voice.clone())
        .map_err(|error| errors::convert_error(&servers, error))?;
    let topic = source.queue.clone();
    let shown = servers.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let listing = Listing {
            consumer,
            voice,
            servers,
            topic,
            starts_at_end,
            at_most,
        };
        listing.read()
    });
    reading.await.map_err(|error| {
        let message = format!("cannot list dead letters of Kafka at {shown}");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?
}

/// Whether a group without a committed offset starts at the end.
pub(super) fn starts_at_end(settings: &ClientConfig) -> bool {
    let reset = settings.get("auto.offset.reset");
    reset.is_some_and(|it| matches!(it, "latest" | "largest" | "end"))
}

/// Returns the offsets of each partition that a group has not committed yet.
pub(super) fn uncommitted<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    topic: &str,
    partitions: Vec<i32>,
    starts_at_end: bool,
    answer_max: Duration,
) -> KafkaResult<Vec<(i32, Range<i64>)>> {
    let mut asked = TopicPartitionList::new();
    for partition in partitions {
        asked.add_partition(topic, partition);
    }
    let committed = consumer.committed_offsets(asked, answer_max)?;
    let places = committed.elements().into_iter().map(|place| {
        let (low, high) = consumer.fetch_watermarks(topic, place.partition(), answer_max)?;
        let from = match place.offset() {
            Offset::Offset(next) => next.max(low),
            _ if starts_at_end => high,
            _ => low,
        };
        Ok((place.partition(), from..high))
    });
    places.collect()
}

/// A read of all partitions, from the group's committed offsets to the high watermarks.
struct Listing {
    /// Has the group's name, for its committed offsets, and joins no group: its partitions are assigned by hand.
    consumer: BaseConsumer<LastLogLine>,
    voice: LastLogLine,
    servers: String,
    topic: String,
    /// Whether a group without a committed offset starts at the end.
    starts_at_end: bool,
    at_most: usize,
}

impl Listing {
    fn read(&self) -> Result<Vec<DeadLetter>> {
        let partitions = partitions(&self.consumer, &self.topic, &self.servers, &self.voice)?;
        let open = uncommitted(
            &self.consumer,
            &self.topic,
            partitions,
            self.starts_at_end,
            ANSWER_MAX,
        );
        let mut letters = Vec::new();
        for (partition, Range { start, end }) in open.map_err(|error| self.convert_error(error))? {
            if start < end {
                letters.extend(self.read_partition(partition, start, end)?);
            }
        }
        // Each partition is in order by itself.
        letters.sort_by_key(|letter| letter.time);
        letters.truncate(self.at_most);
        Ok(letters)
    }

    fn read_partition(&self, partition: i32, from: i64, high: i64) -> Result<Vec<DeadLetter>> {
        let mut place = TopicPartitionList::new();
        place
            .add_partition_offset(&self.topic, partition, Offset::Offset(from))
            .and_then(|()| self.consumer.assign(&place))
            .map_err(|error| self.convert_error(error))?;
        let mut letters = Vec::new();
        let mut trouble = None;
        let mut heard = Instant::now();
        while letters.len() < self.at_most {
            if heard.elapsed() > ANSWER_MAX {
                return Err(
                    trouble.unwrap_or_else(|| errors::not_ready(&self.topic, 1, ANSWER_MAX))
                );
            }
            let record = match self.consumer.poll(LOOK_EVERY) {
                None => continue,
                // Records at the end may be markers of transactions, which are not delivered.
                Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => break,
                // The end of the partition before.
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) => {
                    trouble = Some(self.convert_error(error));
                    continue;
                }
                Some(Ok(record)) if record.partition() != partition => continue,
                Some(Ok(record)) => record,
            };
            heard = Instant::now();
            let time = record.timestamp().to_millis();
            let time = time.and_then(|millis| u64::try_from(millis).ok());
            if record.offset() < high {
                letters.push(DeadLetter::of(&record::read(&record), time.map(Timestamp)));
            }
            if record.offset() + 1 >= high {
                break;
            }
        }
        Ok(letters)
    }

    fn convert_error(&self, error: KafkaError) -> Error {
        self.voice
            .explain(&self.servers, error, ErrorKind::Unavailable)
    }
}

/// Returns the partitions of a topic, which must exist.
pub(super) fn partitions<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    topic: &str,
    servers: &str,
    voice: &LastLogLine,
) -> Result<Vec<i32>> {
    let found = consumer.fetch_metadata(Some(topic), ANSWER_MAX);
    let found = found.map_err(|error| voice.explain(servers, error, ErrorKind::Invalid))?;
    let found = found
        .topics()
        .iter()
        .find(|it| it.name() == topic && it.error().is_none() && !it.partitions().is_empty());
    let Some(found) = found else {
        let message =
            format!("Kafka at {servers} has no topic {topic}; create it, or check its name");
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    Ok(found.partitions().iter().map(|it| it.id()).collect())
}

/// Checks that the topic exists.
pub(super) async fn check_topic(
    consumer: Arc<StreamConsumer<KafkaContext>>,
    topic: &str,
    publisher: &KafkaPublisher,
) -> Result<()> {
    let KafkaPublisher { servers, voice, .. } = publisher;
    let (name, shown, voice) = (topic.to_owned(), servers.clone(), voice.clone());
    let asking = tokio::task::spawn_blocking(move || {
        partitions(&*consumer, &name, &shown, &voice).map(drop)
    });
    asking.await.map_err(|error| {
        let message = format!("cannot read topic metadata from Kafka at {servers}");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?
}
