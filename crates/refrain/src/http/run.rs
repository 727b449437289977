//! Runs the operation: a disconnecting client does not cancel it, and it ends with a settled record.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, response};
use tokio::{runtime::Handle, time::timeout_at};

use super::{
    Code, Decision, Failure, REFRAIN_ATTEMPT, REFRAIN_OUTCOME,
    body::{Body, BodyError},
    budget::Share,
    capture::{self, Read, Reading},
    layer::LayerState,
    problem::Problem,
    receipted,
    refusal::{self, Refusal},
    service::{Carried, Guarded},
    unknown::unknown,
};
use crate::{
    Error, ErrorKind, Guarantee, Intent, Outcome, RecordId, Verdict,
    engine::{Guard, Running},
    policy::{Ending, Operation, Reply},
    record::{Reason, Settled},
};

/// Result of a run. Boxed, because it is passed from future to future.
pub(super) enum Ran<R, E> {
    /// The operation's own response; the record is settled.
    Answered(Box<Response<Body<R>>>),
    /// The service's own error.
    Erred(E),
    /// A problem of Refrain, because there is no response to return.
    Failed(Box<Problem>),
    /// Another attempt took over meanwhile, with this verdict.
    Overtaken(Box<Verdict<Guard>>),
}

/// One granted operation, with everything that is needed to settle it.
pub(super) struct Run {
    pub(super) shared: Arc<LayerState>,
    pub(super) operation: Arc<Operation>,
    pub(super) intent: Box<Intent>,
    /// Whether the request is `HEAD`, whose response has a `content-length` without a body.
    pub(super) is_to_head: bool,
}

/// Future that runs an operation and settles its record.
pub(super) type Task<R, E> = Pin<Box<dyn Future<Output = Ran<R, E>> + Send>>;

/// Runs the operation to its end, also if the caller goes away.
///
/// It is polled in place while the caller waits. When it is dropped before its end, it continues in a task of its own.
pub(super) struct Detached<R: Send + 'static, E: Send + 'static>(Option<Task<R, E>>);

impl<R: Send, E: Send> Detached<R, E> {
    pub(super) fn new(task: Task<R, E>) -> Self {
        Self(Some(task))
    }
}

impl<R: Send, E: Send> Future for Detached<R, E> {
    type Output = Ran<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ran<R, E>> {
        let Some(task) = &mut self.0 else {
            return Poll::Pending;
        };
        let polled = task.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<R: Send, E: Send> Drop for Detached<R, E> {
    fn drop(&mut self) {
        // After a panic or without a runtime it cannot continue: the record becomes indeterminate.
        let task = self.0.take().filter(|_| !std::thread::panicking());
        if let (Some(task), Ok(runtime)) = (task, Handle::try_current()) {
            runtime.spawn(task);
        }
    }
}

// Rare branches are boxed: a future is as large as its largest branch, and is moved as a whole.
impl Run {
    /// Starts the claim, calls the service and returns the future that settles the record.
    pub(super) fn ready<S, B, R>(
        self,
        mut inner: S,
        mut request: Request<Body<B>>,
        guard: Guard,
    ) -> Task<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let running = guard.start();
        let grant = running.grant();
        if !self.shared.forwards {
            request.extensions_mut().insert(grant.fence);
            request.extensions_mut().insert(running.id());
        }
        if self.operation.terms.guarantee == Guarantee::ExactlyOnce {
            receipted::tell(request.headers_mut(), &running);
        }
        let attempt = match grant.attempt {
            1 => HeaderValue::from_static("1"),
            attempt => attempt.into(),
        };
        request.headers_mut().insert(REFRAIN_ATTEMPT, attempt);
        let forwards = self.shared.forwards;
        let request = request.map(|body| match forwards {
            true => body.granted().sent_as(running.sent_mark()),
            false => body.granted(),
        });
        let calling = catch_unwind(AssertUnwindSafe(|| inner.call(request)));
        let share = Share::counted(&self.shared.budget);
        let work = Box::pin(call(calling.ok(), self.operation.clone(), share));
        Box::pin(self.run(work, running))
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn stores its arguments twice"
    )]
    fn run<W, R, E>(
        self,
        mut work: Pin<Box<W>>,
        running: Running,
    ) -> impl Future<Output = Ran<R, E>> + Send
    where
        W: Future<Output = Called<R, E>> + Send + 'static,
        R: Carried,
        E: Send + 'static,
    {
        async move {
            // An operation that is ready at the first poll needs no timer.
            let begun = poll_fn(|context| Poll::Ready(poll_caught(&mut work, context))).await;
            let called = match begun {
                Poll::Ready(called) => called,
                Poll::Pending => {
                    let timeout = tokio::time::Instant::now() + self.operation.terms.timeout;
                    let patience = running.deadline().min(timeout);
                    match timeout_at(patience, caught(&mut work)).await {
                        Ok(called) => called,
                        Err(_) => return Box::pin(self.late(work, running)).await,
                    }
                }
            };
            drop(work);
            match self.intent.receipts.clone() {
                None => self.settle_as_told(running, called).await,
                Some(witness) => Box::pin(self.settle_receipted(witness, running, called)).await,
            }
        }
    }

    /// Settles by the response, according to the policy's table of statuses.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn stores its arguments twice"
    )]
    pub(super) fn settle_as_told<R, E>(
        self,
        mut running: Running,
        called: Called<R, E>,
    ) -> impl Future<Output = Ran<R, E>>
    where
        R: Carried,
    {
        async move {
            match called {
                Called::Response(ending, response) => {
                    let (outcome, fresh) = match self.plan(&running, ending, response) {
                        Plan::Keep(outcome, fresh) => (outcome, fresh),
                        Plan::Release(answer, fresh) => {
                            return Box::pin(self.release(running, answer, fresh)).await;
                        }
                    };
                    match self.keep(running, outcome).await {
                        Ok(()) => ran_as(Decision::FreshKept, fresh),
                        Err(instead) => instead,
                    }
                }
                Called::Started(begun) => self.stream(running, *begun),
                Called::Error(error) => {
                    Box::pin(doubt(&mut running, Reason::Failed)).await;
                    Ran::Erred(error)
                }
                Called::Failure(Failure::NotSent) => {
                    let detail = "Nothing was sent. Send the same request with the same key again.";
                    let problem = Problem::new(Code::UpstreamUnreachable, detail);
                    let answer = problem.outcome(&self.shared.problems);
                    let ran = failed(problem);
                    Box::pin(self.release(running, answer, ran)).await
                }
                Called::Failure(Failure::Lost(reason)) => {
                    Box::pin(doubt(&mut running, reason)).await;
                    self.lost(&running, reason)
                }
            }
        }
    }

    /// Whether the outcome is kept or the key released, and the response to send once that is stored.
    fn plan<R, E>(
        &self,
        running: &Running,
        ending: Ending,
        mut response: Box<Response<Body<R>>>,
    ) -> Plan<R, E> {
        if ending == Ending::Release {
            let answer = capture::answer(&response, self.is_to_head);
            return Plan::Release(answer, Ran::Answered(response));
        }
        let outcome = self.outcome(&response, running.id());
        // The reply is built from the stored bytes.
        if outcome.is_body_kept() {
            response.body_mut().refill(outcome.body());
        }
        Plan::Keep(outcome, Ran::Answered(response))
    }

    /// The outcome of a response whose body was read, sealed for its record.
    pub(super) fn outcome<R>(&self, response: &Response<Body<R>>, record: RecordId) -> Outcome {
        capture::sealed(&self.operation, response, record, self.is_to_head)
    }

    /// Stores the outcome; if that fails, returns the result to send instead.
    pub(super) fn keep<R, E>(
        &self,
        running: Running,
        outcome: Outcome,
    ) -> impl Future<Output = Result<(), Ran<R, E>>> {
        let outcome = outcome.sealed(running.id());
        async move {
            match running.complete_sealed(outcome.clone()).await {
                Ok(Settled::Applied) => Ok(()),
                settled => Box::pin(self.kept(settled, outcome)).await,
            }
        }
    }

    /// Continues after a first settlement that was not applied, until an outcome is stored.
    async fn kept<R, E>(
        &self,
        mut settled: crate::Result<Settled>,
        outcome: Outcome,
    ) -> Result<(), Ran<R, E>> {
        loop {
            match settled {
                Ok(Settled::Applied) => return Ok(()),
                Ok(Settled::Fenced | Settled::TooEarly { .. }) => {}
                Err(error) => return Err(failed(not_stored(&error))),
            }
            // Overtaken: the outcome of the other attempt counts.
            let is_failure = outcome.status() >= 400 && self.intent.receipts.is_some();
            let running = match Box::pin(self.shared.engine.claim(&self.intent)).await {
                // The other attempt may still commit, whatever the failure of this one. Dropping the guard restores the doubt.
                Ok(Verdict::Granted(_)) if is_failure => {
                    return Err(failed(unknown(Reason::Failed)));
                }
                // The other attempt has no outcome, so this one is stored. The operation is not run again.
                Ok(Verdict::Granted(guard)) => guard.start(),
                Ok(other) => return Err(Ran::Overtaken(Box::new(other))),
                Err(error) => return Err(failed(not_stored(&error))),
            };
            settled = running.complete(outcome.clone()).await;
        }
    }

    /// Releases the key, then returns `ran`.
    async fn release<R, E>(
        &self,
        running: Running,
        answer: Option<Outcome>,
        ran: Ran<R, E>,
    ) -> Ran<R, E> {
        match running.release(answer).await {
            Ok(Settled::Applied) => ran_as(Decision::FreshReleased, ran),
            Ok(Settled::Fenced | Settled::TooEarly { .. }) => {
                match Box::pin(self.shared.engine.claim(&self.intent)).await {
                    // The other attempt has no outcome either; dropping the guard releases the key.
                    Ok(Verdict::Granted(_)) => ran_as(Decision::FreshReleased, ran),
                    Ok(other) => Ran::Overtaken(Box::new(other)),
                    Err(error) => failed(not_stored(&error)),
                }
            }
            Err(error) => failed(not_stored(&error)),
        }
    }
}

impl Run {
    /// The `outcome-unknown` problem for the caller of an attempt whose outcome is unknown.
    pub(super) fn lost<R, E>(&self, running: &Running, reason: Reason) -> Ran<R, E> {
        let problem = unknown(reason);
        failed(match running.guarantee() {
            // A retry runs again, or finds the outcome.
            Guarantee::ExactlyOnce | Guarantee::AtLeastOnce => problem.with_advice("wait"),
            Guarantee::AtMostOnce => problem,
        })
    }
}

/// Stores the decision in the operation's own response.
pub(super) fn ran_as<R, E>(decision: Decision, ran: Ran<R, E>) -> Ran<R, E> {
    match ran {
        Ran::Answered(mut response) => {
            response.body_mut().decision = Some(decision);
            Ran::Answered(response)
        }
        other => other,
    }
}

/// How a run with a response is settled.
enum Plan<R, E> {
    Keep(Outcome, Ran<R, E>),
    Release(Option<Outcome>, Ran<R, E>),
}

/// Result of calling the operation.
pub(super) enum Called<R, E> {
    /// A response, read up to the cap, and how it ends the claim.
    Response(Ending, Box<Response<Body<R>>>),
    /// A response that is streamed.
    Started(Box<StartedResponse<R>>),
    /// The service returned an error.
    Error(E),
    /// There is no response, or only a part of one.
    Failure(Failure),
}

impl<R, E> Called<R, E> {
    fn read(
        head: response::Parts,
        read: Result<Read<R>, BodyError>,
        (ending, may_be_ours): (Ending, bool),
    ) -> Self {
        let Ok(read) = read else {
            return Self::Failure(Failure::Lost(Reason::Truncated));
        };
        let refusal = match &read {
            Read::Whole(body, ..) if may_be_ours => refusal::read(&head, body),
            _ => None,
        };
        let ending = match refusal {
            Some(Refusal::Unknown(reason)) => return Self::Failure(Failure::Lost(reason)),
            Some(Refusal::Later) => Ending::Release,
            None => ending,
        };
        match read.into_body() {
            Some(body) => Self::Response(ending, Box::new(Response::from_parts(head, body))),
            // Responses are never over the budget.
            None => Self::Failure(Failure::Lost(Reason::Truncated)),
        }
    }
}

/// A response whose head has arrived.
pub(super) struct StartedResponse<R> {
    pub(super) head: response::Parts,
    pub(super) body: R,
    /// How the response ends the claim.
    ending: Ending,
    /// Whether it may be a problem of another Refrain, whose body overrides `ending`.
    may_be_ours: bool,
}

impl<R: Carried> StartedResponse<R> {
    /// Reads the body, up to the cap.
    pub(super) async fn read<E>(self, operation: &Operation, share: Share) -> Called<R, E> {
        let read = Reading::new(self.body, operation.outcome_bytes_max, share).await;
        Called::read(self.head, read, (self.ending, self.may_be_ours))
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
) -> impl Future<Output = Called<R, E>> + Send
where
    F: Future<Output = Result<Response<R>, E>> + Send,
    R: Carried,
    E: Send,
{
    async move {
        let Some(calling) = calling else {
            return panicked();
        };
        match begun(calling.await, &operation) {
            Ok(begun) => begun.read(&operation, share).await,
            Err(called) => called,
        }
    }
}

/// The response whose body has to be read, or the result that needs no reading.
fn begun<R: Carried, E>(
    called: Result<Response<R>, E>,
    operation: &Operation,
) -> Result<StartedResponse<R>, Called<R, E>> {
    let mut response = called.map_err(Called::Error)?;
    if let Some(failure) = response.extensions().get::<Failure>() {
        return Err(Called::Failure(*failure));
    }
    let status = response.status();
    let said = said(operation, response.headers_mut());
    let may_be_ours = said.is_none() && refusal::may_be_ours(status, response.headers());
    let ending = said.unwrap_or_else(|| by_head(operation, status, response.headers()));
    let is_streamed = operation.reply == Reply::Streamed && ending == Ending::Keep && !may_be_ours;
    let (head, body) = response.into_parts();
    let begun = StartedResponse {
        head,
        body,
        ending,
        may_be_ours,
    };
    // Streaming an empty rest gains nothing: such a response is sent once it is stored.
    match is_streamed && !begun.body.is_end_stream() {
        true => Err(Called::Started(Box::new(begun))),
        false => Ok(begun),
    }
}

/// Runs `work`, and catches its panics.
pub(super) async fn caught<W, R, E>(work: &mut Pin<Box<W>>) -> Called<R, E>
where
    W: Future<Output = Called<R, E>>,
{
    poll_fn(|context| poll_caught(work, context)).await
}

fn poll_caught<W, R, E>(work: &mut Pin<Box<W>>, context: &mut Context<'_>) -> Poll<Called<R, E>>
where
    W: Future<Output = Called<R, E>>,
{
    // After a panic, `work` is dropped and never polled again.
    let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
    polled.unwrap_or_else(|_| Poll::Ready(panicked()))
}

fn panicked<R, E>() -> Called<R, E> {
    Called::Failure(Failure::Lost(Reason::Panicked))
}

fn failed<R, E>(problem: Problem) -> Ran<R, E> {
    Ran::Failed(Box::new(problem))
}

fn not_stored(error: &Error) -> Problem {
    tracing::error!(%error, "an outcome could not be stored");
    let detail = match error.kind() {
        ErrorKind::Unaudited => {
            "The operation has ended; its outcome could not be written into the audit log, and is not shown before that works again."
        }
        _ => "The operation has ended; its outcome could not be stored yet.",
    };
    Problem::new(Code::OutcomeUnknown, detail).with_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// How a response ends the claim, as far as its head shows.
pub(super) fn ending(operation: &Operation, status: StatusCode, headers: &mut HeaderMap) -> Ending {
    let said = said(operation, headers);
    said.unwrap_or_else(|| by_head(operation, status, headers))
}

/// How a response without `Refrain-Outcome` ends the claim.
fn by_head(operation: &Operation, status: StatusCode, headers: &HeaderMap) -> Ending {
    match refusal::is_later(status, headers) {
        true => Ending::Release,
        false => operation.keeps(status.as_u16()),
    }
}

/// Removes and parses the response's `Refrain-Outcome` header.
fn said(operation: &Operation, headers: &mut HeaderMap) -> Option<Ending> {
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
            tracing::warn!(operation = %operation.name, "Refrain-Outcome is neither keep nor release: ignored");
            None
        }
    }
}

pub(super) async fn doubt(running: &mut Running, reason: Reason) {
    if let Err(error) = running.doubt(reason).await {
        tracing::error!(record = %running.id(), %error, "a doubt could not be stored; the lease lapses instead");
    }
}
