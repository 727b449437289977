//! Counts the messages between the group's committed offsets and the ends of the partitions.
//!
//! Kafka does not tell a delivered message from a waiting one: both are uncommitted.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rdkafka::{ClientConfig, consumer::BaseConsumer};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Lag, Source},
};
use tokio::sync::oneshot;

use super::{convert_error, errors::LastLogLine, list, locked, servers, settings};

/// Timeout of each request; short, because nothing waits for these counts.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Reads the lag of a group over connections of its own: on those of a member, the brokers answer nothing while the
/// group rebalances.
pub(super) struct LagReader {
    settings: ClientConfig,
    topic: String,
    servers: String,
    voice: LastLogLine,
    /// Has the group's name, for its committed offsets, and joins no group. Created at the first count.
    consumer: Mutex<Option<Arc<BaseConsumer<LastLogLine>>>>,
}

impl LagReader {
    pub(super) fn new(mut settings: ClientConfig, topic: &str) -> Arc<Self> {
        settings.set("enable.auto.commit", "false");
        Arc::new(Self {
            servers: servers(&settings),
            settings,
            topic: topic.into(),
            voice: LastLogLine::default(),
            consumer: Mutex::default(),
        })
    }

    /// Counts on a thread of its own: it blocks until the time is over if no broker answers, and the end of the program
    /// need not wait for it.
    pub(super) async fn lag(self: Arc<Self>) -> Result<Lag> {
        let servers = self.servers.clone();
        let (done, counted) = oneshot::channel();
        std::thread::spawn(move || {
            // An error means that the caller no longer waits.
            let _ = done.send(self.count());
        });
        let lost = |error| {
            let message = format!("cannot read the offsets of Kafka at {servers}");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        counted.await.map_err(lost)?.map(Lag::waiting)
    }

    /// Drops the connections. On a thread of its own, because that blocks for a moment.
    pub(super) fn close(&self) {
        if let Some(consumer) = locked(&self.consumer).take() {
            std::thread::spawn(move || drop(consumer));
        }
    }

    fn count(&self) -> Result<u64> {
        let Self {
            topic,
            servers,
            voice,
            ..
        } = self;
        let consumer = self.consumer()?;
        let partitions = list::partitions(&*consumer, topic, servers, voice)?;
        let starts_at_end = list::starts_at_end(&self.settings);
        let open = list::uncommitted(&*consumer, topic, partitions, starts_at_end, ANSWER_MAX);
        let open = open.map_err(|error| voice.explain(servers, error, ErrorKind::Unavailable))?;
        let counts = open.into_iter().map(|(_, offsets)| offsets.count() as u64);
        Ok(counts.sum())
    }

    fn consumer(&self) -> Result<Arc<BaseConsumer<LastLogLine>>> {
        let mut consumer = locked(&self.consumer);
        if let Some(consumer) = &*consumer {
            return Ok(consumer.clone());
        }
        let made = self.settings.create_with_context(self.voice.clone());
        let made = made.map_err(|error| convert_error(&self.servers, error))?;
        Ok(consumer.insert(Arc::new(made)).clone())
    }
}

pub(crate) async fn lag_of(source: &Source) -> Result<Lag> {
    let reader = LagReader::new(settings(source)?, &source.queue);
    reader.lag().await
}
