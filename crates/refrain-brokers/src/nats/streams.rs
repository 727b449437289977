//! Finds or creates streams and consumers.

use std::{cmp::min, time::Duration};

use async_nats::jetstream::{
    ErrorCode,
    consumer::{self, AckPolicy, PullConsumer, pull},
    context::{CreateStreamErrorKind, GetStreamByNameErrorKind, GetStreamErrorKind},
    stream::{self, ConsumerErrorKind, DiscardPolicy, RetentionPolicy, StorageType},
};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Guarantees, Source},
};

use super::{NatsPublisher, errors};

/// Maximum of unacknowledged deliveries (`max_ack_pending`), including those nacked with a delay. At this
/// limit JetStream stops delivering.
const HELD_MAX: i64 = 10_000;
const UNLIMITED: i64 = -1;

/// A consumer and its delivery guarantees.
pub(super) struct FoundConsumer {
    pub(super) consumer: PullConsumer,
    pub(super) guarantees: Guarantees,
}

/// Finds or creates the stream and the consumer of a source.
pub(super) async fn find(nats: &NatsPublisher, source: &Source) -> Result<FoundConsumer> {
    let (stream, filter) = match locate(nats, &source.queue).await? {
        Some(found) => found,
        None => (create(nats, &source.queue).await?, None),
    };
    let consumer = consumer(nats, source, &stream.name, filter).await?;
    let settings = &consumer.cached_info().config;
    check_settings(nats, source, settings)?;
    let guarantees = guarantees(&stream, settings);
    Ok(FoundConsumer {
        consumer,
        guarantees,
    })
}

/// Finds the stream by name or by subject; for a subject, also returns the subject to filter by.
pub(super) async fn locate(
    nats: &NatsPublisher,
    queue: &str,
) -> Result<Option<(stream::Config, Option<String>)>> {
    if is_name(queue)
        && let Some(stream) = find_by_name(nats, queue).await?
    {
        return Ok(Some((stream, None)));
    }
    let what = || format!("cannot find the stream of {queue:?}");
    let name = match nats.context.stream_by_subject(queue).await {
        Ok(name) => name,
        Err(error) => {
            return match error.kind() {
                GetStreamByNameErrorKind::NotFound => Ok(None),
                GetStreamByNameErrorKind::InvalidSubject => Err(no_subject(queue)),
                GetStreamByNameErrorKind::JetStream(refusal) => {
                    Err(errors::refused(nats.server(), &what(), &refusal))
                }
                GetStreamByNameErrorKind::Request => {
                    Err(errors::convert_error(nats.server(), &what(), None, &error))
                }
            };
        }
    };
    let stream = find_by_name(nats, &name).await?;
    Ok(stream.map(|stream| (stream, Some(queue.to_owned()))))
}

async fn find_by_name(nats: &NatsPublisher, name: &str) -> Result<Option<stream::Config>> {
    let error = match nats.context.get_stream(name).await {
        Ok(stream) => return Ok(Some(stream.cached_info().config.clone())),
        Err(error) => error,
    };
    let what = format!("cannot find the stream {name:?}");
    match error.kind() {
        GetStreamErrorKind::JetStream(refusal)
            if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
        {
            Ok(None)
        }
        GetStreamErrorKind::JetStream(refusal) => {
            Err(errors::refused(nats.server(), &what, &refusal))
        }
        _ => Err(errors::convert_error(nats.server(), &what, None, &error)),
    }
}

/// Creates a stream for one subject. A full stream rejects new messages instead of deleting old ones.
pub(super) async fn create(nats: &NatsPublisher, subject: &str) -> Result<stream::Config> {
    if subject.contains(['*', '>']) {
        let message = format!(
            "no stream at NATS {} accepts {subject:?}; create one, or use a subject without wildcards, so that Refrain can create the stream",
            nats.server()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let settings = stream::Config {
        name: name_for(subject),
        subjects: vec![subject.to_owned()],
        storage: StorageType::File,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        num_replicas: 1,
        description: Some("created by refrain".into()),
        ..stream::Config::default()
    };
    let error = match nats.context.create_stream(&settings).await {
        Ok(stream) => {
            tracing::info!(
                server = nats.server(),
                stream = settings.name,
                subject,
                "created a stream"
            );
            return Ok(stream.cached_info().config.clone());
        }
        Err(error) => error,
    };
    let what = format!("cannot create the stream {:?}", settings.name);
    match error.kind() {
        CreateStreamErrorKind::JetStream(refusal) => {
            Err(errors::refused(nats.server(), &what, &refusal))
        }
        CreateStreamErrorKind::JetStreamUnavailable => Err(errors::no_jetstream(nats.server())),
        _ => Err(errors::convert_error(nats.server(), &what, None, &error)),
    }
}

async fn consumer(
    nats: &NatsPublisher,
    source: &Source,
    stream: &str,
    filter: Option<String>,
) -> Result<PullConsumer> {
    let name = &source.consumer;
    if !is_name(name) {
        let message = format!(
            "invalid consumer name {name:?} for a durable NATS consumer; remove dots, wildcards, slashes and white space"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let found = nats.context.get_consumer_from_stream(name, stream).await;
    let is_missing = |kind| {
        matches!(kind, ConsumerErrorKind::JetStream(refusal)
            if refusal.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
    };
    let asked = match found {
        Err(error) if is_missing(error.kind()) => {
            let settings = settings(source, filter);
            nats.context
                .create_consumer_on_stream(settings, stream)
                .await
        }
        found => found,
    };
    asked.map_err(|error| {
        let what = format!("the consumer {name:?} of the stream {stream:?}");
        match error.kind() {
            ConsumerErrorKind::JetStream(refusal) => {
                errors::refused(nats.server(), &what, &refusal)
            }
            ConsumerErrorKind::InvalidConsumerType => {
                unusable_consumer(nats, &what, "it is a push consumer")
            }
            _ => errors::convert_error(nats.server(), &what, None, &error),
        }
    })
}

fn settings(source: &Source, filter: Option<String>) -> pull::Config {
    pull::Config {
        durable_name: Some(source.consumer.clone()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: source.ack_wait,
        // Refrain counts attempts itself, and sends a message that failed too often to the dead-letter destination.
        max_deliver: UNLIMITED,
        max_ack_pending: HELD_MAX,
        filter_subject: filter.unwrap_or_default(),
        ..pull::Config::default()
    }
}

/// Rejects an existing consumer whose settings would lose messages; warns about a delivery limit.
fn check_settings(
    nats: &NatsPublisher,
    source: &Source,
    settings: &consumer::Config,
) -> Result<()> {
    let what = format!("the consumer {:?}", source.consumer);
    if settings.ack_policy != AckPolicy::Explicit {
        let why =
            "its ack policy is not explicit, so unhandled messages would count as acknowledged";
        return Err(unusable_consumer(nats, &what, why));
    }
    if settings.max_deliver > 0 {
        tracing::warn!(
            server = nats.server(),
            consumer = source.consumer,
            max_deliver = settings.max_deliver,
            "NATS stops delivering a message after this many attempts, whether it was handled or not; set max_deliver to -1"
        );
    }
    Ok(())
}

fn unusable_consumer(nats: &NatsPublisher, what: &str, why: &str) -> Error {
    let message = format!(
        "{what} at NATS {} cannot be used: {why}; change it to a pull consumer with explicit acknowledgements, or use another consumer name",
        nats.server()
    );
    Error::new(ErrorKind::Invalid, message)
}

fn guarantees(stream: &stream::Config, settings: &consumer::Config) -> Guarantees {
    let ack_wait = settings.backoff.iter().copied().min();
    Guarantees {
        // With `max_ack_pending = 1` the next message is delivered only after an acknowledgement, not after a nack.
        is_ordered: settings.max_ack_pending == 1,
        counts_attempts: true,
        ack_wait: Some(min(
            ack_wait.unwrap_or(settings.ack_wait),
            settings.ack_wait,
        )),
        age_max: Some(stream.max_age).filter(|age| *age > Duration::ZERO),
    }
}

/// Whether the text is a valid name of a stream or a consumer.
fn is_name(text: &str) -> bool {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    !text.is_empty() && !text.contains(is_bad)
}

/// Derives a stream's name from a subject: `orders_dead` for `orders.dead`.
fn name_for(subject: &str) -> String {
    let fit = |c: char| {
        if is_name(c.encode_utf8(&mut [0; 4])) {
            c
        } else {
            '_'
        }
    };
    subject.chars().map(fit).collect()
}

fn no_subject(queue: &str) -> Error {
    let message =
        format!("{queue:?} is neither a stream name nor a subject; write words separated by dots");
    Error::new(ErrorKind::Invalid, message)
}
