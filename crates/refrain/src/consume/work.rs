//! Processing of one message: claim, handle, settle.

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
    record::{Grant, Origin, Reason},
};

/// One message, with the terms of its processing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Task {
    /// The delivered message.
    pub message: Arc<Message>,
    /// Scope of the consumer.
    pub scope: Scope,
    /// Key of the effect.
    pub key: Key,
    /// Distinguishes a redelivery from another message with the same key.
    pub fingerprint: Fingerprint,
    /// Guarantee, lease, retention and other terms.
    pub terms: Terms,
    /// Probe that resolves unknown outcomes.
    pub probe: Option<Arc<dyn Probe>>,
    /// Receipts that show what was committed, under exactly-once.
    pub receipts: Option<Arc<Witness>>,
    /// Name in the audit log, if audited.
    pub audit: Option<Arc<str>>,
    /// The facts for operators that are stored with the record.
    pub origin: Origin,
    /// Number of redrives of the message.
    pub redrive: u32,
    /// Attempt number, starting at 1, as far as this process knows.
    /// It includes the broker's count only if no record [counts](Worker::counts_attempts).
    pub attempt: u32,
    /// Attempt that a handler was started for; 0 before.
    pub(super) started: Arc<AtomicU32>,
}

impl Task {
    /// Returns the intent to claim for a redrive; 0 is the original delivery.
    ///
    /// A redriven message has one further record per redrive. Claim them in order. The first record that is neither
    /// indeterminate nor a mismatch decides: it finds an effect that happened, and skips unknown outcomes.
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
            origin: Some(self.origin.clone()),
        }
    }

    /// Whether a probe or receipts can resolve an unknown outcome.
    fn may_be_learnt(&self) -> bool {
        self.probe.is_some() || self.receipts.is_some()
    }

    /// Returns the job for a granted claim. Counts the attempt, because the handler is about to run.
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

    /// Returns the attempt that a handler was started for; 0 if none was.
    pub(super) fn started(&self) -> u32 {
        self.started.load(Ordering::Relaxed)
    }

    /// Whether this is the last attempt.
    #[must_use]
    pub fn is_last(&self, granted: u16) -> bool {
        self.attempt.max(u32::from(granted)) >= u32::from(self.terms.attempts_max)
    }
}

/// Returns the scope of a message's records after this number of redrives.
pub(super) fn redriven(scope: &Scope, redrive: u32) -> Scope {
    match redrive {
        0 => scope.clone(),
        number => scope.clone().with("redrive", number.to_le_bytes()),
    }
}

/// Result of processing a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Worked {
    /// The outcome is durable: acknowledge the message, and count this.
    Done(Count),
    /// Redeliver the message.
    Again {
        /// Counter to increment. [`Count::Retried`] and [`Count::Panicked`] use up an attempt.
        /// [`Count::Held`] waits for a message that may be later in the queue, for up to the maximum number of
        /// attempts.
        why: Count,
        /// Minimum delay; `None` means the consumer's backoff.
        delay: Option<Duration>,
        /// Error text; empty if there was no error.
        failure: String,
    },
    /// Send the message to the dead letters.
    Dead {
        /// Reason.
        reason: DeadReason,
        /// Error text.
        failure: String,
    },
    /// Nothing was done, because the store is unavailable.
    Unavailable(Error),
}

/// Claims, handles and settles messages.
///
/// [`Consumer::run`](super::Consumer::run) does this with the engine. Implement the trait to do it in a database
/// transaction, and pass it to [`Consumer::run_with`](super::Consumer::run_with).
pub trait Worker: Send + Sync + 'static {
    /// Processes one message.
    ///
    /// # Cancellation
    /// Dropped at the end of the drain time: an attempt that may have taken effect must be left indeterminate.
    fn work<'a>(&'a self, task: &'a Task) -> Pin<Box<dyn Future<Output = Worked> + Send + 'a>>;

    /// Whether a failed attempt leaves a record that counts it.
    ///
    /// If not, as with a transaction that is rolled back, the broker's delivery count is used.
    fn counts_attempts(&self) -> bool {
        false
    }
}

/// Worker that claims and settles with the engine, and runs a handler in between.
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
                // A probe or receipt cannot decide before `settle_after`.
                Verdict::Indeterminate(doubt)
                    if task.may_be_learnt() && !doubt.settle_left.is_zero() =>
                {
                    return in_flight(doubt.settle_left);
                }
                Verdict::Indeterminate(doubt) => dead(
                    DeadReason::OutcomeUnknown,
                    format!("unknown outcome: {:?}", doubt.reason),
                ),
                Verdict::Mismatch | Verdict::OtherCredential => dead(
                    DeadReason::KeyReused,
                    "the key was already used for a message with different content",
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
            Ok(_) => retry_later(Count::Overtaken, None, String::new()),
            // The engine keeps the outcome and retries storing it; the redelivery finds the result.
            Err(error) => retry_later(Count::Unsettled, None, error.to_string()),
        }
    }
}

/// Settles a message whose handler returned a failure.
async fn fail(task: &Task, mut running: Running, failure: Failure) -> Worked {
    let (guarantee, granted) = (running.guarantee(), running.grant().attempt);
    let may_run_again = guarantee == Guarantee::AtLeastOnce || failure.has_no_effect;
    let is_retried = !failure.is_rejection && !task.is_last(granted);
    let settled = match may_run_again {
        // A release would delete the record and its count of attempts.
        true if is_retried && guarantee == Guarantee::AtLeastOnce => running.fail().await,
        true => running.release(None).await,
        false => running.doubt(Reason::Failed).await,
    };
    match settled {
        Ok(Settled::Applied) => {}
        Ok(_) => return retry_later(Count::Overtaken, None, failure.reason),
        Err(error) if error.kind() == ErrorKind::Unaudited => return unaudited(&error),
        // The engine retries, or the lease lapses with the same effect.
        Err(error) => {
            crate::log_rarely!(warn, by = task.origin.names().0, %error, "cannot store the result of a failed message");
        }
    }
    if failure.is_rejection {
        return dead(DeadReason::Rejected, failure.reason);
    }
    // If there is a receipt or a probe, the next attempt uses it to learn the result of this one.
    if !may_run_again && !task.may_be_learnt() {
        return dead(DeadReason::OutcomeUnknown, failure.reason);
    }
    match task.is_last(granted) {
        true => dead(DeadReason::AttemptsUsedUp, failure.reason),
        false => retry_later(Count::Retried, failure.delay, failure.reason),
    }
}

/// Settles a message whose handler panicked. Its effect is unknown; under at-least-once it is taken over after the
/// lease.
async fn panicked(task: &Task, mut running: Running, panic: String) -> Worked {
    let (guarantee, granted) = (running.guarantee(), running.grant().attempt);
    if let Err(error) = running.doubt(Reason::Panicked).await {
        if error.kind() == ErrorKind::Unaudited {
            return unaudited(&error);
        }
        crate::log_rarely!(warn, by = task.origin.names().0, %error, "cannot store the result of a message whose handler panicked");
    }
    tracing::error!(record = %running.id(), "a handler panicked");
    if guarantee != Guarantee::AtLeastOnce && !task.may_be_learnt() {
        return dead(DeadReason::OutcomeUnknown, panic);
    }
    match task.is_last(granted) {
        true => dead(DeadReason::AttemptsUsedUp, panic),
        false => retry_later(Count::Panicked, Some(task.terms.lease), panic),
    }
}

/// The result is stored but not audited: redeliver the message until the audit log works again.
fn unaudited(error: &Error) -> Worked {
    retry_later(Count::Unsettled, None, error.to_string())
}

fn in_flight(lease_left: Duration) -> Worked {
    retry_later(Count::InFlight, Some(lease_left), String::new())
}

fn failed_claim(error: Error) -> Worked {
    match error.kind() {
        // A damaged record is not absent: the message must not be handled, and a retry does not help.
        ErrorKind::Corrupt => dead(DeadReason::RecordDamaged, error.to_string()),
        _ => Worked::Unavailable(error),
    }
}

fn retry_later(why: Count, delay: Option<Duration>, failure: String) -> Worked {
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

/// Runs a handler and catches a panic. For implementations of [`Worker`].
///
/// # Errors
/// The panic message.
///
/// # Cancellation
/// As for the handler itself.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(describe_panic(&*panic))),
        }
    })
    .await
}

fn describe_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
    format!(
        "the handler panicked: {}",
        text.unwrap_or("without a message")
    )
}
