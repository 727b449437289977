//! `redis://…`: Redis Streams, read as a consumer group.
//!
//! The group is called as the consumer is. What is handed out and not heard of for
//! [`ack_wait`](Source::ack_wait) is taken over by whoever looks next, and that is the redelivery:
//! the server counts how often. An acknowledged entry stays in the stream for the other groups;
//! `?trim=handled` behind the address has those removed that every group has handled, and never others.
//!
//! An entry of ours has the fields `payload`, `id`, `group`, `content-type` and `header:NAME`.
//! One that has no `payload` is handed over as a JSON object of its fields.
//!
//! Redis keeps no ids to tell duplicates by: whoever publishes twice under one [`id`](Message::id) adds two entries,
//! and the consumer handles one of them.
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
    consume::{Answer, Broker, Delivery, Guarantees, Message, Publisher, Source, Ticket},
};
use tokio::sync::Mutex;

use crate::shelf::Shelf;

mod address;
mod entry;
mod line;
mod list;
mod meet;
mod read;
mod trouble;

use address::{Address, Settings};
use line::Line;
pub(crate) use list::dead_letters;
use read::Reader;

/// The least that the server's count of milliseconds and our looking around can tell apart.
const ACK_WAIT_MIN: Duration = Duration::from_millis(100);
/// Longer ones are cut to this.
const DELAY_MAX: Duration = Duration::from_secs(7 * 86_400);
/// For how long it is remembered that something is not due yet: longer than any delay.
const LATER_KEPT: Duration = Duration::from_secs(14 * 86_400);

/// Publishes to streams.
pub struct RedisPublisher {
    line: Arc<Line>,
}

/// A stream, read as a member of a group.
pub struct RedisStreams {
    publisher: RedisPublisher,
    seat: Arc<Seat>,
    shelf: Shelf,
}

/// A place in a group: who we are, and where.
struct Seat {
    line: Arc<Line>,
    stream: String,
    group: String,
    /// Nobody else's, so that two connections never take each other's deliveries for their own.
    consumer: String,
    /// The key of a hash: entry to the moment before which it is not due. Only for what is given back for longer than `ack_wait`.
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
    /// [`ErrorKind::Invalid`] for an address that is none, or a user that is refused; otherwise [`ErrorKind::Unavailable`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        let publisher = Self::new(&address)?;
        meet::look(&publisher.line).await?;
        Ok(publisher)
    }

    fn new(address: &Address) -> Result<Self> {
        choose_crypto();
        let line = Arc::new(Line::new(address)?);
        Ok(Self { line })
    }
}

impl RedisStreams {
    /// Joins the group of the source's consumer on the source's stream; both are made where they are not there.
    ///
    /// A new group begins with what is in the stream; `?start=new` behind the address begins with what comes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is none, a name that is taken by something else than a stream,
    /// an `ack_wait` under a tenth of a second, or a user that is refused; otherwise [`ErrorKind::Unavailable`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        let address = Address::parse(source.url.as_str())?;
        if source.ack_wait < ACK_WAIT_MIN || source.queue.is_empty() || source.consumer.is_empty() {
            let message = format!(
                "a stream of {} needs a name, a consumer, and an ack_wait of {ACK_WAIT_MIN:?} or more",
                address.shown
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let publisher = RedisPublisher::new(&address)?;
        meet::look(&publisher.line).await?;
        let seat = Arc::new(Seat::new(source, &publisher, address.settings));
        meet::join(&seat).await?;
        Ok(Self {
            publisher,
            seat,
            shelf: Shelf::new(source.ack_wait / 2),
        })
    }
}

impl Seat {
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
        let ticket = Box::new(Held {
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
            // Once: a second entry would be a second message to whoever does not go by ids.
            self.line.ask::<String>(&add).await.map(drop)
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

/// An entry in the group's list of what is handed out.
struct Held {
    seat: Arc<Seat>,
    id: String,
    /// As the server counts: tells this delivery from a later one to the same consumer.
    attempt: u32,
}

impl Held {
    /// Sets since when it is held, if it still is; `delay` is kept apart where it is longer than `ack_wait`.
    async fn hold(&self, idle: Duration, delay: Option<Duration>) -> Result<bool> {
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

impl Ticket for Held {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let mut ack = cmd("XACK");
            ack.arg(&self.seat.stream)
                .arg(&self.seat.group)
                .arg(&self.id);
            // What is not in the list any more was acknowledged before, or the list is gone with the stream.
            self.seat.line.ask_again::<i64>(&ack).await.map(drop)
        })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            let ack_wait = self.seat.ack_wait;
            let delay = delay.min(DELAY_MAX);
            // It is looked for when it has been idle for `ack_wait`: so it has been, but for the delay.
            match ack_wait.checked_sub(delay) {
                Some(idle) => self.hold(idle, None).await,
                None => self.hold(Duration::ZERO, Some(delay)).await,
            }
            // Somebody else's: there is nothing to give back.
            .map(drop)
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.hold(Duration::ZERO, None).await? {
                return Ok(());
            }
            let message = format!(
                "entry {} of stream {} was handed to somebody else, or is done with; it was held for longer than ack_wait",
                self.id, self.seat.stream
            );
            Err(Error::new(ErrorKind::Held, message))
        })
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// TLS needs somebody who does the sums; whoever was chosen by the program stays.
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
