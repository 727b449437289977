//! Amazon SQS (`sqs://REGION`), standard and FIFO queues.
//!
//! A delivery's visibility timeout is [`ack_wait`](Source::ack_wait), rounded up to whole seconds; an
//! acknowledgement deletes the message. A message's [`id`](Message::id) is the id that it was published
//! with, else the deduplication id of a FIFO queue, else the message id of SQS. In a FIFO queue (its name
//! ends with `.fifo`) the messages of a [`group`](Message::group) arrive in order, and SQS deduplicates by
//! id within five minutes.
//!
//! Credentials come from the default AWS credential chain, or from the address: `sqs://KEY:SECRET@REGION`.
//! The query parameter `endpoint=URL` names a server other than Amazon's.
//!
//! ```no_run
//! # async fn run() -> refrain::Result<()> {
//! use refrain::consume::{Broker, Source};
//! let source = Source::new("sqs://eu-central-1", "orders.fifo", "billing");
//! let broker = refrain_brokers::sqs::Sqs::connect(&source).await?;
//! let deliveries = broker.pull(10, std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use aws_config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_sqs::{
    Client,
    config::Credentials,
    types::{self, QueueAttributeName as Attribute},
};
use aws_smithy_http_client::tls;
use refrain::{
    Backoff, Error, ErrorKind, Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source, Ticket},
};
use tokio::time::{Instant, sleep, timeout};

use crate::delivery_buffer::DeliveryBuffer;

mod address;
mod body;
mod errors;
mod lag;
mod list;

use address::Address;
use errors::{convert_error, is_lost, timed_out};
pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;

const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Time for an answer beyond the long poll's own wait.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// SQS limits: messages per receive, and the wait of a long poll.
const BATCH_MAX: usize = 10;
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The longest visibility timeout that SQS allows.
const HIDDEN_MAX: Duration = Duration::from_secs(12 * 3_600);
/// Backoff while SQS is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Maximum of cached queue URLs.
const QUEUES_MAX: usize = 1_000;

/// Publisher to SQS queues.
pub struct SqsPublisher {
    client: Client,
    /// Cached queue URLs by queue name.
    urls: Mutex<HashMap<String, String>>,
}

/// Consumer of an SQS queue.
pub struct Sqs {
    publisher: SqsPublisher,
    seat: Arc<SqsQueue>,
    shelf: DeliveryBuffer,
    /// Number of consecutive empty fetches.
    empty: Arc<AtomicU32>,
    age_max: Option<Duration>,
}

/// State shared by all deliveries of a queue.
struct SqsQueue {
    client: Client,
    queue: String,
    url: String,
    ack_wait: Duration,
    /// The last error of a receive; `None` after an answer.
    trouble: Mutex<Option<String>>,
}

impl SqsPublisher {
    /// Creates a publisher; the first request to SQS is sent when a message is published.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let client = client(&Address::parse(url)?).await;
        let urls = Mutex::default();
        Ok(Self { client, urls })
    }

    /// Returns the URL of a queue, given its name or its URL.
    async fn url(&self, queue: &str) -> Result<String> {
        if queue.starts_with("https://") || queue.starts_with("http://") {
            return Ok(queue.into());
        }
        let urls = || self.urls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(url) = urls().get(queue) {
            return Ok(url.clone());
        }
        let found = self.client.get_queue_url().queue_name(queue).send().await;
        let found = found.map_err(|error| convert_error(queue, error))?;
        let url = found.queue_url.unwrap_or_default();
        let mut urls = urls();
        if urls.len() >= QUEUES_MAX {
            urls.clear();
        }
        urls.insert(queue.into(), url.clone());
        Ok(url)
    }
}

impl Sqs {
    /// Looks up the source's queue, which must exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address, a missing queue, rejected credentials, or an
    /// `ack_wait` outside 1 second to 12 hours; otherwise [`ErrorKind::Unavailable`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        let Source {
            queue, ack_wait, ..
        } = source;
        if *ack_wait < Duration::from_secs(1) || *ack_wait > HIDDEN_MAX {
            let message = format!("SQS, {queue}: invalid ack_wait {ack_wait:?}; use 1s to 12h");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let publisher = SqsPublisher::connect(source.url.as_str()).await?;
        let url = publisher.url(queue).await?;
        let age_max = read_retention(&publisher.client, queue, &url).await?;
        let seat = Arc::new(SqsQueue {
            client: publisher.client.clone(),
            queue: queue.clone(),
            url,
            ack_wait: Duration::from_secs(whole_seconds(*ack_wait)),
            trouble: Mutex::default(),
        });
        Ok(Self {
            publisher,
            shelf: DeliveryBuffer::new(seat.ack_wait / 2).with_long_fetches(),
            empty: Arc::default(),
            seat,
            age_max,
        })
    }
}

/// Returns the queue's message retention; warns if the queue has a redrive policy of its own.
async fn read_retention(client: &Client, queue: &str, url: &str) -> Result<Option<Duration>> {
    let ask = client
        .get_queue_attributes()
        .queue_url(url)
        .attribute_names(Attribute::All);
    let found = ask
        .send()
        .await
        .map_err(|error| convert_error(queue, error))?;
    let attributes = found.attributes.unwrap_or_default();
    if attributes.contains_key(&Attribute::RedrivePolicy) {
        tracing::warn!(
            queue,
            "the queue has its own redrive policy: SQS may move a message to its dead-letter queue before the consumer's attempts are exhausted"
        );
    }
    let age_max = attributes.get(&Attribute::MessageRetentionPeriod);
    let age_max = age_max.and_then(|seconds| seconds.parse().ok());
    Ok(age_max.map(Duration::from_secs))
}

async fn client(address: &Address) -> Client {
    let provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(provider)
        .build_https();
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_MAX)
        .operation_timeout(WAIT_MAX + ANSWER_MAX);
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .region(Region::new(address.region.clone()))
        // The SDK must not retry: this module decides which requests may be sent twice.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts.build());
    if let Some((key, secret)) = &address.credentials {
        loader = loader.credentials_provider(Credentials::new(key, secret, None, None, "address"));
    }
    if let Some(endpoint) = &address.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    Client::new(&loader.load().await)
}

impl Publisher for SqsPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let url = self.url(destination).await?;
            let is_fifo = url.ends_with(".fifo");
            let send = body::write(self.client.send_message().queue_url(url), message, is_fifo);
            let send = send.map_err(|error| {
                let message = format!("SQS, {destination}: cannot send the message");
                Error::new(ErrorKind::Invalid, message).with_source(error)
            })?;
            // Not retried: in a standard queue a second message is a duplicate for consumers that do not
            // deduplicate by id.
            let sent = send.send().await;
            sent.map(drop)
                .map_err(|error| convert_error(destination, error))
        })
    }
}

impl Publisher for Sqs {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for Sqs {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        let fetch = move || fetch(self.seat.clone(), self.empty.clone(), at_most, wait);
        Box::pin(self.shelf.pull(at_most, wait, fetch))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: self.seat.url.ends_with(".fifo"),
            counts_attempts: true,
            ack_wait: Some(self.seat.ack_wait),
            age_max: self.age_max,
        }
    }

    /// Waits for the answer to one receive: a pull may end before SQS answers.
    fn ready(&self, wait: Duration) -> Answer<'_, ()> {
        let poll = Duration::from_secs(1);
        let fetch = move || fetch(self.seat.clone(), self.empty.clone(), BATCH_MAX, poll);
        Box::pin(async move {
            match self.shelf.fill(wait, fetch).await? {
                true => Ok(()),
                false => Err(timed_out(&self.seat.queue, wait)),
            }
        })
    }

    fn trouble(&self) -> Option<Error> {
        self.seat.trouble()
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(lag::lag(&self.seat))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            for delivery in self.shelf.close().await {
                delivery.ticket.nack(Duration::ZERO).await?;
            }
            Ok(())
        })
    }
}

/// Fetches the next deliveries; waits for the first one, and retries while SQS is unavailable.
///
/// Each request costs money, so an idle consumer polls for longer: up to the longest wait that SQS allows.
async fn fetch(
    seat: Arc<SqsQueue>,
    empty: Arc<AtomicU32>,
    at_most: usize,
    wait: Duration,
) -> Result<Vec<Delivery>> {
    let deadline = Instant::now() + wait;
    let doublings = empty.load(Ordering::Relaxed).min(5);
    let long_poll = Duration::from_secs(whole_seconds(wait)) * 2_u32.pow(doublings);
    let mut delays = BACKOFF.delays();
    loop {
        // After an error an immediate answer shows at once that SQS is available again.
        let poll = match seat.trouble() {
            Some(_) => Duration::ZERO,
            None => long_poll,
        };
        match seat.receive(at_most, poll).await {
            Ok(found) => {
                match found.is_empty() {
                    true => empty.fetch_add(1, Ordering::Relaxed),
                    false => empty.swap(0, Ordering::Relaxed),
                };
                return Ok(found);
            }
            Err(error) if Instant::now() + delays.peek() >= deadline => return Err(error),
            Err(error) => {
                tracing::debug!(%error, queue = seat.queue, "cannot fetch messages; retrying");
                sleep(delays.after_failure()).await;
            }
        }
    }
}

impl SqsQueue {
    async fn receive(self: &Arc<Self>, at_most: usize, wait: Duration) -> Result<Vec<Delivery>> {
        let received = self.receive_raw(at_most, wait).await;
        let trouble = received.as_ref().err().map(ToString::to_string);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        let messages = received?.into_iter();
        Ok(messages.map(|message| self.delivery(message)).collect())
    }

    async fn receive_raw(&self, at_most: usize, wait: Duration) -> Result<Vec<types::Message>> {
        let wait = wait.min(WAIT_MAX);
        let receive = self.client.receive_message().queue_url(&self.url);
        let receiving = receive
            .max_number_of_messages(at_most.clamp(1, BATCH_MAX) as i32)
            .visibility_timeout(seconds(self.ack_wait))
            .wait_time_seconds(whole_seconds(wait) as i32)
            .message_system_attribute_names(types::MessageSystemAttributeName::All)
            .message_attribute_names("All")
            .send();
        let received = timeout(wait + ANSWER_MAX, receiving).await;
        let received = received.map_err(|_| timed_out(&self.queue, wait + ANSWER_MAX))?;
        let received = received.map_err(|error| convert_error(&self.queue, error))?;
        Ok(received.messages.unwrap_or_default())
    }

    fn trouble(&self) -> Option<Error> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let message = trouble.clone()?;
        Some(Error::new(ErrorKind::Unavailable, message))
    }

    fn delivery(self: &Arc<Self>, mut received: types::Message) -> Delivery {
        let handle = received.receipt_handle.take().unwrap_or_default();
        let (message, attempt) = body::read(&self.queue, received);
        let seat = self.clone();
        Delivery {
            message,
            attempt,
            ticket: Box::new(SqsTicket { seat, handle }),
        }
    }
}

/// Acknowledgement handle of a message that is invisible to other consumers.
struct SqsTicket {
    seat: Arc<SqsQueue>,
    /// The receipt handle of this delivery.
    handle: String,
}

impl SqsTicket {
    async fn set_visibility(&self, span: Duration) -> Result<()> {
        let SqsQueue {
            client, queue, url, ..
        } = &*self.seat;
        let change = || {
            client
                .change_message_visibility()
                .queue_url(url)
                .receipt_handle(&self.handle)
                .visibility_timeout(seconds(span))
                .send()
        };
        let mut changed = change().await;
        if changed.as_ref().is_err_and(is_lost) {
            changed = change().await;
        }
        changed
            .map(drop)
            .map_err(|error| convert_error(queue, error))
    }
}

impl Ticket for SqsTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let SqsQueue {
                client, queue, url, ..
            } = &*self.seat;
            let delete = || {
                client
                    .delete_message()
                    .queue_url(url)
                    .receipt_handle(&self.handle)
                    .send()
            };
            let mut deleted = delete().await;
            if deleted.as_ref().is_err_and(is_lost) {
                deleted = delete().await;
            }
            deleted
                .map(drop)
                .map_err(|error| convert_error(queue, error))
        })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            match self.set_visibility(delay).await {
                // Another consumer holds the message: there is nothing to nack.
                Err(error) if error.kind() == ErrorKind::Held => Ok(()),
                hidden => hidden,
            }
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(self.set_visibility(self.seat.ack_wait))
    }
}

/// Rounds up to whole seconds.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

fn seconds(span: Duration) -> i32 {
    whole_seconds(span.min(HIDDEN_MAX)) as i32
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher").finish_non_exhaustive()
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sqs").field(&self.seat.url).finish()
    }
}
