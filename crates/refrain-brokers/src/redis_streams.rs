//! Redis Streams (`redis://…`), read through a consumer group.
//!
//! The group has the consumer's name. An entry that is pending for longer than
//! [`ack_wait`](Source::ack_wait) is claimed by the next member that checks: this is the redelivery, and
//! the server counts it. An acknowledged entry stays in the stream for the other groups; the query
//! parameter `trim=handled` removes only the entries that every group has acknowledged.
//!
//! An entry that Refrain publishes has the fields `payload`, `id`, `group`, `content-type` and
//! `header:NAME`. An entry without a `payload` field is delivered as a JSON object of its fields.
//!
//! Redis does not deduplicate: two publishes under one [`id`](Message::id) add two entries, and the
//! consumer handles one of them.
//!
//! ```no_run
//! # async fn run() -> refrain::Result<()> {
//! use refrain::consume::{Broker, Source};
//! let source = Source::new("redis://127.0.0.1", "orders", "billing");
//! let broker = refrain_brokers::redis_streams::RedisStreams::connect(&source).await?;
//! let deliveries = broker.pull(16, std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use ::redis::{Script, cmd};
use refrain::{
    Error, ErrorKind, Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source, Ticket},
};
use tokio::sync::Mutex;

use crate::delivery_buffer::DeliveryBuffer;

mod address;
mod connection;
mod entry;
mod errors;
mod lag;
mod list;
mod meet;
mod read;

use address::{Address, Settings};
use connection::StreamConnection;
pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;
use read::Reader;

/// Minimum `ack_wait`: the server counts in milliseconds, and members check for overdue entries at intervals.
const ACK_WAIT_MIN: Duration = Duration::from_millis(100);
/// Maximum delay of a nack; a longer one is cut to this.
const DELAY_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Expiry of the hash of delayed entries; longer than any delay.
const LATER_KEPT: Duration = Duration::from_secs(14 * 86_400);

/// Publisher to Redis streams.
pub struct RedisPublisher {
    line: Arc<StreamConnection>,
}

/// Consumer of a Redis stream, as a member of a consumer group.
pub struct RedisStreams {
    publisher: RedisPublisher,
    seat: Arc<StreamMember>,
    shelf: DeliveryBuffer,
}

/// Membership in a consumer group.
struct StreamMember {
    line: Arc<StreamConnection>,
    stream: String,
    group: String,
    /// Unique per connection, so that two connections never take each other's deliveries for their own.
    consumer: String,
    /// Key of a hash from entry id to the time before which the entry is not due. Used for nacks with a
    /// delay longer than `ack_wait`.
    later: String,
    ack_wait: Duration,
    settings: Settings,
    hold: Script,
    reader: Mutex<Reader>,
}

impl RedisPublisher {
    /// Connects to the server at a `redis://` or `rediss://` address.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address or rejected credentials; [`ErrorKind::Unsupported`]
    /// for a server before 6.2; otherwise [`ErrorKind::Unavailable`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        let publisher = Self::new(&address)?;
        meet::check_server(&publisher.line).await?;
        Ok(publisher)
    }

    fn new(address: &Address) -> Result<Self> {
        choose_crypto();
        let line = Arc::new(StreamConnection::new(address)?);
        Ok(Self { line })
    }
}

impl RedisStreams {
    /// Joins the consumer group of the source's consumer on the source's stream; creates both if missing.
    ///
    /// A new group starts at the beginning of the stream; with the query parameter `start=new`, at its end.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid address, a key that holds no stream, an `ack_wait` under 100
    /// ms, or rejected credentials; [`ErrorKind::Unsupported`] for a server before 6.2; otherwise
    /// [`ErrorKind::Unavailable`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        let address = Address::parse(source.url.as_str())?;
        if source.ack_wait < ACK_WAIT_MIN || source.queue.is_empty() || source.consumer.is_empty() {
            let message = format!(
                "a stream at {} needs a name, a consumer name, and an ack_wait of at least {ACK_WAIT_MIN:?}",
                address.shown
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let publisher = RedisPublisher::new(&address)?;
        meet::check_server(&publisher.line).await?;
        let seat = Arc::new(StreamMember::new(source, &publisher, address.settings));
        meet::join(&seat).await?;
        Ok(Self {
            publisher,
            seat,
            shelf: DeliveryBuffer::new(source.ack_wait / 2),
        })
    }
}

impl StreamMember {
    fn new(source: &Source, publisher: &RedisPublisher, settings: Settings) -> Self {
        let (stream, group) = (&source.queue, &source.consumer);
        Self {
            line: publisher.line.clone(),
            stream: stream.clone(),
            group: group.clone(),
            consumer: format!("{group}-{:016x}", rand::random::<u64>()),
            later: format!("{stream}:refrain-later:{group}"),
            ack_wait: source.ack_wait,
            settings,
            hold: Script::new(include_str!("../lua/streams-hold.lua")),
            reader: Mutex::new(Reader::new()),
        }
    }

    fn delivery(self: &Arc<Self>, id: String, fields: entry::Fields, attempt: u32) -> Delivery {
        let message = entry::read(&self.stream, &id, fields);
        let ticket = Box::new(StreamTicket {
            seat: self.clone(),
            id,
            attempt,
        });
        Delivery {
            message,
            attempt,
            ticket,
        }
    }
}

impl Publisher for RedisPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut add = cmd("XADD");
            add.arg(destination).arg("*");
            entry::write(&mut add, message);
            // Not retried: a second entry is a second message for consumers that do not deduplicate by id.
            self.line.send_command::<String>(&add).await.map(drop)
        })
    }
}

impl Publisher for RedisStreams {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for RedisStreams {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        let fetch = move || read::fetch(self.seat.clone(), at_most, wait);
        Box::pin(self.shelf.pull(at_most, wait, fetch))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: false,
            counts_attempts: true,
            ack_wait: Some(self.seat.ack_wait),
            age_max: None,
        }
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(lag::lag(&self.seat))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            for delivery in self.shelf.close().await {
                delivery.ticket.nack(Duration::ZERO).await?;
            }
            self.seat.reader.lock().await.hang_up();
            meet::leave(&self.seat).await
        })
    }
}

/// Acknowledgement handle of an entry in the group's pending list.
struct StreamTicket {
    seat: Arc<StreamMember>,
    id: String,
    /// The server's delivery count: tells this delivery from a later one to the same consumer.
    attempt: u32,
}

impl StreamTicket {
    /// Sets the entry's idle time if this delivery still holds the entry; stores a `delay` longer than
    /// `ack_wait` in the hash.
    async fn set_idle_time(&self, idle: Duration, delay: Option<Duration>) -> Result<bool> {
        let seat = &*self.seat;
        let delay = delay.map_or(String::new(), |delay| delay.as_millis().to_string());
        let mut script = seat.hold.prepare_invoke();
        script.key(&seat.stream).key(&seat.later);
        script.arg(&seat.group).arg(&seat.consumer).arg(&self.id);
        script.arg(self.attempt).arg(millis(idle)).arg(delay);
        script.arg(millis(LATER_KEPT));
        seat.line.run(&script).await
    }
}

impl Ticket for StreamTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let mut ack = cmd("XACK");
            ack.arg(&self.seat.stream)
                .arg(&self.seat.group)
                .arg(&self.id);
            // An entry that is not pending was acknowledged before, or the group was deleted with the stream.
            self.seat.line.send_with_retry::<i64>(&ack).await.map(drop)
        })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            let ack_wait = self.seat.ack_wait;
            let delay = delay.min(DELAY_MAX);
            // The entry becomes overdue after `ack_wait` of idle time, so this sets its idle time to
            // `ack_wait` minus the delay.
            match ack_wait.checked_sub(delay) {
                Some(idle) => self.set_idle_time(idle, None).await,
                None => self.set_idle_time(Duration::ZERO, Some(delay)).await,
            }
            // `false` means that another delivery holds the entry: there is nothing to nack.
            .map(drop)
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.set_idle_time(Duration::ZERO, None).await? {
                return Ok(());
            }
            let message = format!(
                "entry {} of stream {} was held longer than ack_wait; it was delivered to another consumer or is already settled",
                self.id, self.seat.stream
            );
            Err(Error::new(ErrorKind::Held, message))
        })
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Installs ring as rustls' crypto provider unless the program has installed a provider.
fn choose_crypto() {
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisPublisher")
            .field(&self.line.shown)
            .finish()
    }
}

impl fmt::Debug for RedisStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreams")
            .field("address", &self.seat.line.shown)
            .field("stream", &self.seat.stream)
            .field("group", &self.seat.group)
            .finish_non_exhaustive()
    }
}
