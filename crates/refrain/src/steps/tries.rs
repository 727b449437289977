//! Runs one step, with retries, while its claim is valid.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{Failure, Steps, run::PlannedEntry};
use crate::{Guarantee, Key, engine::Running, failure::brief, record::Reason};

/// Maximum duration of a try, regardless of the terms, to avoid overflow of the clock.
const TRY_MAX: Duration = Duration::from_hours(24);

/// Result of the tries of one run.
pub(super) enum Tried {
    Done(Vec<u8>),
    Unkept(String),
    Rejected(String),
    Failed(StepFault),
}

/// The last failure of a run's tries.
pub(super) struct StepFault {
    pub(super) reason: String,
    pub(super) delay: Option<Duration>,
    pub(super) why: Reason,
    /// Whether one of the tries may have taken effect.
    pub(super) may_have_acted: bool,
}

impl Steps<'_> {
    /// Runs `work` until it has a result, or a further try is useless.
    pub(super) async fn tries<F, W>(
        &self,
        place: &PlannedEntry<'_>,
        running: &Running,
        work: F,
    ) -> Tried
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
