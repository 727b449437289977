//! What is done with one message: claimed, handled and settled.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use super::{Count, DeadReason, Failure, Job, Message};
use crate::{
    Engine, Error, ErrorKind, Fingerprint, Guarantee, Intent, Key, Outcome, RecordId, Scope,
    Settled, Terms, Verdict,
    engine::{Guard, Probe, Running},
    receipts::Witness,
    record::{Grant, Reason},
};

/// One message, and on which terms it is worked on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Task {
    /// What was delivered.
    pub message: Arc<Message>,
    /// The consumer's namespace.
    pub scope: Scope,
    /// What names the effect.
    pub key: Key,
    /// What tells a redelivery from another message under the same key.
    pub fingerprint: Fingerprint,
    /// Guarantee, lease, retention and the rest.
    pub terms: Terms,
    /// Learns what became of an indeterminate one.
    pub probe: Option<Arc<dyn Probe>>,
    /// Knows what was committed, under exactly-once.
    pub receipts: Option<Arc<Witness>>,
    /// The name under which it is audited, where it is.
    pub audit: Option<Arc<str>>,
    /// How often the message was let through again on purpose.
    pub redrive: u32,
    /// Which attempt this is, as far as this process knows; the first is 1.
    /// The broker's count is part of it only where no record [counts](Worker::counts_attempts).
    pub attempt: u32,
    /// The attempt that a handler was started for; 0 before.
    pub(super) started: Arc<AtomicU32>,
}

impl Task {
    /// The intent to claim.
    ///
    /// A message that was let through again has one record more for each time. The first whose record is neither
    /// indeterminate nor another message's decides: what has taken effect is found, and what is in doubt is passed by.
    #[must_use]
    pub fn intent(&self, redrive: u32) -> Intent {
        Intent {
            scope: redriven(&self.scope, redrive),
            key: self.key.clone(),
            fingerprint: self.fingerprint,
            earlier_fingerprint: None,
            credential: None,
            terms: self.terms,
            probe: self.probe.clone(),
            receipts: self.receipts.clone(),
            audit: self.audit.clone(),
        }
    }

    /// Whether somebody can tell what became of an attempt in doubt.
    fn may_be_learnt(&self) -> bool {
        self.probe.is_some() || self.receipts.is_some()
    }

    /// What a handler gets that was granted this. From here on the attempt counts: the handler is about to run.
    #[must_use]
    pub fn job(&self, record: RecordId, grant: Grant) -> Job {
        let attempt = self.attempt.max(u32::from(grant.attempt));
        self.started.store(attempt, Ordering::Relaxed);
        Job {
            message: self.message.clone(),
            key: self.key.clone(),
            record,
            fence: grant.fence,
            attempt,
        }
    }

    /// The attempt that a handler was started for; 0 where none was.
    pub(super) fn started(&self) -> u32 {
        self.started.load(Ordering::Relaxed)
    }

    /// Whether a failure of this attempt is the last one.
    #[must_use]
    pub fn is_last(&self, granted: u16) -> bool {
        self.attempt.max(u32::from(granted)) >= u32::from(self.terms.attempts_max)
    }
}

/// The scope of a message's records after so many redrives.
pub(super) fn redriven(scope: &Scope, redrive: u32) -> Scope {
    match redrive {
        0 => scope.clone(),
        number => scope.clone().with("redrive", number.to_le_bytes()),
    }
}

/// What is to become of a message that was worked on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Worked {
    /// Its outcome is durable: acknowledge it, and count it as this.
    Done(Count),
    /// Not yet: deliver it again.
    Again {
        /// What it is counted as. [`Count::Retried`] and [`Count::Panicked`] use up an attempt.
        /// [`Count::Held`] waits for one that may be behind it, as often as there are attempts.
        why: Count,
        /// Not before this has passed; the consumer's back-off where there is nothing special to wait for.
        delay: Option<Duration>,
        /// What went wrong; empty where nothing did.
        failure: String,
    },
    /// Never: to the dead letters.
    Dead {
        /// Why.
        reason: DeadReason,
        /// What went wrong, in words.
        failure: String,
    },
    /// Nothing was done, since the store did not answer.
    Unavailable(Error),
}

/// How messages are claimed, handled and settled.
///
/// [`Consumer::run`](super::Consumer::run) does it with the engine.
/// Another worker can do it in a transaction of its own, and [`Consumer::run_with`](super::Consumer::run_with) does the rest.
pub trait Worker: Send + Sync + 'static {
    /// Works on one message.
    ///
    /// # Cancellation
    /// Dropped when the consumer's time to drain is over: what may have taken effect must be left in doubt.
    fn work<'a>(&'a self, task: &'a Task) -> Pin<Box<dyn Future<Output = Worked> + Send + 'a>>;

    /// Whether a failed attempt leaves a record that counts it.
    ///
    /// Where none does, as with a transaction that is rolled back, the broker's count of deliveries stands in for it.
    fn counts_attempts(&self) -> bool {
        false
    }
}

/// Claims and settles with the engine, and runs a handler in between.
pub(super) struct Handled<H> {
    pub(super) engine: Engine,
    pub(super) handler: H,
}

impl<H, F> Worker for Handled<H>
where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
{
    fn work<'a>(&'a self, task: &'a Task) -> Pin<Box<dyn Future<Output = Worked> + Send + 'a>> {
        Box::pin(self.claim(task))
    }

    fn counts_attempts(&self) -> bool {
        true
    }
}

impl<H, F> Handled<H>
where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
{
    async fn claim(&self, task: &Task) -> Worked {
        let mut redrive = 0;
        loop {
            let verdict = match self.engine.claim(&task.intent(redrive)).await {
                Ok(verdict) => verdict,
                Err(error) => return failed_claim(error),
            };
            let dead = match verdict {
                Verdict::Granted(guard) => return self.run(task, guard).await,
                Verdict::Replay(_) => return Worked::Done(Count::Duplicate),
                Verdict::Expired => return Worked::Done(Count::Expired),
                Verdict::InFlight { lease_left } => return in_flight(lease_left),
                // Before that nobody can say what became of it.
                Verdict::Indeterminate(doubt)
                    if task.may_be_learnt() && !doubt.settle_left.is_zero() =>
                {
                    return in_flight(doubt.settle_left);
                }
                Verdict::Indeterminate(doubt) => dead(
                    DeadReason::OutcomeUnknown,
                    format!("it may have taken effect: {:?}", doubt.reason),
                ),
                Verdict::Mismatch | Verdict::OtherCredential => dead(
                    DeadReason::KeyReused,
                    "the key was used for another message",
                ),
            };
            if redrive == task.redrive {
                return dead;
            }
            redrive += 1;
        }
    }

    async fn run(&self, task: &Task, guard: Guard) -> Worked {
        let running = guard.start();
        let job = task.job(running.id(), running.grant());
        match caught(async { (self.handler)(job).await }).await {
            Ok(Ok(outcome)) => self.complete(task, running, outcome).await,
            Ok(Err(failure)) => fail(task, running, failure).await,
            Err(panic) => panicked(task, running, panic).await,
        }
    }

    async fn complete(&self, task: &Task, running: Running, outcome: Outcome) -> Worked {
        let id = running.id();
        match running.complete(outcome).await {
            Ok(Settled::Applied) => {
                if let Some(witness) = &task.receipts {
                    self.engine.check_receipt(witness, id);
                }
                Worked::Done(Count::Completed)
            }
            Ok(_) => again(Count::Overtaken, None, String::new()),
            // The engine holds the outcome and goes on trying: the redelivery finds what came of it.
            Err(error) => again(Count::Unsettled, None, error.to_string()),
        }
    }
}

/// A handler said that it failed.
async fn fail(task: &Task, mut running: Running, failure: Failure) -> Worked {
    let (guarantee, granted) = (running.guarantee(), running.grant().attempt);
    let may_run_again = guarantee == Guarantee::AtLeastOnce || failure.has_no_effect;
    let is_retried = !failure.is_rejection && !task.is_last(granted);
    let settled = match may_run_again {
        // Released, the record would be gone, and with it the count.
        true if is_retried && guarantee == Guarantee::AtLeastOnce => running.fail().await,
        true => running.release(None).await,
        false => running.doubt(Reason::Failed).await,
    };
    match settled {
        Ok(Settled::Applied) => {}
        Ok(_) => return again(Count::Overtaken, None, failure.reason),
        Err(error) if error.kind() == ErrorKind::Unaudited => return unaudited(&error),
        // Tried again in the background, or it lapses with a like result.
        Err(error) => tracing::warn!(%error, "the end of a failed message could not be stored"),
    }
    if failure.is_rejection {
        return dead(DeadReason::Rejected, failure.reason);
    }
    // Where there is a receipt or a probe, it tells the next attempt what became of this one.
    if !may_run_again && !task.may_be_learnt() {
        return dead(DeadReason::OutcomeUnknown, failure.reason);
    }
    match task.is_last(granted) {
        true => dead(DeadReason::AttemptsUsedUp, failure.reason),
        false => again(Count::Retried, failure.delay, failure.reason),
    }
}

/// Whether it took effect is not known: under at-least-once it is taken over once its lease has lapsed.
async fn panicked(task: &Task, mut running: Running, panic: String) -> Worked {
    let (guarantee, granted) = (running.guarantee(), running.grant().attempt);
    if let Err(error) = running.doubt(Reason::Panicked).await {
        if error.kind() == ErrorKind::Unaudited {
            return unaudited(&error);
        }
        tracing::warn!(%error, "the end of a message whose handler panicked could not be stored");
    }
    tracing::error!(record = %running.id(), "a handler panicked");
    if guarantee != Guarantee::AtLeastOnce && !task.may_be_learnt() {
        return dead(DeadReason::OutcomeUnknown, panic);
    }
    match task.is_last(granted) {
        true => dead(DeadReason::AttemptsUsedUp, panic),
        false => again(Count::Panicked, Some(task.terms.lease), panic),
    }
}

/// Its end is stored and not written down: the message goes nowhere before the audit log works again.
fn unaudited(error: &Error) -> Worked {
    again(Count::Unsettled, None, error.to_string())
}

fn in_flight(lease_left: Duration) -> Worked {
    again(Count::InFlight, Some(lease_left), String::new())
}

fn failed_claim(error: Error) -> Worked {
    match error.kind() {
        // Damaged is not absent: it must not run, and asking again will not mend it.
        ErrorKind::Corrupt => dead(DeadReason::RecordDamaged, error.to_string()),
        _ => Worked::Unavailable(error),
    }
}

fn again(why: Count, delay: Option<Duration>, failure: String) -> Worked {
    Worked::Again {
        why,
        delay,
        failure,
    }
}

pub(super) fn dead(reason: DeadReason, failure: impl Into<String>) -> Worked {
    let failure = failure.into();
    Worked::Dead { reason, failure }
}

/// Runs a handler, and ends a panic in it here. For workers.
///
/// # Errors
/// What the handler said when it panicked.
///
/// # Cancellation
/// As the handler itself.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(words(&*panic))),
        }
    })
    .await
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
    format!("the handler panicked: {}", text.unwrap_or("without a word"))
}
