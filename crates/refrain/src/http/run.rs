//! `Running`: executes the operation under its timeout, decides how its response ends the claim, and has the record settled.
//!
//! A disconnecting client does not cancel it. A response that arrives after the timeout, when the caller has already got
//! `outcome-unknown`, still settles the record.
//! A temporary refusal is not an outcome and releases the key. Refusals come from another Refrain between this one and the
//! operation, or from any service that sends `Retry-After`.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header, response};
use serde::Deserialize;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    Failure, REFRAIN_ATTEMPT, REFRAIN_OUTCOME, TraceContext,
    body::{Body, Carried, Guarded, Share, add_record},
    capture::BodyReader,
    problem::Code,
    settle::{
        CallError, CallResult, Execution, OperationResponse, ReplyResult, add_receipt_headers,
        doubt, is_success,
    },
};
use crate::{
    Guarantee,
    engine::{Count, Guard, Running},
    policy::{Ending, Operation, Reply},
    record::{Reason, Settled},
};

/// Maximum size of a body that is parsed as a problem; Refrain's own are far smaller.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// A response that is not the outcome of the operation.
///
/// The layer reads this from the responses of the inner service. Clients of such a service can use it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Refused for now, without effect: retry with the same key.
    Later,
    /// The outcome is unknown to another Refrain, too.
    Unknown(Reason),
}

impl Refusal {
    /// Reads the refusal from a response: a problem of another Refrain, or 409 or 425 with `Retry-After`.
    /// Returns `None` if the response is an outcome.
    #[must_use]
    pub fn of(head: &response::Parts, body: &[u8]) -> Option<Self> {
        let ours = match may_be_ours(head.status, &head.headers) {
            true => refusal(head.status, body),
            false => None,
        };
        ours.or_else(|| is_later(head.status, &head.headers).then_some(Self::Later))
    }
}

type BoxedExecution<R, E> = Pin<Box<dyn Future<Output = ReplyResult<R, E>> + Send>>;

/// Executes the operation to its end and settles its record, also if the caller goes away.
///
/// It is polled in place while the caller waits. If it is dropped before its end, it continues in a task of its own.
pub(super) struct DetachedExecution<R: Send + 'static, E: Send + 'static>(
    /// `None` after its end.
    Option<BoxedExecution<R, E>>,
);

impl<R: Send, E: Send> Future for DetachedExecution<R, E> {
    type Output = ReplyResult<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(execution) = &mut self.0 else {
            return Poll::Pending;
        };
        let polled = execution.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<R: Send, E: Send> Drop for DetachedExecution<R, E> {
    fn drop(&mut self) {
        // After a panic or without a runtime it cannot continue: the record becomes indeterminate.
        let execution = self.0.take().filter(|_| !std::thread::panicking());
        if let (Some(execution), Ok(runtime)) = (execution, Handle::try_current()) {
            runtime.spawn(execution);
        }
    }
}

// Rare branches are boxed: a future is as large as its largest branch, and is moved as a whole.
impl Execution {
    /// Starts the claim, calls the service, and returns the future that settles the record.
    pub(super) fn start<S, B, R>(
        self,
        mut inner: S,
        mut request: Request<Body<B>>,
        guard: Guard,
    ) -> DetachedExecution<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let running = guard.start();
        self.add_grant(&mut request, &running);
        let forwards = self.shared.forwards;
        let request = request.map(|body| match forwards {
            true => body.granted().sent_as(running.sent_mark()),
            false => body.granted(),
        });
        let calling = catch_unwind(AssertUnwindSafe(|| inner.call(request)));
        let share = Share::counted(&self.shared.budget);
        let work = Box::pin(call(calling.ok(), self.operation.clone(), share));
        DetachedExecution(Some(Box::pin(self.run(work, running))))
    }

    /// Adds attempt number, record and fence to the request, as far as the operation uses them.
    fn add_grant<B>(&self, request: &mut Request<Body<B>>, running: &Running) {
        let grant = running.grant();
        if !self.shared.forwards || request.extensions().get::<TraceContext>().is_some() {
            request.extensions_mut().insert(grant.fence);
            request.extensions_mut().insert(running.id());
        }
        if self.operation.terms.guarantee == Guarantee::ExactlyOnce {
            add_receipt_headers(request.headers_mut(), running);
        } else if self.operation.is_probed_by_record() {
            add_record(request.headers_mut(), running.id());
        }
        let attempt = match grant.attempt {
            1 => HeaderValue::from_static("1"),
            attempt => attempt.into(),
        };
        request.headers_mut().insert(REFRAIN_ATTEMPT, attempt);
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn stores its arguments twice"
    )]
    fn run<W, R, E>(
        self,
        mut work: Pin<Box<W>>,
        running: Running,
    ) -> impl Future<Output = ReplyResult<R, E>> + Send
    where
        W: Future<Output = CallResult<R, E>> + Send + 'static,
        R: Carried,
        E: Send + 'static,
    {
        async move {
            let since = Instant::now();
            // An operation that is ready at the first poll needs no timer.
            let polled = poll_fn(|context| Poll::Ready(poll_caught(&mut work, context))).await;
            let called = match polled {
                Poll::Ready(called) => called,
                Poll::Pending => {
                    let timeout = tokio::time::Instant::now() + self.operation.terms.timeout;
                    let patience = running.deadline().min(timeout);
                    match timeout_at(patience, caught(&mut work)).await {
                        Ok(called) => called,
                        Err(_) => {
                            let reply = Box::pin(self.time_out(work, running)).await;
                            return served(reply, since.elapsed());
                        }
                    }
                }
            };
            let took = since.elapsed();
            drop(work);
            let called = match called {
                // Such an operation has no receipts: the policy rejects streamed responses under exactly-once.
                Ok(OperationResponse {
                    response,
                    unread: Some(body),
                    ..
                }) => return served(Ok(self.stream(running, *response, *body)), took),
                called => called,
            };
            let reply = match self.intent.receipts.clone() {
                None => self.settle_by_status(running, called).await,
                Some(witness) => Box::pin(self.settle_by_receipt(witness, running, called)).await,
            };
            served(reply, took)
        }
    }

    /// Handles a timeout: answers the caller with `outcome-unknown`, and awaits a late response in the background.
    async fn time_out<W, R, E>(
        self,
        mut work: Pin<Box<W>>,
        mut running: Running,
    ) -> ReplyResult<R, E>
    where
        W: Future<Output = CallResult<R, E>> + Send + 'static,
        R: Carried,
        E: Send + 'static,
    {
        if let Some(outcome) = self.found_late(&running).await {
            return Ok(self.settle_found(running, outcome).await);
        }
        doubt(&mut running, Reason::Timeout).await;
        let reply = self.lost(&running, Reason::Timeout);
        tokio::spawn(async move {
            let late = pin!(async {
                let response = caught(&mut work).await?;
                let share = Share::counted(&self.shared.budget);
                response.read::<E>(&self.operation, share).await
            });
            if let Some(called) = in_time(&running, late).await {
                self.settle_late(running, called).await;
            }
        });
        Ok(reply)
    }

    /// Settles the record by a late response.
    async fn settle_late<R, E>(&self, running: Running, called: CallResult<R, E>) {
        let response = match called {
            Ok(it) if it.ending == Ending::Keep => it.response,
            Ok(it) if it.ending == Ending::Release => return release_late(running).await,
            Err(CallError::Failure(Failure::NotSent)) => return release_late(running).await,
            _ => return,
        };
        let witness = self.intent.receipts.as_ref();
        // With receipts, a failure response says nothing about the effect.
        if witness.is_some() && !is_success(response.status()) {
            return;
        }
        let id = running.id();
        let outcome = self.outcome(&response, id);
        let settled = running.complete(outcome).await;
        let engine = &self.shared.engine;
        if let Ok(Settled::Applied) = settled {
            engine.tally().count(Count::Resolved);
        }
        match (settled, witness) {
            (Ok(Settled::Applied), Some(witness)) => engine.check_receipt(witness, id),
            (Ok(_), _) => {}
            (Err(error), _) => {
                tracing::error!(record = %id, %error, "cannot store a late outcome");
            }
        }
    }
}

/// The reply, which notes for the observer how long the service took.
fn served<R, E>(mut reply: ReplyResult<R, E>, took: Duration) -> ReplyResult<R, E> {
    if let Ok(response) = &mut reply {
        response.body_mut().served = Some(took);
    }
    reply
}

/// Awaits a late response for as long as it counts.
///
/// A handler in this process is dropped at its deadline: after that the store accepts "it never happened", so the handler
/// must not act. A request that was sent to another process cannot be cancelled: its response counts until
/// the record is settled otherwise.
async fn in_time<T>(running: &Running, mut late: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    if let Ok(called) = timeout_at(running.deadline(), &mut late).await {
        return Some(called);
    }
    if !running.is_sent() {
        return None;
    }
    tokio::select! {
        called = late => Some(called),
        () = running.settled_elsewhere() => None,
    }
}

/// Frees a key whose attempt reported late that it had no effect.
///
/// Under at-least-once the next retry executes anyway; under exactly-once the receipts decide.
async fn release_late(running: Running) {
    if running.guarantee() != Guarantee::AtMostOnce {
        return;
    }
    let record = running.id();
    if let Err(error) = running.release_late().await {
        tracing::error!(%record, %error, "cannot release a key after a late response without effect");
    }
}

/// Awaits and reads the response of the operation; `calling` is `None` if the call itself panicked.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async fn stores its arguments twice"
)]
fn call<F, R, E>(
    calling: Option<F>,
    operation: Arc<Operation>,
    share: Share,
) -> impl Future<Output = CallResult<R, E>> + Send
where
    F: Future<Output = Result<Response<R>, E>> + Send,
    R: Carried,
    E: Send,
{
    async move {
        let Some(calling) = calling else {
            return Err(lost(Reason::Panicked));
        };
        let response = calling.await.map_err(CallError::Service)?;
        if let Some(failure) = response.extensions().get::<Failure>() {
            return Err(CallError::Failure(*failure));
        }
        let started = StartedResponse::new(response, &operation);
        match started.is_streamed(&operation) {
            true => Ok(started.unread()),
            false => started.read::<E>(&operation, share).await,
        }
    }
}

/// A response whose head has arrived.
struct StartedResponse<R> {
    head: response::Parts,
    body: R,
    /// How the response ends the claim.
    ending: Ending,
    /// Whether it may be a problem of another Refrain, whose body overrides `ending`.
    may_be_ours: bool,
}

impl<R: Carried> StartedResponse<R> {
    fn new(mut response: Response<R>, operation: &Operation) -> Self {
        let status = response.status();
        let said = take_outcome_header(operation, response.headers_mut());
        let may_be_ours = said.is_none() && may_be_ours(status, response.headers());
        let ending = said.unwrap_or_else(|| by_head(operation, status, response.headers()));
        let (head, body) = response.into_parts();
        Self {
            head,
            body,
            ending,
            may_be_ours,
        }
    }

    /// Whether the body is sent while it is recorded. An empty rest is not: such a response is sent once it is stored.
    fn is_streamed(&self, operation: &Operation) -> bool {
        streams(operation, &self.head.headers)
            && self.ending == Ending::Keep
            && !self.may_be_ours
            && !self.body.is_end_stream()
    }

    fn unread(self) -> OperationResponse<R> {
        let response = Response::from_parts(self.head, Body::full(Bytes::new()));
        OperationResponse {
            ending: self.ending,
            response: Box::new(response),
            unread: Some(Box::new(self.body)),
        }
    }

    /// Reads the body, up to the cap.
    async fn read<E>(self, operation: &Operation, share: Share) -> CallResult<R, E> {
        let reading = BodyReader::new(self.body, operation.outcome_bytes_max, share);
        let Ok((body, rest)) = reading.await else {
            return Err(lost(Reason::Truncated));
        };
        let refusal = match rest {
            None if self.may_be_ours => refusal(self.head.status, &body.bytes),
            _ => None,
        };
        let ending = match refusal {
            Some(Refusal::Unknown(reason)) => return Err(lost(reason)),
            Some(Refusal::Later) => Ending::Release,
            None => self.ending,
        };
        let response = Response::from_parts(self.head, body.into_body(rest));
        Ok(OperationResponse {
            ending,
            response: Box::new(response),
            unread: None,
        })
    }
}

impl<R: Carried> OperationResponse<R> {
    /// Reads the body of a response that is no longer streamed, because the caller has already got another response.
    async fn read<E>(self, operation: &Operation, share: Share) -> CallResult<R, E> {
        let Some(body) = self.unread else {
            return Ok(self);
        };
        let (head, _) = self.response.into_parts();
        let started = StartedResponse {
            head,
            body: *body,
            ending: self.ending,
            may_be_ours: false,
        };
        started.read(operation, share).await
    }
}

/// Awaits `work`, and catches its panics.
async fn caught<W, R, E>(work: &mut Pin<Box<W>>) -> CallResult<R, E>
where
    W: Future<Output = CallResult<R, E>>,
{
    poll_fn(|context| poll_caught(work, context)).await
}

/// Polls `work`, and catches its panics.
fn poll_caught<W, R, E>(work: &mut Pin<Box<W>>, context: &mut Context<'_>) -> Poll<CallResult<R, E>>
where
    W: Future<Output = CallResult<R, E>>,
{
    // After a panic, `work` is dropped and never polled again.
    let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
    polled.unwrap_or_else(|_| Poll::Ready(Err(lost(Reason::Panicked))))
}

fn lost<E>(reason: Reason) -> CallError<E> {
    CallError::Failure(Failure::Lost(reason))
}

/// Whether the policy lets such a response be sent while it is recorded.
fn streams(operation: &Operation, headers: &HeaderMap) -> bool {
    match operation.reply {
        Reply::Stored => false,
        Reply::Streamed => true,
        // As the policy requires of `streamed`: no receipt decides, and the lease can be renewed before the deadline.
        Reply::Auto => {
            is_event_stream(headers)
                && !operation.is_receipted()
                && operation.terms.settle_after >= operation.terms.lease
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let essence = media_type.and_then(|it| it.split(|byte| *byte == b';').next());
    essence.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
}

/// How a response ends the claim, as far as its head shows.
pub(super) fn ending(operation: &Operation, status: StatusCode, headers: &mut HeaderMap) -> Ending {
    let said = take_outcome_header(operation, headers);
    said.unwrap_or_else(|| by_head(operation, status, headers))
}

/// How a response without `Refrain-Outcome` ends the claim.
fn by_head(operation: &Operation, status: StatusCode, headers: &HeaderMap) -> Ending {
    match is_later(status, headers) {
        true => Ending::Release,
        false => operation.keeps(status.as_u16()),
    }
}

/// Removes and parses the response's `Refrain-Outcome` header.
fn take_outcome_header(operation: &Operation, headers: &mut HeaderMap) -> Option<Ending> {
    static OUTCOME: HeaderName = REFRAIN_OUTCOME;
    // Comparing each name is faster than a map lookup, and the header is rare.
    let said = match headers.keys().any(|name| *name == OUTCOME) {
        true => headers.remove(REFRAIN_OUTCOME),
        false => None,
    };
    match said?.as_bytes() {
        b"keep" => Some(Ending::Keep),
        b"release" => Some(Ending::Release),
        _ => {
            crate::log_rarely!(warn, by = operation.name, operation = %operation.name, "invalid Refrain-Outcome header ignored; send keep or release");
            None
        }
    }
}

/// Whether the head alone shows that the response is not an outcome.
fn is_later(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::CONFLICT | StatusCode::TOO_EARLY)
        && headers.contains_key(header::RETRY_AFTER)
}

/// Whether the response may be a problem of Refrain, so that its body has to be read.
fn may_be_ours(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_problem = || {
        let media_type = headers.get(header::CONTENT_TYPE);
        media_type.is_some_and(|it| it.as_bytes().starts_with(b"application/problem+json"))
    };
    status.as_u16() >= 400 && is_problem()
}

/// The members that identify a problem of Refrain.
#[derive(Deserialize)]
struct ProblemMembers {
    r#type: String,
    code: String,
    advice: String,
}

/// The refusal of another Refrain, if the body is one of its problems.
fn refusal(status: StatusCode, body: &[u8]) -> Option<Refusal> {
    if body.len() > PROBLEM_BYTES_MAX {
        return None;
    }
    let problem: ProblemMembers = serde_json::from_slice(body).ok()?;
    // The `type` ends with the code in every version and under every base.
    if problem.r#type.rsplit('/').next() != Some(&problem.code) {
        return None;
    }
    match problem.advice.as_str() {
        "wait" | "reuse-key" => Some(Refusal::Later),
        "ask" if problem.code == Code::OutcomeUnknown.code() => {
            Some(Refusal::Unknown(match status {
                StatusCode::GATEWAY_TIMEOUT => Reason::Timeout,
                _ => Reason::Failed,
            }))
        }
        _ => None,
    }
}
