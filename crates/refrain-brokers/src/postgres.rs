//! `postgres://…`: queues in a table, for those who have a database and want no other server.
//!
//! A message is a row of `refrain_queue`. Handed out, it is held until [`ack_wait`](Source::ack_wait) has passed on the
//! database's clock; acknowledged, it is deleted. Each handing out has a number of its own, so that one which
//! came to an end cannot acknowledge, give back or prolong what somebody else holds by now.
//!
//! Messages of one [`group`](Message::group) are handed out one at a time, in the order in which they were published:
//! one that is held, or given back for later, holds the others back.
//!
//! [`publish_in`] publishes in the caller's own transaction. So does a plain `INSERT`, in any language.
//! A second message under the [`id`](Message::id) of one that is still in the queue is not taken.
//!
//! ```no_run
//! # async fn run() -> refrain::Result<()> {
//! use refrain::consume::{Broker, Source};
//! let source = Source::new("postgres://app@db/app", "orders", "billing");
//! let broker = refrain_brokers::postgres::PostgresQueue::connect(&source).await?;
//! let deliveries = broker.pull(16, std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```

use std::{sync::Arc, time::Duration};

use refrain::{
    Error, ErrorKind, Result,
    consume::{Answer, Broker, Delivery, Guarantees, Message, Publisher, Source, Ticket},
};
use refrain_stores::postgres::Dial;
use tokio::sync::Mutex;
use tokio_postgres::GenericClient;

use crate::shelf::Shelf;

mod link;
mod list;
mod read;
mod row;
mod table;

pub(crate) use list::dead_letters;

use link::{Ask, Link, Pool};
use read::Reader;
use row::Columns;
pub use table::{SCHEMA, migrate};

/// The least that is told apart from the time that statements take.
const ACK_WAIT_MIN: Duration = Duration::from_millis(100);

/// Publishes to queues in a table.
#[derive(Debug)]
pub struct PostgresPublisher {
    pool: Arc<Pool>,
}

/// A queue in a table.
#[derive(Debug)]
pub struct PostgresQueue {
    publisher: PostgresPublisher,
    desk: Arc<Desk>,
    shelf: Shelf,
}

/// What all deliveries of a queue have in common.
#[derive(Debug)]
struct Desk {
    pool: Arc<Pool>,
    queue: String,
    ack_wait: Duration,
    reader: Mutex<Reader>,
}

impl PostgresPublisher {
    /// Connects to a database, and makes the table where there is none.
    ///
    /// # Errors
    /// As [`PostgresQueue::connect`].
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(url: &str) -> Result<Self> {
        let dial = Dial::new(url)?;
        table::ensure(&dial).await?;
        let pool = Arc::new(Pool::new(dial));
        Ok(Self { pool })
    }
}

impl PostgresQueue {
    /// Connects to the source's queue, and makes the table where there is none.
    ///
    /// The address is that of a [store](refrain_stores::postgres::Postgres::open); the table is found by the search path,
    /// or in the schema that `?schema=` names.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server cannot be reached or takes no writes; [`ErrorKind::Invalid`] when address,
    /// password, certificate, rights or table are not in order, or `ack_wait` is under a tenth of a second.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        if source.ack_wait < ACK_WAIT_MIN || source.queue.is_empty() {
            let message = format!(
                "a queue at {} needs a name, and an ack_wait of {ACK_WAIT_MIN:?} or more",
                source.url
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let publisher = PostgresPublisher::connect(source.url.as_str()).await?;
        let pool = publisher.pool.clone();
        let desk = Arc::new(Desk {
            reader: Mutex::new(Reader::new(Link::listening(&pool, &source.queue))),
            pool,
            queue: source.queue.clone(),
            ack_wait: source.ack_wait,
        });
        Ok(Self {
            publisher,
            desk,
            shelf: Shelf::new(source.ack_wait / 2),
        })
    }
}

/// Publishes in the caller's own transaction: the message is there when that commits, and only then.
///
/// The table is found by the search path of the caller's connection. Answers whether the message was taken:
/// `false` where one of its [`id`](Message::id) is in the queue already.
///
/// # Errors
/// As the server says; [`ErrorKind::Invalid`] where there is no table. The transaction can then only be rolled back.
///
/// # Cancellation
/// Dropped, the message may be in the transaction or not.
pub async fn publish_in(
    client: &impl GenericClient,
    queue: &str,
    message: &Message,
) -> Result<bool> {
    let columns = Columns::of(queue, message);
    let taken = client.execute(row::PUBLISH, &columns.parameters()).await;
    taken.map(|rows| rows > 0).map_err(|error| {
        let message = format!(
            "the message cannot be put into refrain_queue: {}; `refrain migrate --queue --print` shows the table",
            table::words(&error)
        );
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

impl Publisher for PostgresPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let columns = Columns::of(destination, message);
            let ask = Ask::Publish(&columns);
            // With an id it may be asked twice: the second is not taken.
            match message.id {
                Some(_) => self.pool.ask_again(ask).await.map(drop),
                None => self.pool.ask(ask).await.map(drop),
            }
        })
    }
}

impl Publisher for PostgresQueue {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.publisher.publish(destination, message)
    }
}

impl Broker for PostgresQueue {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        let fetch = move || read::fetch(self.desk.clone(), at_most, wait);
        Box::pin(self.shelf.pull(at_most, wait, fetch))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: true,
            counts_attempts: true,
            ack_wait: Some(self.desk.ack_wait),
            age_max: None,
        }
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            for delivery in self.shelf.close().await {
                delivery.ticket.nack(Duration::ZERO).await?;
            }
            self.desk.reader.lock().await.hang_up().await;
            Ok(())
        })
    }
}

/// A row, as one handing out holds it.
struct Held {
    desk: Arc<Desk>,
    id: i64,
    holder: i64,
    is_grouped: bool,
}

impl Held {
    fn somebody_elses(&self) -> Error {
        let message = format!(
            "message {} of queue {} was handed to somebody else, or is done with; it was held for longer than ack_wait",
            self.id, self.desk.queue
        );
        Error::new(ErrorKind::Held, message)
    }

    /// Whether it was still held.
    async fn ask(&self, ask: Ask<'_>) -> Result<bool> {
        let rows = self.desk.pool.ask_again(ask).await?;
        let held = rows.first().map(|row| row.try_get(0));
        Ok(matches!(held, Some(Ok(true))))
    }
}

impl Ticket for Held {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { id, holder, .. } = *self;
            if !self.ask(Ask::Ack { id, holder }).await? {
                return Err(self.somebody_elses());
            }
            if self.is_grouped {
                // The next one of its group has become free.
                self.desk.pool.bell.notify_one();
            }
            Ok(())
        })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { id, holder, .. } = *self;
            let delay = delay.as_secs_f64();
            // Somebody else's: there is nothing to give back.
            self.ask(Ask::Hold {
                id,
                holder,
                span: delay,
                is_given_back: true,
            })
            .await?;
            if delay == 0.0 {
                self.desk.pool.bell.notify_one();
            }
            Ok(())
        })
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let Self { id, holder, .. } = *self;
            let span = self.desk.ack_wait.as_secs_f64();
            match self
                .ask(Ask::Hold {
                    id,
                    holder,
                    span,
                    is_given_back: false,
                })
                .await?
            {
                true => Ok(()),
                false => Err(self.somebody_elses()),
            }
        })
    }
}
