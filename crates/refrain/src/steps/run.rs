//! Processing of one place: replays the recorded outcome, or claims, runs with retries while its claim is valid, and settles.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Cause, Failure, StepError, Steps,
    log::{self, EntryEnding, EntryKind},
    step::{Step, check_input},
};
use crate::{
    Fingerprint, Guarantee, Intent, Key, Outcome, RecordId, Settled, Verdict,
    engine::{Guard, Running},
    failure::brief,
    record::{OriginFields, Reason, State},
    store::Store,
};

/// Entry to record in the next place.
pub(super) struct PlannedEntry<'s> {
    pub(super) kind: EntryKind,
    pub(super) name: &'s str,
    pub(super) intent: Intent,
    /// Key for the downstream system.
    pub(super) key: Key,
    pub(super) record: RecordId,
}

/// Result of a place.
pub(super) enum PassedEntry {
    /// The result of the step.
    Done(Bytes),
    /// The operation is undone from here on.
    Undo(Cause),
}

/// State of a place when it is reached.
pub(super) enum MetEntry {
    Granted(Guard),
    Recorded(Outcome),
}

impl PlannedEntry<'_> {
    /// Describes the intended content.
    pub(super) fn describe(&self) -> String {
        log::describe_entry(self.kind.name(), self.name)
    }

    /// Name of the step, for errors.
    fn step(&self) -> String {
        match self.kind {
            EntryKind::Step => self.name.into(),
            _ => self.describe(),
        }
    }
}

impl Steps<'_> {
    pub(super) fn place<'s>(
        &self,
        kind: EntryKind,
        step: &'s Step,
    ) -> Result<PlannedEntry<'s>, StepError> {
        let what = log::describe_entry(kind.name(), &step.name);
        let input = check_input(&what, &step.input)?;
        let (scope, key) = self.log.place(self.at);
        let fingerprint = self.log.fingerprint(kind, &step.name, input);
        let intent = Intent {
            fingerprint,
            terms: self.settings.terms(step.guarantee),
            probe: step.probe(&self.log, self.at),
            origin: Some(self.engine.origin(
                &scope,
                &key,
                &OriginFields {
                    operation: &self.name,
                    target: &what,
                    ..OriginFields::default()
                },
            )),
            ..Intent::new(scope, key)
        };
        Ok(PlannedEntry {
            kind,
            name: &step.name,
            intent,
            key: self.log.key(kind, &step.name),
            record: self.log.id(self.at),
        })
    }

    /// Replays the next place, or runs `work` for it.
    pub(super) async fn take<F, W>(
        &mut self,
        kind: EntryKind,
        step: &Step,
        work: F,
    ) -> Result<PassedEntry, StepError>
    where
        F: Fn(Key) -> W,
        W: Future<Output = Result<serde_json::Result<Vec<u8>>, Failure>>,
    {
        let place = self.place(kind, step)?;
        let outcome = match self.replay_or_claim(&place).await? {
            MetEntry::Recorded(outcome) => outcome,
            MetEntry::Granted(guard) => self.run(&place, guard, work).await?,
        };
        self.pass(&place, &outcome)
    }

    /// Records the next place without work.
    pub(super) async fn mark(
        &mut self,
        kind: EntryKind,
        ending: EntryEnding<'_>,
    ) -> Result<PassedEntry, StepError> {
        let step = Step::new("");
        let place = self.place(kind, &step)?;
        let outcome = match self.replay_or_claim(&place).await? {
            MetEntry::Recorded(outcome) => outcome,
            MetEntry::Granted(guard) => self.complete(&place, guard.start(), ending).await?,
        };
        self.pass(&place, &outcome)
    }

    /// Advances to the next place.
    fn pass(
        &mut self,
        place: &PlannedEntry<'_>,
        outcome: &Outcome,
    ) -> Result<PassedEntry, StepError> {
        self.log.follow(self.at, outcome);
        self.at += 1;
        match log::cause(outcome) {
            None => Ok(PassedEntry::Done(outcome.body())),
            Some(_) if self.is_past_return && place.kind != EntryKind::End => {
                Err(StepError::Changed(format!(
                    "{} was rejected permanently before the point of no return was moved before it",
                    place.describe()
                )))
            }
            Some(cause) => Ok(PassedEntry::Undo(cause)),
        }
    }

    async fn replay_or_claim(&mut self, place: &PlannedEntry<'_>) -> Result<MetEntry, StepError> {
        if let Some(entry) = self.known.pop_front() {
            return match entry.fingerprint == place.intent.fingerprint {
                true => Ok(MetEntry::Recorded(entry.outcome)),
                false => self.handle_mismatch(place, entry.fingerprint, Some(entry.outcome)),
            };
        }
        self.claim(place).await
    }

    async fn claim(&self, place: &PlannedEntry<'_>) -> Result<MetEntry, StepError> {
        let step = || place.step();
        match self.engine.claim(&place.intent).await? {
            Verdict::Granted(guard) => Ok(MetEntry::Granted(guard)),
            Verdict::Replay(outcome) => Ok(MetEntry::Recorded(outcome)),
            Verdict::InFlight { lease_left } => Err(StepError::InFlight {
                step: step(),
                lease_left,
            }),
            Verdict::Mismatch | Verdict::OtherCredential => self.read_recorded(place).await,
            Verdict::Indeterminate(_) => {
                Err(self.in_doubt(place, "an earlier run did not finish it"))
            }
            Verdict::Expired => Err(StepError::Expired),
        }
    }

    /// Reads what another run recorded in this place.
    async fn read_recorded(&self, place: &PlannedEntry<'_>) -> Result<MetEntry, StepError> {
        let Some(reading) = self.engine.store().read(place.record).await? else {
            // Released meanwhile.
            return Err(self.busy(place));
        };
        let outcome = match reading.record.state {
            State::Completed { outcome, .. } => Some(outcome),
            _ => None,
        };
        self.handle_mismatch(place, reading.record.fingerprint, outcome)
    }

    /// Handles a place with other content.
    fn handle_mismatch(
        &self,
        place: &PlannedEntry<'_>,
        fingerprint: Fingerprint,
        outcome: Option<Outcome>,
    ) -> Result<MetEntry, StepError> {
        let is = |kind| self.log.fingerprint(kind, "", None) == fingerprint;
        let Some(outcome) = outcome else {
            return Err(match place.kind {
                _ if is(EntryKind::Abandon) || is(EntryKind::End) => self.busy(place),
                EntryKind::Abandon => StepError::Invalid(
                    "the operation cannot be abandoned while a step may have taken effect: run that step to its end".into(),
                ),
                _ => StepError::Changed(format!(
                    "the code expects {}, but another step, or the same step with another input, was started and has not ended",
                    place.describe()
                )),
            });
        };
        let is_undone = log::cause(&outcome).is_some();
        if is(EntryKind::End) {
            return Err(match log::cause(&outcome) {
                Some(cause) => StepError::Undone { cause },
                None => StepError::Changed(format!(
                    "the code expects {}, but the operation has ended",
                    place.describe()
                )),
            });
        }
        // Another run abandoned the operation or was rejected, where this run would continue or abandon it.
        if is_undone && (is(EntryKind::Abandon) || place.kind == EntryKind::Abandon) {
            return Ok(MetEntry::Recorded(outcome));
        }
        let (wanted, found) = (place.describe(), log::describe(&outcome));
        Err(match wanted == found {
            true => StepError::Mismatch { what: wanted },
            false => StepError::Changed(format!(
                "the code expects {wanted}, but {found} was recorded"
            )),
        })
    }

    fn busy(&self, place: &PlannedEntry<'_>) -> StepError {
        StepError::InFlight {
            step: place.step(),
            lease_left: Duration::ZERO,
        }
    }

    /// Returns the error for a step that an operator must resolve.
    fn in_doubt(&self, place: &PlannedEntry<'_>, reason: &str) -> StepError {
        let (record, step) = (place.record, place.step());
        tracing::error!(operation = self.name, step, %record, reason, "a step waits for an operator to resolve its record");
        match place.kind == EntryKind::Undo || self.is_past_return {
            true => StepError::Stuck {
                what: place.describe(),
                reason: reason.into(),
                record,
            },
            false => StepError::Indeterminate { step, record },
        }
    }

    async fn run<F, W>(
        &self,
        place: &PlannedEntry<'_>,
        guard: Guard,
        work: F,
    ) -> Result<Outcome, StepError>
    where
        F: Fn(Key) -> W,
        W: Future<Output = Result<serde_json::Result<Vec<u8>>, Failure>>,
    {
        let running = guard.start();
        match self.tries(place, &running, work).await {
            Tried::Done(result) => {
                self.complete(place, running, EntryEnding::Done(&result))
                    .await
            }
            Tried::Rejected(reason) if place.kind == EntryKind::Undo || self.is_past_return => {
                Err(self.mark_in_doubt(place, running, &reason).await)
            }
            Tried::Rejected(reason) => {
                let step = Some(place.name.into());
                let cause = Cause { step, reason };
                self.complete(place, running, EntryEnding::Undo(&cause))
                    .await
            }
            Tried::Unkept(reason) => {
                let step = place.step();
                self.give_up(running, Reason::Failed, Duration::ZERO).await;
                Err(StepError::Unkept { step, reason })
            }
            Tried::Failed(fault) => Err(self.fail(place, running, fault).await),
        }
    }

    /// Stores the result. If this run was overtaken, the result of the other run counts.
    async fn complete(
        &self,
        place: &PlannedEntry<'_>,
        mut running: Running,
        ending: EntryEnding<'_>,
    ) -> Result<Outcome, StepError> {
        let outcome = self.log.pack(self.at, place.kind, place.name, ending);
        while running.complete(outcome.clone()).await? != Settled::Applied {
            running = match self.claim(place).await? {
                // The other run stored nothing, so this result is stored after all. The work is not repeated.
                MetEntry::Granted(guard) => guard.start(),
                MetEntry::Recorded(outcome) => return Ok(outcome),
            };
        }
        Ok(outcome)
    }

    /// Settles a failed step for a retry. Its record is released only if the step certainly had no effect;
    /// otherwise another run could abandon the operation here and leave the effect without an undo.
    async fn fail(
        &self,
        place: &PlannedEntry<'_>,
        running: Running,
        fault: StepFault,
    ) -> StepError {
        let (guarantee, attempt) = (running.guarantee(), running.grant().attempt);
        let pause = fault.delay;
        let pause = pause.unwrap_or_else(|| self.settings.backoff.pause(attempt.into()));
        if attempt == 1 && !fault.may_have_acted {
            if let Err(error) = running.release(None).await {
                crate::log_rarely!(warn, record = %place.record, %error, "cannot release a step");
            }
        } else {
            self.give_up(running, fault.why, pause).await;
            let is_last = attempt >= self.settings.terms.attempts_max;
            if is_last || guarantee != Guarantee::AtLeastOnce {
                return self.in_doubt(place, &fault.reason);
            }
        }
        StepError::Failed {
            step: place.step(),
            reason: fault.reason,
            retry_after: pause,
        }
    }

    /// Settles a step that must succeed but was rejected. A claim with at-most-once makes its record indeterminate,
    /// so that operators find it.
    async fn mark_in_doubt(
        &self,
        place: &PlannedEntry<'_>,
        running: Running,
        reason: &str,
    ) -> StepError {
        self.give_up(running, Reason::Failed, Duration::ZERO).await;
        let mut intent = place.intent.clone();
        intent.terms.guarantee = Guarantee::AtMostOnce;
        intent.terms.wait = Duration::ZERO;
        match self.engine.claim(&intent).await {
            Ok(Verdict::Indeterminate(_)) => self.in_doubt(place, reason),
            // Another run was faster, and handles the step itself.
            Ok(_) => self.busy(place),
            Err(error) => StepError::Store(error),
        }
    }

    async fn give_up(&self, running: Running, why: Reason, pause: Duration) {
        let record = running.id();
        if let Err(error) = running.give_up(why, pause).await {
            crate::log_rarely!(warn, %record, %error, "cannot give up a step; its lease lapses later");
        }
    }
}

/// Maximum duration of a try, regardless of the terms, to avoid overflow of the clock.
const TRY_MAX: Duration = Duration::from_hours(24);

/// Result of the tries of one run.
enum Tried {
    Done(Vec<u8>),
    Unkept(String),
    Rejected(String),
    Failed(StepFault),
}

/// The last failure of a run's tries.
struct StepFault {
    reason: String,
    delay: Option<Duration>,
    why: Reason,
    /// Whether one of the tries may have taken effect.
    may_have_acted: bool,
}

impl Steps<'_> {
    /// Runs `work` until it has a result, or a further try is useless.
    async fn tries<F, W>(&self, place: &PlannedEntry<'_>, running: &Running, work: F) -> Tried
    where
        F: Fn(Key) -> W,
        W: Future<Output = Result<serde_json::Result<Vec<u8>>, Failure>>,
    {
        let settings = &self.settings;
        let mut may_have_acted = false;
        let mut number = 0;
        loop {
            number += 1;
            let trying =
                run_until_deadline(running, settings.terms.timeout, work(place.key.clone()));
            let (failure, why) = match trying.await {
                Some(Ok(result)) => return check_result(result, settings.result_bytes_max),
                Some(Err(failure)) if failure.is_rejection() => {
                    return Tried::Rejected(brief(failure.reason()));
                }
                Some(Err(failure)) => (failure, Reason::Failed),
                None => (Failure::retry("it timed out"), Reason::Timeout),
            };
            may_have_acted |= !failure.has_no_effect();
            let pause = failure.delay();
            let pause = pause.unwrap_or_else(|| settings.backoff.pause(number));
            let is_over = may_have_acted && running.guarantee() != Guarantee::AtLeastOnce;
            if is_over || number >= settings.tries_max || pause > settings.backoff.max {
                return Tried::Failed(StepFault {
                    reason: failure.reason().into(),
                    delay: failure.delay(),
                    why,
                    may_have_acted,
                });
            }
            sleep(pause).await;
        }
    }
}

/// Checks that the result of a step can be stored.
fn check_result(result: serde_json::Result<Vec<u8>>, bytes_max: usize) -> Tried {
    match result {
        Ok(result) if result.len() <= bytes_max => Tried::Done(result),
        Ok(result) => Tried::Unkept(super::too_long(result.len(), bytes_max)),
        Err(error) => Tried::Unkept(error.to_string()),
    }
}

/// Runs one try until the claim's deadline, because after that a probe may report that it never happened.
async fn run_until_deadline<T>(
    running: &Running,
    timeout: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let ends = tokio::time::Instant::now() + timeout.min(TRY_MAX);
    loop {
        let until = ends.min(running.deadline());
        // Do not poll after the deadline: a poll may act.
        if Instant::now() >= until {
            return None;
        }
        if let Ok(done) = timeout_at(until, &mut work).await {
            return Some(done);
        }
    }
}
