//! The path of a guarded request: its states, and the future that drives it from matched to replied.
//!
//! ```text
//!  MatchedRequest --> ReadingBody --> Claiming --> Running ---> Replied
//!     |   |                              |  +----> Replied
//!     |   +--> Observing --> Replied     +-------> Unclaimed --> Passing or Replied
//!     +--> Passing
//!
//!  LookingUp --> Replied
//! ```
//!
//! With `scope = "jwt:CLAIM"`, `Verifying` comes before the body is read, or before the claim if the key is in the body.
//! With `replay_probe`, `Confirming` comes between a claim that finds an outcome and the reply.
//!
//! Any state before `Running` can end in `Replied` with a problem. Most requests need no waiting before they run: the body
//! has arrived, and the store replies at once. Such a request skips `ReadingBody` and `Claiming`, without a future for them.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    Decision, REFRAIN_OUTCOME,
    body::{Body, Carried, Guarded, OverBudget, Share, add_record, marked},
    caller::{self, Confirmation},
    capture::{BodyReader, ReadBody, ReadResult},
    extract::{self, HeadKey},
    layer::LayerState,
    observe::observe,
    probe::HttpProbe,
    problem::{self, Code, Problem},
    reply,
    report::DecisionReport,
    run::DetachedExecution,
    settle::{Execution, ReplyResult},
    streamed,
};
use crate::{
    Engine, Error, ErrorKind, Intent, Key, Operation, Outcome, RecordId, Scope, Verdict,
    engine::{ClaimReply, ClaimResult, Count, Guard},
    jwt::VerifiedClaims,
    policy::{Match, Mode, OnStoreFailure},
    record::Doubt,
};

mod callers;

type NextState<F, R, E> = Pin<Box<dyn Future<Output = RequestState<F, R, E>> + Send>>;

/// State of a request with body `B` to the service `S`.
type StateOf<S, B, R> = RequestState<
    <S as Service<Request<Body<B>>>>::Future,
    R,
    <S as Service<Request<Body<B>>>>::Error,
>;

pin_project! {
    /// State of a request. Large states are boxed, because the state is moved.
    #[project = StateProjection]
    pub(super) enum RequestState<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        /// Known: the operation, and the key if the head has one. The body has not arrived completely.
        /// Durable: nothing. A disconnect ends the request.
        ReadingBody { next: NextState<F, R, E> },
        /// Known: the operation and the key. The token of the request is verified, for which keys may have to be fetched;
        /// or a record of an earlier version is looked for.
        /// Durable: nothing. A disconnect ends the request.
        Verifying { next: NextState<F, R, E> },
        /// Known: the outcome of the first request. The upstream is asked whether the caller may see it.
        /// Durable: as before. A disconnect ends the request.
        Confirming { next: NextState<F, R, E> },
        /// Known: key, scope, fingerprint and credential. The store has not replied, or a request in flight is waited for.
        /// Durable: perhaps the claim. A disconnect releases it, because nothing was executed for it.
        Claiming { next: NextState<F, R, E>, waited: Arc<AtomicBool> },
        /// Known: the claim failed, so it is not known whether the request is a duplicate.
        /// Durable: perhaps the claim, which the engine releases once the store answers.
        Unclaimed { next: NextState<F, R, E> },
        /// Known: the request is a look-up of a key.
        /// Durable: nothing. A disconnect ends the request.
        LookingUp { next: NextState<F, R, E> },
        /// Known: the operation has `mode = "observe"`, so the request passes and is recorded in the background.
        /// Durable: nothing that a replay uses.
        Observing { next: NextState<F, R, E> },
        /// Known: the request is unguarded, has no key, or passes without the store. The inner service was called.
        /// Durable: nothing. A disconnect cancels the call.
        Passing { #[pin] future: F, called: Instant, decision: Decision },
        /// Known: the grant with its fence. The inner service was called; its response settles the record.
        /// Durable: the claim, at the end the outcome. A disconnect cancels nothing.
        Running { execution: DetachedExecution<R, E> },
        /// Known: the reply, such as the outcome of the first request. `None` after it was returned.
        Replied { reply: Option<ReplyResult<R, E>> },
    }
}

impl<F, R: Send + 'static, E: Send + 'static> RequestState<F, R, E> {
    pub(super) fn replied(response: Response<Body<R>>) -> Self {
        let reply = Some(Ok(Box::new(response)));
        Self::Replied { reply }
    }
}

pin_project! {
    /// The response future of a [`RefrainService`](super::RefrainService).
    pub struct ResponseFuture<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        report: Option<DecisionReport>,
        #[pin]
        pub(super) state: RequestState<F, R, E>,
    }
}

impl<F, R: Send, E: Send> ResponseFuture<F, R, E> {
    /// A request in this state, reported to the observer when it ends.
    pub(super) fn new(report: Option<DecisionReport>, state: RequestState<F, R, E>) -> Self {
        Self { report, state }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Send + 'static,
    E: Send + 'static,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let reply = loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Claiming { next, waited } => {
                    let polled = next.as_mut().poll(context);
                    if let Some(report) = this.report.as_mut().filter(|_| waited.load(Relaxed)) {
                        report.note_waited();
                    }
                    ready!(polled)
                }
                StateProjection::ReadingBody { next }
                | StateProjection::Verifying { next }
                | StateProjection::Confirming { next }
                | StateProjection::Unclaimed { next }
                | StateProjection::LookingUp { next }
                | StateProjection::Observing { next } => ready!(next.as_mut().poll(context)),
                StateProjection::Passing {
                    future,
                    called,
                    decision,
                } => {
                    let polled = ready!(future.poll(context));
                    break polled.map(|response| passed(response, called.elapsed(), *decision));
                }
                StateProjection::Running { execution } => {
                    break ready!(Pin::new(execution).poll(context)).map(|response| *response);
                }
                StateProjection::Replied { reply } => match reply.take() {
                    Some(reply) => break reply.map(|response| *response),
                    None => return Poll::Pending,
                },
            };
            this.state.set(next);
        };
        if let Some(report) = this.report.take() {
            report.send(reply.as_ref().ok());
        }
        Poll::Ready(reply)
    }
}

/// An unguarded response, without the `Refrain-Outcome` header.
fn passed<R>(mut response: Response<R>, served: Duration, decision: Decision) -> Response<Body<R>> {
    response.headers_mut().remove(REFRAIN_OUTCOME);
    let mut response = response.map(Body::through);
    response.body_mut().served = Some(served);
    marked(decision, response)
}

impl<F, R: Send, E: Send> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// A request that matched a guarded operation, on its way to a verdict.
pub(super) struct MatchedRequest<S> {
    pub(super) shared: Arc<LayerState>,
    /// The inner service, which was polled ready.
    pub(super) inner: S,
    pub(super) found: Match,
    pub(super) head: Parts,
    /// The claims of its token, once it was verified.
    pub(super) claims: Option<Box<VerifiedClaims>>,
    /// When the request began, or its body was read.
    pub(super) since: Instant,
}

// From matched to a verdict, in this order.
impl<S> MatchedRequest<S> {
    /// Looks for the key in the head, and reads the body.
    pub(super) fn matched<B: Carried, R: Carried>(self, body: B) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let operation = &*self.found.operation;
        if operation.mode == Mode::Observe {
            return self.observe(body);
        }
        if operation.audit_required && self.shared.engine.audit().is_none() {
            return self.refuse(&problem::no_audit_log());
        }
        let key = match extract::head_key(&operation.key, operation.syntax, &self.head.headers) {
            // A signed request is verified before its key is used, which needs the body.
            _ if operation.signature.is_some() => None,
            Ok(HeadKey::Absent) if operation.required => {
                return self.refuse(&problem::no_key(operation));
            }
            Ok(HeadKey::Absent) => return self.pass(Body::through(body), Decision::Passed),
            Ok(HeadKey::Found(key)) => Some(key),
            Ok(HeadKey::NeedsBody) => None,
            Err(error) => return self.refuse(&problem::invalid_key(&error)),
        };
        if key.is_some() && self.needs_verifying() {
            return self.verify(|request| request.read_body(key, body));
        }
        self.read_body(key, body)
    }

    /// Reads the body; `key` is the key in the head.
    fn read_body<B: Carried, R: Carried>(self, key: Option<Key>, body: B) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let share = Share::refusable(&self.shared.budget);
        let bytes_max = self.shared.request_bytes_max(&self.found.operation);
        let mut reading = BodyReader::new(body, bytes_max, share);
        if let Poll::Ready(read) = poll_once(&mut reading) {
            return self.body_read(key, read);
        }
        let next = Box::pin(async move {
            let read = reading.await;
            let since = Instant::now();
            Self { since, ..self }.body_read::<B, R>(key, read)
        });
        RequestState::ReadingBody { next }
    }

    /// Finds the key and claims, now that the body was read; `key` is the key in the head.
    fn body_read<B: Carried, R: Carried>(
        self,
        key: Option<Key>,
        read: ReadResult<B>,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let body = match read {
            Ok((body, None)) => body,
            Ok((_, Some(_))) => return self.refuse(&self.too_large()),
            Err(error) if error.is::<OverBudget>() => return self.refuse(&self.over_budget()),
            Err(error) => return self.refuse(&problem::unreadable(&error)),
        };
        let key = match self.key(key, &body.bytes) {
            Ok(Some(key)) => key,
            Ok(None) => return self.pass(body.into_body::<B>(None), Decision::Passed),
            Err(problem) => return self.refuse(&problem),
        };
        match self.needs_verifying() {
            true => self.verify(|request| request.claim::<B, R>(key, body)),
            false => self.claim::<B, R>(key, body),
        }
    }

    fn send_claim<B: Carried, R: Carried>(
        self,
        mut intent: Box<Intent>,
        body: ReadBody,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let engine = &self.shared.engine;
        let record = engine.record_id(&intent);
        if let (Some(_), Some(ask)) = (&self.found.operation.probe, &self.shared.probes) {
            let probe = HttpProbe::new(ask, &self.found, &self.head.headers, || record);
            intent.probe = Some(Arc::new(probe));
        }
        let mut claim = engine.send_claim(intent, record, self.since);
        if let Poll::Ready(claimed) = poll_once(&mut claim) {
            return self.claimed::<B, R>(claimed, record, body);
        }
        let mut claim = Box::new(claim);
        let waited = Arc::new(AtomicBool::new(claim.has_waited()));
        let noted = waited.clone();
        let next = Box::pin(async move {
            let claimed = poll_fn(|context| {
                let polled = Pin::new(&mut *claim).poll(context);
                noted.store(claim.has_waited(), Relaxed);
                polled
            });
            let claimed = claimed.await;
            self.claimed::<B, R>(claimed, record, body)
        });
        RequestState::Claiming { next, waited }
    }

    /// Executes the operation if the claim was granted, and otherwise replies.
    fn confirmed<B: Carried, R: Carried>(
        self,
        claimed: ClaimResult,
        record: RecordId,
        body: ReadBody,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let intent = claimed.intent;
        let verdict = match claimed.reply {
            Ok(ClaimReply::Verdict(verdict)) => verdict,
            Ok(ClaimReply::Refused(outcome)) => {
                let mut response = reply::answer(&outcome, self.is_to_head());
                add_record(response.headers_mut(), record);
                return RequestState::replied(marked(Decision::Refused, response));
            }
            Ok(ClaimReply::Live(live)) => {
                return RequestState::replied(streamed::follow(&self.shared, record, &live));
            }
            Err(error) => return self.unclaimed::<B, R>(record, error, body),
        };
        match verdict {
            Verdict::Granted(guard) => self.run::<B, R>(intent, record, body, guard),
            Verdict::Replay(outcome) if outcome.is_body_kept() => self.replay(record, &outcome),
            Verdict::Indeterminate(doubt) if self.will_be_known(&doubt) => {
                let problem = problem::unknown_before(&doubt).with_advice("wait");
                self.refuse(&problem.with_record(record))
            }
            verdict => {
                let acknowledged = reply::acknowledged(&self.found.operation, record, &verdict);
                let otherwise = || reply::to_verdict(&self.shared, record, &verdict);
                RequestState::replied(acknowledged.unwrap_or_else(otherwise))
            }
        }
    }
}

// The states that a request changes to.
impl<S> MatchedRequest<S> {
    fn run<B: Carried, R: Carried>(
        self,
        intent: Box<Intent>,
        record: RecordId,
        body: ReadBody,
        guard: Guard,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let execution = Execution {
            is_to_head: self.is_to_head(),
            shared: self.shared,
            operation: self.found.operation,
            intent,
            record,
        };
        let request = Request::from_parts(self.head, body.into_body::<B>(None));
        let execution = execution.start(self.inner, request, guard);
        RequestState::Running { execution }
    }

    fn replay<F, R: Send + 'static, E: Send + 'static>(
        &self,
        record: RecordId,
        outcome: &Outcome,
    ) -> RequestState<F, R, E> {
        let bytes = outcome.content().len();
        let Some(share) = Share::of_replay(&self.shared.budget, bytes) else {
            return self.refuse(&self.over_budget().with_record(record));
        };
        RequestState::replied(reply::replay(outcome, record, self.is_to_head(), share))
    }

    fn refuse<F, R: Send + 'static, E: Send + 'static>(
        &self,
        problem: &Problem,
    ) -> RequestState<F, R, E> {
        RequestState::replied(self.shared.refuse(problem))
    }

    /// Lets the request pass unguarded.
    fn pass<B: Carried, R: Carried>(mut self, body: Body<B>, decision: Decision) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let request = Request::from_parts(self.head, body);
        RequestState::Passing {
            future: self.inner.call(request),
            called: Instant::now(),
            decision,
        }
    }

    fn observe<B: Carried, R: Carried>(mut self, body: B) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let next = Box::pin(async move {
            let (body, observation) = observe(&self.shared, &self.found, &self.head, body);
            let Some(observation) = observation else {
                return self.pass::<B, R>(body, Decision::Observed);
            };
            let called = Instant::now();
            let calling = self.inner.call(Request::from_parts(self.head, body));
            let reply = calling.await.map(|response| {
                let mut response = Box::new(observation.end(response));
                response.body_mut().served = Some(called.elapsed());
                response
            });
            RequestState::Replied { reply: Some(reply) }
        });
        RequestState::Observing { next }
    }

    fn unclaimed<B: Carried, R: Carried>(
        self,
        record: RecordId,
        error: Error,
        body: ReadBody,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let next = Box::pin(async move {
            match may_pass(&self.shared, &self.found.operation, &error).await {
                Ok(()) => self.pass::<B, R>(body.into_body(None), Decision::Unguarded),
                Err(problem) => self.refuse(&problem.with_record(record)),
            }
        });
        RequestState::Unclaimed { next }
    }
}

/// Checks whether a request may pass unguarded although its claim failed; if not, returns the problem to refuse it with.
async fn may_pass(
    shared: &LayerState,
    operation: &Operation,
    error: &Error,
) -> Result<(), Box<Problem>> {
    let is_unaudited = error.kind() == ErrorKind::Unaudited;
    let name = &operation.name;
    match is_unaudited {
        true => {
            crate::log_rarely!(error, by = name, operation = %name, %error, "a claim failed because of the audit log");
        }
        false => {
            crate::log_rarely!(error, by = name, operation = %name, %error, "a claim failed because of the store or the receipts");
        }
    }
    if !is_unaudited && operation.on_store_failure == OnStoreFailure::Refuse {
        return Err(Box::new(problem::no_store()));
    }
    let is_written = !is_unaudited
        && (!operation.is_audited()
            || shared.engine.audit_unguarded(&operation.name).await.is_ok());
    if !is_written {
        return Err(Box::new(problem::unaudited()));
    }
    shared.engine.tally().count(Count::Unguarded);
    Ok(())
}

/// Polls without a waker: the future is polled again when it is awaited.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

// The facts of a request, and its problems.
impl<S> MatchedRequest<S> {
    fn is_to_head(&self) -> bool {
        self.head.method == Method::HEAD
    }

    /// The key of the request; `None` if it has no key, and needs none.
    fn key(&self, in_head: Option<Key>, body: &Bytes) -> Result<Option<Key>, Box<Problem>> {
        let (operation, head) = (&*self.found.operation, &self.head);
        extract::verify(&self.shared, operation, &head.headers, body)
            .map_err(|why| Problem::new(Code::SignatureInvalid, format!("{why}.")))?;
        let key = match in_head {
            Some(key) => Some(key),
            None => self
                .find_key(body)
                .map_err(|error| problem::invalid_key(&error))?,
        };
        match key {
            None if operation.required => Err(Box::new(problem::no_key(operation))),
            key => Ok(key),
        }
    }

    fn intent(&self, key: Key, body: &Bytes) -> Result<Box<Intent>, Box<Problem>> {
        let (operation, claims) = (&*self.found.operation, self.claims.as_deref());
        let mut intent = extract::intent(&self.shared, &self.found, key, &self.head, claims, body)
            .map_err(|error| problem::invalid_key(&error))?;
        if operation.is_audited() {
            intent.audit = Some(operation.name.as_str().into());
        }
        Ok(Box::new(intent))
    }

    fn find_key(&self, body: &Bytes) -> Result<Option<Key>, Error> {
        let (operation, head) = (&self.found.operation, &self.head);
        let content = extract::content(head, body);
        let uri = self.shared.uri(head);
        extract::find_key(&operation.key, operation.syntax, head, &uri, &content)
    }

    /// Whether a later retry learns the outcome. This one neither released nor replaced the attempt, so no attempts are
    /// left, or the attempt may still commit.
    fn will_be_known(&self, doubt: &Doubt) -> bool {
        let (found, may_commit) = (&self.found, !doubt.settle_left.is_zero());
        self.shared
            .will_be_known(&found.operation, may_commit, false)
    }

    fn too_large(&self) -> Problem {
        let bytes_max = self.shared.request_bytes_max(&self.found.operation);
        let detail = format!("The body may have at most {bytes_max} bytes.");
        Problem::new(Code::RequestTooLarge, detail)
    }

    fn over_budget(&self) -> Problem {
        self.shared.engine.tally().count(Count::OverBudget);
        problem::over_budget()
    }
}
