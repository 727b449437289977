//! One call: journals the intent, sends until there is a final answer, and journals the ending.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};

use super::{
    CallResponse, ClientState, Ending, Sent, Stopped, Transport, Why,
    answer::{self, Again, Judged},
    journal::{
        Done,
        codec::{Answered, Intent, Record},
    },
    moment::Moment,
    retry::Retry,
};
use crate::{Fingerprint, Key, Result};

/// A call in flight.
pub(super) struct CallRun<T> {
    pub(super) shared: Arc<ClientState<T>>,
    pub(super) retry: Retry,
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    /// Includes the key header.
    pub(super) request: Request<Bytes>,
    pub(super) deadline: Deadline,
    /// Whether an attempt, of this process or an earlier one, may have taken effect.
    pub(super) may_have_run: bool,
    pub(super) attempts: u32,
    /// How many attempts count towards the limit.
    pub(super) counted: u32,
}

/// Time after which nothing is sent, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    from: Moment,
    left: Duration,
}

impl Deadline {
    /// Creates a deadline relative to now.
    pub(super) fn after(now: Moment, left: Duration) -> Self {
        Self { from: now, left }
    }

    /// Returns the time that an intent has left, by the clock that shows the longer elapsed time.
    pub(super) fn of(intent: &Intent, now: Moment) -> Self {
        let passed = intent.created.longest_until(now);
        Self::after(now, intent.deadline.saturating_sub(passed))
    }

    pub(super) fn left(&self, now: Moment) -> Duration {
        // Within one process, values of the monotonic clock are always comparable, even without a boot ID.
        let passed = now.steady.millis.saturating_sub(self.from.steady.millis);
        self.left.saturating_sub(Duration::from_millis(passed))
    }
}

/// Result of the last attempt.
#[derive(Default)]
struct LastAttempt {
    answer: Option<Response<Bytes>>,
    trouble: Option<String>,
}

/// Result of an attempt: the final response, a reason to stop, or another attempt.
enum AttemptResult {
    Answered(Response<Bytes>),
    Stop(Why, LastAttempt),
    Again(Again, LastAttempt),
}

impl<T: Transport> CallRun<T> {
    /// Journals the intent, then sends.
    pub(super) async fn begin(mut self, intent: Intent) -> Result<Ending> {
        match self.shared.journal.begin(intent).await? {
            Done::Finished(response) => {
                return Ok(Ending::Answered(CallResponse {
                    response,
                    attempts: 0,
                    is_from_journal: true,
                }));
            }
            Done::Again => self.may_have_run = true,
            Done::Written | Done::NotOpen => {}
        }
        self.run_to_end().await
    }

    /// Sends until there is an ending, and journals it.
    pub(super) async fn run_to_end(mut self) -> Result<Ending> {
        let mut last = LastAttempt::default();
        loop {
            if self.left().is_zero() {
                return self.stop(Why::DeadlinePassed, last).await;
            }
            match self.attempt().await {
                AttemptResult::Answered(response) => return self.answered(response).await,
                AttemptResult::Stop(why, last) => return self.stop(why, last).await,
                AttemptResult::Again(again, now) => {
                    last = now;
                    if let Some(why) = self.pause(again).await {
                        return self.stop(why, last).await;
                    }
                }
            }
        }
    }

    fn left(&self) -> Duration {
        self.deadline.left(self.shared.journal.now())
    }

    async fn attempt(&mut self) -> AttemptResult {
        self.attempts += 1;
        let sending = self.shared.transport.send(self.request.clone());
        let sent = tokio::time::timeout(self.left(), sending).await;
        let (trouble, sent) = match sent {
            Ok(Ok(response)) => return self.judge(response),
            Ok(Err(error)) => (error.to_string(), error.sent()),
            Err(_) => (
                "no response arrived before the deadline".into(),
                Sent::Unknown,
            ),
        };
        self.may_have_run |= sent != Sent::Nothing;
        let last = LastAttempt {
            answer: None,
            trouble: Some(trouble),
        };
        match sent {
            Sent::TooLongAnAnswer(_) => AttemptResult::Stop(Why::AnswerTooLong, last),
            Sent::Nothing | Sent::Unknown => {
                let again = Again {
                    counts: true,
                    may_have_run: self.may_have_run,
                    after: None,
                };
                AttemptResult::Again(again, last)
            }
        }
    }

    fn judge(&mut self, response: Response<Bytes>) -> AttemptResult {
        let now = self.shared.journal.now().wall;
        let judged = answer::judge(&response, self.retry.conflict_is_final, now);
        let is_too_long = response.body().len() > self.shared.journal.options().answer_bytes_max;
        if let (Judged::Final, true) = (judged, is_too_long) {
            self.may_have_run = true;
            let trouble = "the response exceeds the journal's answer_bytes_max";
            let last = LastAttempt {
                answer: Some(response),
                trouble: Some(trouble.into()),
            };
            return AttemptResult::Stop(Why::AnswerTooLong, last);
        }
        let last = |response| LastAttempt {
            answer: Some(response),
            trouble: None,
        };
        match judged {
            Judged::Final => AttemptResult::Answered(response),
            // If nothing ran before, the refusal is the final answer.
            Judged::Refused if !self.may_have_run => AttemptResult::Answered(response),
            Judged::Refused => AttemptResult::Stop(Why::Refused, last(response)),
            Judged::NewKey => AttemptResult::Stop(Why::NewKeyWanted, last(response)),
            Judged::Ask => {
                self.may_have_run = true;
                AttemptResult::Stop(Why::Asked, last(response))
            }
            Judged::Again(again) => {
                self.may_have_run |= again.may_have_run;
                AttemptResult::Again(again, last(response))
            }
        }
    }

    /// Waits before the next attempt; returns the reason if there is no next attempt.
    async fn pause(&mut self, again: Again) -> Option<Why> {
        self.counted += u32::from(again.counts);
        if self.counted >= self.retry.attempts_max {
            return Some(Why::AttemptsUsedUp);
        }
        let backoff = self.retry.backoff.pause_anywhere(self.attempts);
        let wanted = again.after.unwrap_or_default().saturating_add(backoff);
        let pause = wanted.max(self.shared.purse.take(self.retry.budget));
        if pause >= self.left() {
            self.shared.purse.give_back();
            return Some(Why::DeadlinePassed);
        }
        tracing::debug!(attempt = self.attempts, ?pause, "retrying a call");
        tokio::time::sleep(pause).await;
        None
    }

    async fn answered(self, response: Response<Bytes>) -> Result<Ending> {
        let record = Record::Answered(Box::new(Answered {
            key: self.key.clone(),
            fingerprint: self.fingerprint,
            at: self.shared.journal.now(),
            response: response.clone(),
        }));
        self.shared.journal.end(&self.key, record).await?;
        Ok(Ending::Answered(CallResponse {
            response,
            attempts: self.attempts,
            is_from_journal: false,
        }))
    }

    /// Ends without an answer. A call with an unknown outcome stays open; any other is closed.
    async fn stop(self, why: Why, last: LastAttempt) -> Result<Ending> {
        let stopped = Stopped {
            why,
            attempts: self.attempts,
            answer: last.answer,
            trouble: last.trouble,
        };
        let ending = match why {
            // Under a new key, a request that may have run could run twice.
            _ if self.may_have_run => return Ok(Ending::Unknown(stopped)),
            Why::NewKeyWanted => Ending::NewKey(stopped),
            _ => Ending::NotRun(stopped),
        };
        let reason = match why {
            Why::NewKeyWanted => "the server demands another key",
            _ => "nothing was executed",
        };
        self.shared.drop_call(&self.key, reason).await?;
        Ok(ending)
    }
}
