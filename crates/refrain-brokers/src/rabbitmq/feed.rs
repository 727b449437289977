//! Pulling: the server pushes deliveries up to the prefetch limit, and a pull takes them from the local stream.

use std::{
    cmp::{max, min},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::SelectAll};
use lapin::{
    Connection, Consumer,
    message::Delivery as Delivered,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::{FieldTable, ShortString},
};
use refrain::{Backoff, Error, ErrorKind, Result, consume::Delivery};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Rabbit, codec, connect, errors, queues,
    ticket::{Held, RabbitTicket},
};

/// Maximum of unacknowledged deliveries; the server stores the prefetch count in 16 bits.
const PREFETCH_MAX: usize = 10_000;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// Incoming deliveries of one connection.
///
/// The prefetch count of a running consumer cannot be raised, so a further consumer is started when a pull needs more.
pub(super) struct Feed {
    connection: Arc<Connection>,
    arriving: SelectAll<Consumer>,
    prefetch: usize,
    held: Held,
}

pub(super) async fn pull(rabbit: &Rabbit, at_most: usize, wait: Duration) -> Result<Vec<Delivery>> {
    if at_most == 0 {
        return Ok(Vec::new());
    }
    let deadline = Instant::now() + wait;
    let Ok(mut feed) = timeout_at(deadline, rabbit.feed.lock()).await else {
        return Ok(Vec::new());
    };
    let mut delays = BACKOFF.delays();
    loop {
        let trouble = match next(rabbit, &mut feed, at_most, deadline).await {
            Err(error) if error.is_retryable() => error,
            done => return done,
        };
        *feed = None;
        if Instant::now() + delays.peek() >= deadline {
            return Err(trouble);
        }
        tracing::warn!(server = rabbit.desk.server(), "{trouble}");
        sleep(delays.after_failure()).await;
    }
}

/// Waits for the first delivery, and takes those that arrived with it.
async fn next(
    rabbit: &Rabbit,
    place: &mut Option<Feed>,
    at_most: usize,
    deadline: Instant,
) -> Result<Vec<Delivery>> {
    let feed = match place {
        Some(feed) => feed,
        None => place.insert(Feed::open(rabbit).await?),
    };
    feed.raise_prefetch(rabbit, at_most).await?;
    let mut got = Vec::new();
    let Ok(first) = timeout_at(deadline, feed.arriving.next()).await else {
        return match feed.connection.status().connected() {
            true => Ok(got),
            false => Err(queue_lost(rabbit)),
        };
    };
    got.push(feed.delivery(rabbit, first)?);
    while got.len() < at_most {
        match feed.arriving.next().now_or_never() {
            // An error shows again at the next pull; the deliveries taken so far are valid.
            Some(Some(Ok(next))) => got.push(feed.delivery(rabbit, Some(Ok(next)))?),
            _ => break,
        }
    }
    Ok(got)
}

impl Feed {
    async fn open(rabbit: &Rabbit) -> Result<Self> {
        let connection = rabbit.desk.connection().await?;
        queues::ensure(&connection, rabbit.desk.server(), &rabbit.queue).await?;
        Ok(Self {
            connection,
            arriving: SelectAll::new(),
            prefetch: 0,
            held: Held::default(),
        })
    }

    /// Raises the prefetch limit to the unacknowledged deliveries plus `at_most`.
    async fn raise_prefetch(&mut self, rabbit: &Rabbit, at_most: usize) -> Result<()> {
        let held = self.held.load(Ordering::Relaxed);
        let needed = min(held.saturating_add(at_most), PREFETCH_MAX);
        if needed <= self.prefetch {
            return Ok(());
        }
        // At least doubles the prefetch limit, so that few consumers suffice.
        let more = max(needed - self.prefetch, self.prefetch);
        let consumer = self.consumer(rabbit, more as u16).await?;
        self.arriving.push(consumer);
        self.prefetch += more;
        Ok(())
    }

    async fn consumer(&self, rabbit: &Rabbit, prefetch: u16) -> Result<Consumer> {
        let server = rabbit.desk.server();
        let channel = connect::channel(&self.connection, server).await?;
        let limiting = channel.basic_qos(prefetch, BasicQosOptions::default());
        errors::wait_for_reply(server, limiting).await?;
        let consuming = channel.basic_consume(
            queues::name(&rabbit.queue)?,
            tag(&rabbit.consumer, self.arriving.len()),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        errors::wait_for_reply(server, consuming).await
    }

    fn delivery(
        &self,
        rabbit: &Rabbit,
        next: Option<lapin::Result<Delivered>>,
    ) -> Result<Delivery> {
        let mut delivered = match next {
            Some(Ok(delivered)) => delivered,
            Some(Err(error)) => return Err(delivery_error(rabbit, &error)),
            None => return Err(queue_lost(rabbit)),
        };
        let payload = bytes::Bytes::from(std::mem::take(&mut delivered.data));
        let (message, attempt) = codec::message_of(&delivered, payload.clone());
        self.held.fetch_add(1, Ordering::Relaxed);
        let ticket = RabbitTicket {
            acker: delivered.acker,
            held: self.held.clone(),
            publisher: rabbit.publisher.clone(),
            queue: rabbit.queue.as_str().into(),
            payload,
            properties: delivered.properties,
            subject: message.subject.clone(),
            attempt,
        };
        Ok(Delivery {
            message,
            attempt,
            ticket: Box::new(ticket),
        })
    }
}

/// Consumer tag with the consumer's name, for operators; if it is too long, the server generates a tag.
fn tag(consumer: &str, number: usize) -> ShortString {
    // The tag need only be unique within the channel.
    ShortString::try_new(format!("{consumer}.{number}")).unwrap_or_default()
}

/// The stream of deliveries ended; the error is retryable.
fn delivery_error(rabbit: &Rabbit, error: &lapin::Error) -> Error {
    let message = format!(
        "the delivery of messages from {:?} at RabbitMQ {} stopped: {error}",
        rabbit.queue,
        rabbit.desk.server()
    );
    Error::new(ErrorKind::Unavailable, message)
}

fn queue_lost(rabbit: &Rabbit) -> Error {
    let message = format!(
        "the queue {:?} at RabbitMQ {} was deleted, or the connection was lost",
        rabbit.queue,
        rabbit.desk.server()
    );
    Error::new(ErrorKind::Unavailable, message)
}
