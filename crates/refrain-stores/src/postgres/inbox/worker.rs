//! Worker of the inbox: claims, handles, settles and commits a message in one transaction.

use std::{pin::Pin, time::Duration};

use refrain::{
    ErrorKind, Result, Verdict,
    consume::{Count, DeadReason, Job, Task, Worked, Worker, caught},
};
use tokio_postgres::{Client, Transaction};

use super::{
    super::{Claimed, errors::StatementError},
    Connections, Handling, Inbox,
    sequences::{self, SequenceDecision},
};

/// Claims, handles and settles in one transaction.
pub(super) struct InboxWorker<C, H> {
    pub(super) consumer: String,
    pub(super) inbox: Inbox<C>,
    pub(super) handler: H,
}

/// Result of a transaction.
enum End {
    Worked(Worked),
    /// Dead according to this record; a later record may exist, from a redrive.
    Dead(DeadReason, String),
    /// The state of the connection is unknown.
    Lost(Worked),
}

impl<C, H> Worker for InboxWorker<C, H>
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

impl<C, H> InboxWorker<C, H>
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

    /// Runs one transaction.
    async fn transact(&self, client: &mut Client, task: &Task, redrive: u32) -> Result<End> {
        let failed = |error| StatementError::from(error).into_error();
        let mut transaction = client.transaction().await.map_err(failed)?;
        let intent = task.intent(redrive);
        let verdict = self.inbox.store.claim_in(&mut transaction, &intent).await;
        let end = match verdict {
            Ok(Verdict::Granted(claimed)) => {
                return self.handle(transaction, task, claimed).await;
            }
            Ok(Verdict::Replay(_)) => End::Worked(Worked::Done(Count::Duplicate)),
            Ok(Verdict::Expired) => End::Worked(Worked::Done(Count::Expired)),
            Ok(Verdict::InFlight { lease_left }) => End::Worked(retry_later(
                Count::InFlight,
                Some(lease_left),
                String::new(),
            )),
            Ok(Verdict::Indeterminate(doubt)) => End::Dead(
                DeadReason::OutcomeUnknown,
                format!("unknown outcome: {:?}", doubt.reason),
            ),
            Ok(Verdict::Mismatch | Verdict::OtherCredential) => End::Dead(
                DeadReason::KeyReused,
                "the key was already used for a message with different content".into(),
            ),
            // Damaged is not absent: the message must not run, and a retry does not repair the record.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                End::Dead(DeadReason::RecordDamaged, error.to_string())
            }
            Err(error) => return Err(error),
        };
        Ok(roll_back(transaction, end).await)
    }

    async fn handle(
        &self,
        mut transaction: Transaction<'_>,
        task: &Task,
        claimed: Claimed,
    ) -> Result<End> {
        if let Some(end) = self.take_turn(&transaction, task).await? {
            return Ok(roll_back(transaction, end).await);
        }
        let job = task.job(claimed.id(), claimed.grant());
        let handling = caught(async { (self.handler)(&mut transaction, &job).await });
        let end = match handling.await {
            Ok(Ok(outcome)) => {
                let stored = claimed.complete_in(&transaction, outcome).await;
                match stored {
                    Ok(_) => return Ok(commit(transaction, task).await),
                    // The handler may have ignored a failed statement, which aborts the whole transaction.
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
            // The rollback leaves no claim, so a retry does not have to wait for a lease.
            Err(panic) => failure(task, Count::Panicked, None, panic),
        };
        Ok(roll_back(transaction, end).await)
    }

    /// Advances the sequence; `Some` if the event must not be handled now.
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
                SequenceDecision::Next => None,
                SequenceDecision::Passed => {
                    tracing::warn!(
                        consumer = self.consumer,
                        "an event is handled before its predecessor"
                    );
                    None
                }
                SequenceDecision::Seen => Some(End::Worked(Worked::Done(Count::Duplicate))),
                SequenceDecision::Gap => {
                    Some(End::Worked(retry_later(Count::Held, None, String::new())))
                }
            },
        )
    }
}

/// Rolls the transaction back.
async fn roll_back(transaction: Transaction<'_>, end: End) -> End {
    match (transaction.rollback().await, end) {
        (Ok(()), end) => end,
        (Err(_), End::Worked(worked)) => End::Lost(worked),
        (Err(_), End::Dead(reason, failure)) => End::Lost(Worked::Dead { reason, failure }),
        (Err(_), lost) => lost,
    }
}

async fn commit(transaction: Transaction<'_>, task: &Task) -> End {
    let Err(error) = transaction.commit().await else {
        return End::Worked(Worked::Done(Count::Completed));
    };
    match StatementError::from(error) {
        // Rolled back: a deferred constraint, or a serialization failure.
        StatementError::Refused(error) => failure(task, Count::Retried, None, error.to_string()),
        // Commit status unknown: the next delivery finds out.
        StatementError::Lost(error) => {
            End::Lost(retry_later(Count::Unsettled, None, error.to_string()))
        }
    }
}

/// The handler failed and was rolled back: retry, or dead letter after the last attempt.
fn failure(task: &Task, why: Count, delay: Option<Duration>, failure: String) -> End {
    End::Worked(match task.is_last(0) {
        true => Worked::Dead {
            reason: DeadReason::AttemptsUsedUp,
            failure,
        },
        false => retry_later(why, delay, failure),
    })
}

fn retry_later(why: Count, delay: Option<Duration>, failure: String) -> Worked {
    Worked::Again {
        why,
        delay,
        failure,
    }
}
