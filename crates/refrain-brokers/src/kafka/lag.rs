//! Counts the messages between the group's committed offsets and the ends of the partitions.
//!
//! Kafka does not tell a delivered message from a waiting one: both are uncommitted.

use std::{sync::Arc, time::Duration};

use rdkafka::consumer::StreamConsumer;
use refrain::{Error, ErrorKind, Result, consume::Lag};
use tokio::sync::oneshot;

use super::{Kafka, KafkaContext, KafkaMember, errors::LastLogLine, list};

/// Timeout of each request; short, because nothing waits for these counts.
const ANSWER_MAX: Duration = Duration::from_secs(3);

pub(super) async fn lag(kafka: &Kafka) -> Result<Lag> {
    let (consumer, seat) = (kafka.seat.consumer()?, kafka.seat.clone());
    let (servers, voice) = (
        kafka.publisher.servers.clone(),
        kafka.publisher.voice.clone(),
    );
    let shown = servers.clone();
    let (done, counted) = oneshot::channel();
    // Blocks until the time is over if no broker answers, and the end of the program need not wait for it.
    std::thread::spawn(move || {
        // An error means that the caller no longer waits.
        let _ = done.send(count(&consumer, &seat, &servers, &voice));
    });
    let lost = |error| {
        let message = format!("cannot read the offsets of Kafka at {shown}");
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    counted.await.map_err(lost)?.map(Lag::waiting)
}

fn count(
    consumer: &Arc<StreamConsumer<KafkaContext>>,
    seat: &KafkaMember,
    servers: &str,
    voice: &LastLogLine,
) -> Result<u64> {
    let partitions = list::partitions(&**consumer, &seat.topic, servers, voice)?;
    let open = list::uncommitted(
        &**consumer,
        &seat.topic,
        partitions,
        seat.starts_at_end,
        ANSWER_MAX,
    );
    let open = open.map_err(|error| voice.explain(servers, error, ErrorKind::Unavailable))?;
    let counts = open.into_iter().map(|(_, offsets)| offsets.count() as u64);
    Ok(counts.sum())
}
