//! The stages of a request to a guarded operation, and how far it gets without waiting.
//!
//! Most requests need no waiting: the body has arrived, and the store replies at once.
//! They are decided in one call, without a future of their own.

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
    layer::LayerState,
    probe::HttpProbe,
    problem::Problem,
    reply::{self, Replay},
    service::{Carried, acknowledged, intent, logless, verified},
    unknown,
};
use crate::{
    Error, Intent, Key, Verdict,
    engine::{ClaimFuture, ClaimReply, Count, Guard},
    policy::{Match, Mode},
    receipts::{Standing, Witness},
    record::Doubt,
};

/// The stage that a request has reached.
pub(super) enum Stage<B, R> {
    /// A stored outcome answers it.
    Replayed(Replay),
    /// Another response answers it.
    Answered(Response<Body<R>>),
    /// The operation has `mode = "observe"`.
    Observed(B),
    /// The request has no key, and needs none.
    Keyless(Body<B>),
    /// The body has not arrived completely; with the key, if the head has it.
    Reading(Option<Key>, Reading<B>),
    /// The claim was sent, and the store has not replied yet.
    Asking(Box<ClaimFuture>, Received),
    /// The claim failed.
    Failed(Error, Received),
    /// The claim was granted.
    Granted(Box<Intent>, Received, Guard),
}

/// A request body that was read to the end.
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

/// A request to a guarded operation, before its claim is decided.
pub(super) struct Coming<'a> {
    pub(super) shared: &'a LayerState,
    pub(super) found: &'a Match,
    pub(super) head: &'a Parts,
    pub(super) since: Instant,
}

impl Coming<'_> {
    /// Advances the request as far as possible without waiting.
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
            // A signed request is verified before its key is used, which needs the body.
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

    /// Continues after the body was read.
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
        let mut attending = engine.send_claim(Box::new(intent), self.since);
        match poll_once(&mut attending) {
            Poll::Ready((turn, intent)) => self.attended(intent, body, turn),
            Poll::Pending => Stage::Asking(Box::new(attending), body),
        }
    }

    /// Continues after the claim was decided.
    pub(super) fn attended<B, R>(
        &self,
        intent: Box<Intent>,
        body: Received,
        turn: Result<ClaimReply, Error>,
    ) -> Stage<B, R> {
        Stage::Answered(match turn {
            Ok(ClaimReply::Verdict(verdict)) => match verdict {
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
            Ok(ClaimReply::Refused(answer)) => {
                let answer = reply::answer(&answer, self.is_to_head());
                marked(Decision::Refused, answer)
            }
            Ok(ClaimReply::Live(live)) => self.shared.follow(&live),
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

    /// Whether a retry later learns the outcome: a receipt appears, or the key is released once the attempt can no longer commit.
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

    /// The cap for request bodies: a body that never fits into the budget is over the cap, too.
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

/// Polls without a waker: the future is polled again when it is awaited.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn invalid(error: &Error) -> Problem {
    Problem::new(Code::KeyInvalid, error.to_string())
}

/// The problem for a request body that could not be read: the client disconnected (then nobody reads the response),
/// sent nothing for too long, or sent malformed framing.
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
