//! The transactional inbox: what a handler writes, and the mark that the message was handled, are one commit.
//!
//! A duplicate finds the mark and is skipped; a handler that fails, or dies, leaves neither.
//! If the answer to the commit gets lost, the message is delivered again, and the mark tells what became of it.
//!
//! ```no_run
//! # async fn example(broker: std::sync::Arc<dyn refrain::consume::Broker>) -> refrain::Result<()> {
//! use refrain::{Outcome, consume::Consumer};
//! use refrain_stores::postgres::{InTransaction as _, Inbox};
//!
//! let inbox = Inbox::open("postgres://app@db.internal/app").await?;
//! let consumer = Consumer::new(broker, inbox.engine(), "billing").with_dead_letter("billing-dead");
//! let shutdown = std::future::pending();
//! consumer
//!     .in_transaction(inbox, |transaction, job| Box::pin(async move {
//!         let order = std::str::from_utf8(&job.message.payload)?;
//!         transaction.execute("INSERT INTO payments (order_id) VALUES ($1)", &[&order]).await?;
//!         Ok(Outcome::new(0, ""))
//!     }), shutdown)
//!     .await?;
//! # Ok(())
//! # }
//! ```

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use refrain::{
    Claim, Engine, Error, ErrorKind, Outcome, RecordId, Result, Store as _, Verdict,
    consume::{
        Consumer, Count, DeadReason, Failure, Job, Sequence, Tally, Task, Worked, Worker, caught,
    },
    store::{Front, Tiered},
};
use tokio_postgres::{Client, Transaction};

use super::{Claimed, Postgres, trouble::Trouble};

mod pool;
pub use pool::{Connections, Pool};

mod front;
use front::Ahead;

mod sequences;
use sequences::Turn;

/// What a handler answers with.
pub type Handling<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send + 'a>>;

/// Where the marks are, and the connections on which messages are handled: both in one database.
pub struct Inbox<C = Pool> {
    store: Arc<Postgres>,
    connections: C,
    sequence: Option<Sequence>,
    ahead: Option<Box<dyn Ahead>>,
}

impl<C> fmt::Debug for Inbox<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.store).finish()
    }
}

impl Inbox {
    /// The inbox in the database at this address, with connections of its own.
    ///
    /// The address is that of a [store](Postgres::open), whose tables are made if there are none.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    ///
    /// # Cancellation
    /// May be dropped; the connections are then closed again.
    pub async fn open(address: &str) -> Result<Self> {
        let store = Arc::new(Postgres::open(address).await?);
        Ok(Self::new(store, Pool::new(address)?))
    }
}

impl<C: Connections> Inbox<C> {
    /// The inbox of this store, with connections from elsewhere; they have to be to the same database.
    pub fn new(store: Arc<Postgres>, connections: C) -> Self {
        Self {
            store,
            connections,
            sequence: None,
            ahead: None,
        }
    }

    /// Accepts events once and in order, for ever: how far each aggregate has come is kept in a table, and moves on in the
    /// handler's own transaction.
    ///
    /// In place of [`Consumer::with_sequence`], which goes by the records, and so for as long as these are remembered.
    #[must_use]
    pub fn with_sequence(mut self, sequence: Sequence) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// Answers duplicates from a front, such as `RedisFront`, before a transaction is begun.
    ///
    /// What it cannot tell for certain is asked of the database; it may lose everything.
    /// A mark is put there when its first duplicate has come.
    #[must_use]
    pub fn with_front(mut self, front: impl Front) -> Self {
        self.ahead = Some(Box::new(Tiered::new(front, self.store.clone())));
        self
    }

    /// An engine on the same store, for the consumer.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine::new(self.store.clone())
    }
}

impl<C> Inbox<C> {
    /// What the front is asked with.
    fn claim(&self, task: &Task) -> Claim {
        let intent = task.intent(0);
        let id = RecordId::derive(self.store.secret(), &intent.scope, &intent.key);
        Claim::new(id, intent.fingerprint)
    }
}

/// Handles messages in transactions.
pub trait InTransaction {
    /// Handles each message in a transaction, which also marks it as handled, until `shutdown` is over.
    ///
    /// The handler must leave the end of the transaction to the inbox.
    /// An error, a panic or a crash rolls everything back, and the message is tried again, as often as it may.
    /// The terms' guarantee has no say here: it is exactly-once, as far as the handler writes to this database.
    ///
    /// # Errors
    /// As [`Consumer::run`].
    ///
    /// # Cancellation
    /// As [`Consumer::run`]; what is not committed then is rolled back.
    fn in_transaction<C, H>(
        self,
        inbox: Inbox<C>,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<Arc<Tally>>>
    where
        C: Connections,
        H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static;
}

impl InTransaction for Consumer {
    async fn in_transaction<C, H>(
        self,
        inbox: Inbox<C>,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Arc<Tally>>
    where
        C: Connections,
        H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static,
    {
        let worker = Clerk {
            consumer: self.name().to_owned(),
            inbox,
            handler,
        };
        self.run_with(worker, shutdown).await
    }
}

/// Claims, handles and settles in one transaction.
struct Clerk<C, H> {
    consumer: String,
    inbox: Inbox<C>,
    handler: H,
}

/// What came of a transaction.
enum End {
    Worked(Worked),
    /// Dead by this record; there may be a later one, by which it was let through again.
    Dead(DeadReason, String),
    /// Nothing is known of the connection any more.
    Lost(Worked),
}

impl<C, H> Worker for Clerk<C, H>
where
    C: Connections,
    H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static,
{
    fn work<'a>(&'a self, task: &'a Task) -> Pin<Box<dyn Future<Output = Worked> + Send + 'a>> {
        Box::pin(async move {
            match self.connect_and_work(task).await {
                Ok(worked) => worked,
                Err(error) => Worked::Unavailable(error),
            }
        })
    }
}

impl<C, H> Clerk<C, H>
where
    C: Connections,
    H: for<'a, 't> Fn(&'a mut Transaction<'t>, &'a Job) -> Handling<'a> + Send + Sync + 'static,
{
    async fn connect_and_work(&self, task: &Task) -> Result<Worked> {
        let ahead = self.inbox.ahead.as_deref();
        let claim = ahead.map(|ahead| (ahead, self.inbox.claim(task)));
        if let Some((ahead, claim)) = &claim
            && ahead.is_handled(claim).await
        {
            return Ok(Worked::Done(Count::Duplicate));
        }
        let worked = self.work_in_transaction(task).await?;
        if let (Some((ahead, claim)), Worked::Done(Count::Duplicate)) = (&claim, &worked) {
            ahead.note(claim.id).await;
        }
        Ok(worked)
    }

    async fn work_in_transaction(&self, task: &Task) -> Result<Worked> {
        let connections = &self.inbox.connections;
        let mut connection = connections.connection().await?;
        let mut redrive = 0;
        loop {
            let client = C::client(&mut connection);
            let (worked, is_clean) = match self.transact(client, task, redrive).await? {
                End::Dead(..) if redrive < task.redrive => {
                    redrive += 1;
                    continue;
                }
                End::Dead(reason, failure) => (Worked::Dead { reason, failure }, true),
                End::Worked(worked) => (worked, true),
                End::Lost(worked) => (worked, false),
            };
            connections.give_back(connection, is_clean);
            return Ok(worked);
        }
    }

    /// One transaction, from its begin to its end.
    async fn transact(&self, client: &mut Client, task: &Task, redrive: u32) -> Result<End> {
        let failed = |error| Trouble::from(error).into_error();
        let mut transaction = client.transaction().await.map_err(failed)?;
        let intent = task.intent(redrive);
        let verdict = self.inbox.store.claim_in(&mut transaction, &intent).await;
        let end = match verdict {
            Ok(Verdict::Granted(claimed)) => {
                return self.handle(transaction, task, claimed).await;
            }
            Ok(Verdict::Replay(_)) => End::Worked(Worked::Done(Count::Duplicate)),
            Ok(Verdict::Expired) => End::Worked(Worked::Done(Count::Expired)),
            Ok(Verdict::InFlight { lease_left }) => {
                End::Worked(again(Count::InFlight, Some(lease_left), String::new()))
            }
            Ok(Verdict::Indeterminate(doubt)) => End::Dead(
                DeadReason::OutcomeUnknown,
                format!("it may have taken effect: {:?}", doubt.reason),
            ),
            Ok(Verdict::Mismatch | Verdict::OtherCredential) => End::Dead(
                DeadReason::KeyReused,
                "the key was used for another message".into(),
            ),
            // Damaged is not absent: it must not run, and asking again will not mend it.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                End::Dead(DeadReason::RecordDamaged, error.to_string())
            }
            Err(error) => return Err(error),
        };
        Ok(undone(transaction, end).await)
    }

    async fn handle(
        &self,
        mut transaction: Transaction<'_>,
        task: &Task,
        claimed: Claimed,
    ) -> Result<End> {
        if let Some(end) = self.take_turn(&transaction, task).await? {
            return Ok(undone(transaction, end).await);
        }
        let job = task.job(claimed.id(), claimed.grant());
        let handling = caught(async { (self.handler)(&mut transaction, &job).await });
        let end = match handling.await {
            Ok(Ok(outcome)) => {
                let stored = claimed.complete_in(&transaction, outcome).await;
                match stored {
                    Ok(_) => return Ok(committed(transaction, task).await),
                    // A handler may have caught an error of a statement, which costs the whole transaction.
                    Err(error) => failure(task, Count::Retried, None, error.to_string()),
                }
            }
            Ok(Err(failed)) if failed.is_rejection() => End::Worked(Worked::Dead {
                reason: DeadReason::Rejected,
                failure: failed.reason().into(),
            }),
            Ok(Err(failed)) => {
                failure(task, Count::Retried, failed.delay(), failed.reason().into())
            }
            // It left nothing, so that nobody has to wait for its lease.
            Err(panic) => failure(task, Count::Panicked, None, panic),
        };
        Ok(undone(transaction, end).await)
    }

    /// What there is to say where it is not this event's turn.
    async fn take_turn(&self, transaction: &Transaction<'_>, task: &Task) -> Result<Option<End>> {
        let Some(sequence) = &self.inbox.sequence else {
            return Ok(None);
        };
        let (aggregate, number) = match sequence.read(&task.message) {
            Ok(place) => place,
            Err(error) => {
                let (reason, failure) = (DeadReason::SequenceInvalid, error.to_string());
                return Ok(Some(End::Worked(Worked::Dead { reason, failure })));
            }
        };
        let place = &self.inbox.store.place;
        let named = (&*self.consumer, &*aggregate, number);
        Ok(
            match sequences::advance(transaction, place, sequence, named).await? {
                Turn::Next => None,
                Turn::Passed => {
                    tracing::warn!(
                        consumer = self.consumer,
                        "an event is handled although its predecessor has not been"
                    );
                    None
                }
                Turn::Seen => Some(End::Worked(Worked::Done(Count::Duplicate))),
                Turn::Gap => Some(End::Worked(again(Count::Held, None, String::new()))),
            },
        )
    }
}

/// Takes everything back.
async fn undone(transaction: Transaction<'_>, end: End) -> End {
    match (transaction.rollback().await, end) {
        (Ok(()), end) => end,
        (Err(_), End::Worked(worked)) => End::Lost(worked),
        (Err(_), End::Dead(reason, failure)) => End::Lost(Worked::Dead { reason, failure }),
        (Err(_), lost) => lost,
    }
}

async fn committed(transaction: Transaction<'_>, task: &Task) -> End {
    let Err(error) = transaction.commit().await else {
        return End::Worked(Worked::Done(Count::Completed));
    };
    match Trouble::from(error) {
        // It was rolled back: a constraint that is checked at the end, or others who were faster.
        Trouble::Refused(error) => failure(task, Count::Retried, None, error.to_string()),
        // Committed or not: the next delivery finds out.
        Trouble::Lost(error) => End::Lost(again(Count::Unsettled, None, error.to_string())),
    }
}

/// It failed and left nothing: again, or for the dead letters.
fn failure(task: &Task, why: Count, delay: Option<Duration>, failure: String) -> End {
    End::Worked(match task.is_last(0) {
        true => Worked::Dead {
            reason: DeadReason::AttemptsUsedUp,
            failure,
        },
        false => again(why, delay, failure),
    })
}

fn again(why: Count, delay: Option<Duration>, failure: String) -> Worked {
    Worked::Again {
        why,
        delay,
        failure,
    }
}

fn unreachable(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
