//! How far a request to a guarded operation comes without waiting.
//!
//! Most come all the way: the body is there, and so is the reply of a store that knows it at once.
//! What would need a future of its own otherwise is done in passing.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, request::Parts};
use tokio::time::Instant;

use super::{
    Code, Decision,
    body::{Body, BodyError},
    budget::Share,
    capture::{Read, Reading},
    decision::marked,
    extract::{self, HeadKey},
    layer::Shared,
    probe::HttpProbe,
    problem::Problem,
    reply::{self, Replay},
    service::{Carried, acknowledged, intent, logless, verified},
    unknown,
};
use crate::{
    Error, Intent, Key, Verdict,
    engine::{Attending, Count, Guard, Turn},
    policy::{Match, Mode},
    receipts::{Standing, Witness},
    record::Doubt,
};

/// How far a request has come.
pub(super) enum Stage<B, R> {
    /// To the stored outcome that answers it.
    Replayed(Replay),
    /// To another answer.
    Answered(Response<Body<R>>),
    /// It is only watched.
    Observed(B),
    /// It has no key, and needs none.
    Keyless(Body<B>),
    /// Its body is still on its way; the key, where the head has it.
    Reading(Option<Key>, Reading<B>),
    /// The store has been asked, and has not replied yet.
    Asking(Box<Attending>, Received),
    /// The store did not answer.
    Failed(Error, Received),
    /// It may run.
    Granted(Box<Intent>, Received, Guard),
}

/// A request body that was read to its end.
pub(super) struct Received {
    bytes: Bytes,
    trailers: Option<Box<HeaderMap>>,
    share: Share,
}

impl Received {
    pub(super) fn into_body<B>(self) -> Body<B> {
        Body::with_trailers(self.bytes, self.trailers).counted(self.share)
    }
}

/// A request to a guarded operation.
pub(super) struct Coming<'a> {
    pub(super) shared: &'a Shared,
    pub(super) found: &'a Match,
    pub(super) head: &'a Parts,
    pub(super) since: Instant,
}

impl Coming<'_> {
    /// Goes as far as it can without waiting.
    pub(super) fn begin<B: Carried, R>(&self, body: B) -> Stage<B, R> {
        let operation = &*self.found.operation;
        if operation.mode == Mode::Observe {
            return Stage::Observed(body);
        }
        if operation.audit_required && self.shared.engine.audit().is_none() {
            return self.refused(&logless());
        }
        let headers = &self.head.headers;
        let in_head = match extract::head_key(&operation.key, operation.syntax, headers) {
            // What is signed is verified before its key is looked at, which takes the body.
            _ if operation.signature.is_some() => None,
            Ok(HeadKey::Absent) if operation.required => return self.refused(&self.missing()),
            Ok(HeadKey::Absent) => return Stage::Keyless(Body::through(body)),
            Ok(HeadKey::Found(key)) => Some(key),
            Ok(HeadKey::NeedsBody) => None,
            Err(error) => return self.refused(&invalid(&error)),
        };
        let share = Share::refusable(&self.shared.budget);
        let mut reading = Reading::new(body, self.request_bytes_max(), share);
        match poll_once(&mut reading) {
            Poll::Ready(read) => self.received(in_head, read),
            Poll::Pending => Stage::Reading(in_head, reading),
        }
    }

    /// The body was read.
    pub(super) fn received<B, R>(
        &self,
        in_head: Option<Key>,
        read: Result<Read<B>, BodyError>,
    ) -> Stage<B, R> {
        let operation = &*self.found.operation;
        let body = match read {
            Ok(Read::Whole(bytes, trailers, share)) => Received {
                bytes,
                trailers,
                share,
            },
            Ok(Read::Over(..)) => return self.refused(&self.too_large()),
            Ok(Read::OverBudget) => return self.refused(&self.over_budget()),
            Err(error) => return self.refused(&unreadable(error.as_ref())),
        };
        if let Err(why) = verified(self.shared, operation, &self.head.headers, &body.bytes) {
            return self.refused(&Problem::new(Code::SignatureInvalid, format!("{why}.")));
        }
        let key = match self.key(in_head, &body.bytes) {
            Ok(Some(key)) => key,
            Ok(None) if operation.required => return self.refused(&self.missing()),
            Ok(None) => return Stage::Keyless(body.into_body()),
            Err(error) => return self.refused(&invalid(&error)),
        };
        let intent = match self.intent(key, &body.bytes) {
            Ok(intent) => intent,
            Err(error) => return self.refused(&invalid(&error)),
        };
        let engine = &self.shared.engine;
        let mut attending = engine.attending(Box::new(intent), self.since);
        match poll_once(&mut attending) {
            Poll::Ready((turn, intent)) => self.attended(intent, body, turn),
            Poll::Pending => Stage::Asking(Box::new(attending), body),
        }
    }

    /// The store has answered.
    pub(super) fn attended<B, R>(
        &self,
        intent: Box<Intent>,
        body: Received,
        turn: Result<Turn, Error>,
    ) -> Stage<B, R> {
        Stage::Answered(match turn {
            Ok(Turn::Verdict(verdict)) => match verdict {
                Verdict::Granted(guard) => return Stage::Granted(intent, body, guard),
                Verdict::Replay(outcome) if outcome.is_body_kept() => {
                    let bytes = outcome.content().len();
                    let Some(share) = Share::of_replay(&self.shared.budget, bytes) else {
                        return self.refused(&self.over_budget());
                    };
                    let replay = Replay::new(outcome, self.is_to_head());
                    return Stage::Replayed(replay.counted(share));
                }
                Verdict::Indeterminate(doubt) if self.will_be_known(&doubt) => {
                    let problem = unknown::unknown_before(&doubt).with_advice("wait");
                    self.shared.refuse(&problem)
                }
                other => acknowledged(&self.found.operation, &other)
                    .unwrap_or_else(|| self.shared.other(&other)),
            },
            Ok(Turn::Refused(answer)) => {
                let answer = reply::answer(&answer, self.is_to_head());
                marked(Decision::Refused, answer)
            }
            Ok(Turn::Live(live)) => self.shared.follow(&live),
            Err(error) => return Stage::Failed(error, body),
        })
    }

    fn is_to_head(&self) -> bool {
        self.head.method == Method::HEAD
    }

    fn key(&self, in_head: Option<Key>, body: &Bytes) -> Result<Option<Key>, Error> {
        let operation = &self.found.operation;
        match in_head {
            Some(key) => Ok(Some(key)),
            None => {
                let content = extract::content(self.head, body);
                let (head, uri) = (self.head, self.shared.uri(self.head));
                extract::find_key(&operation.key, operation.syntax, head, &uri, &content)
            }
        }
    }

    fn intent(&self, key: Key, body: &Bytes) -> Result<Intent, Error> {
        let operation = &self.found.operation;
        let mut intent = intent(self.shared, self.found, key, self.head, body)?;
        if operation.is_audited() {
            intent.audit = Some(operation.name.as_str().into());
        }
        if let (Some(_), Some(ask)) = (&operation.probe, &self.shared.probes) {
            let probe = HttpProbe::new(ask, self.found, &self.head.headers);
            intent.probe = Some(Arc::new(probe));
        }
        Ok(intent)
    }

    /// Whether time alone ends the doubt: its receipt turns up, or it is released once it can no longer commit.
    fn will_be_known(&self, doubt: &Doubt) -> bool {
        let is_unproven = |witness: &Arc<Witness>| witness.standing() == Standing::Unproven;
        let witness = self.shared.witness(&self.found.operation);
        !doubt.settle_left.is_zero() && witness.is_some_and(is_unproven)
    }

    fn refused<B, R>(&self, problem: &Problem) -> Stage<B, R> {
        Stage::Answered(self.shared.refuse(problem))
    }

    fn missing(&self) -> Problem {
        let sources = self.found.operation.key.iter();
        let sources: Vec<_> = sources.map(ToString::to_string).collect();
        let detail = format!(
            "Send a key that is unique to this request: {}.",
            sources.join(" or ")
        );
        Problem::new(Code::KeyMissing, detail)
    }

    /// What never fits into the budget is as good as over the cap.
    fn request_bytes_max(&self) -> usize {
        let fits = self.shared.budget.body_bytes_max();
        self.found.operation.request_bytes_max.min(fits)
    }

    fn over_budget(&self) -> Problem {
        self.shared.engine.tally().count(Count::OverBudget);
        let detail = "The memory for bodies is in use. Nothing was executed. Send the same request with the same key again.";
        Problem::new(Code::OverBudget, detail).with_retry_after(Duration::from_secs(1))
    }

    fn too_large(&self) -> Problem {
        let bytes_max = self.request_bytes_max();
        let detail = format!("At most {bytes_max} bytes are taken here.");
        Problem::new(Code::RequestTooLarge, detail)
    }
}

/// Polls without a waker: whoever waits for the rest polls again.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn invalid(error: &Error) -> Problem {
    Problem::new(Code::KeyInvalid, error.to_string())
}

/// The client broke off in the middle of its body, and nobody reads this answer; or it stood still, or what it sent is malformed.
fn unreadable(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Problem {
    tracing::debug!(%error, "the request body could not be read");
    let kind = error.downcast_ref().map(io::Error::kind);
    if kind == Some(io::ErrorKind::TimedOut) {
        let detail = "The body of the request did not come in time. Nothing ran.";
        return Problem::new(Code::RequestTimeout, detail);
    }
    let detail = "The body of the request is broken off, or its framing is. Nothing ran.";
    Problem::new(Code::RequestMalformed, detail)
}
