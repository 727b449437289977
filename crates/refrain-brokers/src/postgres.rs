//! Queues in a PostgreSQL table (`postgres://…`), for applications that want no separate broker.
//!
//! A message is a row of `refrain_queue`. A delivery holds its row for [`ack_wait`](Source::ack_wait),
//! measured on the database's clock; an acknowledgement deletes the row. Each delivery has its own number,
//! so that an expired delivery cannot acknowledge, nack or extend a row that another delivery holds.
//!
//! Messages of one [`group`](Message::group) are delivered one at a time, in publish order: a message that
//! is held or nacked with a delay blocks the rest of its group.
//!
//! [`publish_in`] publishes in the caller's own transaction. A plain `INSERT` does the same, in any
//! language. A second message is ignored while a message with the same [`id`](Message::id) is in the queue.
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
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source, Ticket},
};
use refrain_stores::postgres::Dial;
use tokio::sync::Mutex;
use tokio_postgres::GenericClient;

use crate::delivery_buffer::DeliveryBuffer;

mod connection;
mod lag;
mod list;
mod read;
mod row;
mod table;

pub(crate) use lag::lag_of;
pub(crate) use list::dead_letters;

use connection::{Ask, Pool, QueueConnection};
use read::Reader;
use row::Columns;
pub use table::{SCHEMA, migrate};

/// Minimum `ack_wait`; a shorter one is in the range of statement run times.
const ACK_WAIT_MIN: Duration = Duration::from_millis(100);

/// Publisher to queues in a PostgreSQL table.
#[derive(Debug)]
pub struct PostgresPublisher {
    pool: Arc<Pool>,
}

/// Consumer of a queue in a PostgreSQL table.
#[derive(Debug)]
pub struct PostgresQueue {
    publisher: PostgresPublisher,
    desk: Arc<QueueState>,
    shelf: DeliveryBuffer,
}

/// State shared by all deliveries of a queue.
#[derive(Debug)]
struct QueueState {
    pool: Arc<Pool>,
    queue: String,
    ack_wait: Duration,
    reader: Mutex<Reader>,
    /// The connection that counts messages.
    counting: QueueConnection,
}

impl PostgresPublisher {
    /// Connects to a database, and creates the table if missing.
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
    /// Connects to the source's queue, and creates the table if missing.
    ///
    /// The address has the form of a [store's address](refrain_stores::postgres::Postgres::open). The table
    /// is in the search path, or in the schema that the query parameter `schema` names.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable or read-only; [`ErrorKind::Invalid`] for an
    /// invalid address, password, certificate or table, missing privileges, or an `ack_wait` under 100 ms.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn connect(source: &Source) -> Result<Self> {
        if source.ack_wait < ACK_WAIT_MIN || source.queue.is_empty() {
            let message = format!(
                "a queue at {} needs a name and an ack_wait of at least {ACK_WAIT_MIN:?}",
                source.url
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let publisher = PostgresPublisher::connect(source.url.as_str()).await?;
        let pool = publisher.pool.clone();
        let desk = Arc::new(QueueState {
            reader: Mutex::new(Reader::new(QueueConnection::listening(
                &pool,
                &source.queue,
            ))),
            counting: QueueConnection::separate(&pool),
            pool,
            queue: source.queue.clone(),
            ack_wait: source.ack_wait,
        });
        Ok(Self {
            publisher,
            desk,
            shelf: DeliveryBuffer::new(source.ack_wait / 2),
        })
    }
}

/// Publishes in the caller's own transaction: the message becomes visible when the transaction commits.
///
/// The table is found through the search path of the caller's connection. Returns `false` if a message with
/// the same [`id`](Message::id) is already in the queue.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the `INSERT` fails, also if the table is missing. The transaction can then
/// only be rolled back.
///
/// # Cancellation
/// If the future is dropped, the transaction may or may not contain the message.
pub async fn publish_in(
    client: &impl GenericClient,
    queue: &str,
    message: &Message,
) -> Result<bool> {
    let columns = Columns::of(queue, message);
    let taken = client.execute(row::PUBLISH, &columns.parameters()).await;
    taken.map(|rows| rows > 0).map_err(|error| {
        let message = format!(
            "cannot insert the message into refrain_queue: {}; compare the table with `refrain migrate --queue --print`",
            table::describe_error(&error)
        );
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

impl Publisher for PostgresPublisher {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let columns = Columns::of(destination, message);
            let ask = Ask::Publish(&columns);
            // With an id a retry is safe: the INSERT ignores a duplicate.
            match message.id {
                Some(_) => self.pool.request_with_retry(ask).await.map(drop),
                None => self.pool.request(ask).await.map(drop),
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

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(lag::lag(&self.desk))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            for delivery in self.shelf.close().await {
                delivery.ticket.nack(Duration::ZERO).await?;
            }
            self.desk.reader.lock().await.hang_up().await;
            self.desk.counting.hang_up().await;
            Ok(())
        })
    }
}

/// Acknowledgement handle of one delivery of a row.
struct QueueTicket {
    desk: Arc<QueueState>,
    id: i64,
    holder: i64,
    is_grouped: bool,
}

impl QueueTicket {
    fn no_longer_held(&self) -> Error {
        let message = format!(
            "message {} of queue {} was held longer than ack_wait; it was delivered to another consumer or is already settled",
            self.id, self.desk.queue
        );
        Error::new(ErrorKind::Held, message)
    }

    /// Returns whether this delivery still held the row.
    async fn request(&self, ask: Ask<'_>) -> Result<bool> {
        let rows = self.desk.pool.request_with_retry(ask).await?;
        let held = rows.first().map(|row| row.try_get(0));
        Ok(matches!(held, Some(Ok(true))))
    }
}

impl Ticket for QueueTicket {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { id, holder, .. } = *self;
            if !self.request(Ask::Ack { id, holder }).await? {
                return Err(self.no_longer_held());
            }
            if self.is_grouped {
                // The next message of the group is now free.
                self.desk.pool.bell.notify_one();
            }
            Ok(())
        })
    }

    fn nack(self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { id, holder, .. } = *self;
            let delay = delay.as_secs_f64();
            // If another delivery holds the row, there is nothing to nack.
            self.request(Ask::Hold {
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
                .request(Ask::Hold {
                    id,
                    holder,
                    span,
                    is_given_back: false,
                })
                .await?
            {
                true => Ok(()),
                false => Err(self.no_longer_held()),
            }
        })
    }
}
