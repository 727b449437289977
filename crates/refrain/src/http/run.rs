//! The operation itself: runs in a task of its own, so that no client can cut it off, and ends with a settled record.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts, response};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Code, Failure, REFRAIN_ATTEMPT, REFRAIN_OUTCOME,
    body::Body,
    capture::{self, Read},
    problem::Problem,
    service::{Answer, Carried, Guarded},
};
use crate::{
    engine::{Guard, Running},
    policy::{Ending, Operation},
    record::{Reason, Settled},
};

/// What came of a run.
pub(super) enum Ran<R, E> {
    /// The operation's own answer, settled.
    Answered(Answer<R, E>),
    /// Ours, because there is none.
    Failed(Problem),
    /// Somebody took over meanwhile.
    Overtaken,
}

/// The request as the operation gets it. What else the caller put on it stays.
pub(super) fn request<B>(head: &Parts, body: Bytes) -> Request<Body<B>> {
    Request::from_parts(head.clone(), Body::full(body))
}

/// Runs the operation in a task of its own and waits for its answer.
pub(super) async fn detached<S, B, R>(
    inner: S,
    mut request: Request<Body<B>>,
    guard: Guard,
    operation: Arc<Operation>,
) -> Ran<R, S::Error>
where
    S: Guarded<B, R>,
    B: Carried,
    R: Carried,
{
    let (reply, replied) = oneshot::channel();
    let running = guard.start();
    let grant = running.grant();
    request.extensions_mut().insert(grant.fence);
    request
        .headers_mut()
        .insert(REFRAIN_ATTEMPT, grant.attempt.into());
    tokio::spawn(run(inner, request, running, operation, reply));
    replied
        .await
        .unwrap_or_else(|_| Ran::Failed(unknown(Reason::Dropped)))
}

type Reply<R, E> = oneshot::Sender<Ran<R, E>>;

async fn run<S, B, R>(
    inner: S,
    request: Request<Body<B>>,
    mut running: Running,
    operation: Arc<Operation>,
    reply: Reply<R, S::Error>,
) where
    S: Guarded<B, R>,
    B: Carried,
    R: Carried,
{
    let terms = operation.terms;
    let mut work = pin!(caught(call(inner, request, operation.clone())));
    match timeout(terms.timeout, &mut work).await {
        Ok(called) => {
            let ran = settle(running, &operation, called).await;
            let _ = reply.send(ran);
        }
        Err(_) => {
            doubt(&mut running, Reason::Timeout).await;
            let _ = reply.send(Ran::Failed(unknown(Reason::Timeout)));
            // The truth is welcome as long as it can still come. Behind that the attempt is ended here, so that it cannot act.
            let left = terms.settle_after.saturating_sub(terms.timeout);
            if let Ok(called) = timeout(left, work).await {
                late(running, &operation, called).await;
            }
        }
    }
}

/// What calling the operation gave.
#[expect(
    clippy::large_enum_variant,
    reason = "made once a request and moved on at once"
)]
enum Called<R, E> {
    Response(response::Parts, Read<R>),
    /// The service failed.
    Error(E),
    /// There is no answer, or only a part of one.
    Failure(Failure),
}

async fn call<S, B, R>(
    mut inner: S,
    request: Request<Body<B>>,
    operation: Arc<Operation>,
) -> Called<R, S::Error>
where
    S: Guarded<B, R>,
    R: Carried,
{
    let response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => return Called::Error(error),
    };
    if let Some(failure) = response.extensions().get::<Failure>() {
        return Called::Failure(*failure);
    }
    let (head, body) = response.into_parts();
    match capture::read(body, operation.outcome_bytes_max).await {
        Ok(read) => Called::Response(head, read),
        Err(_) => Called::Failure(Failure::Lost(Reason::Truncated)),
    }
}

/// Runs `work`; a panic in it ends there.
async fn caught<R, E>(work: impl Future<Output = Called<R, E>>) -> Called<R, E> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        // What a panic leaves behind is dropped, and never looked at again.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(Called::Failure(Failure::Lost(
            Reason::Panicked,
        ))))
    })
    .await
}

async fn settle<R, E>(
    mut running: Running,
    operation: &Operation,
    called: Called<R, E>,
) -> Ran<R, E> {
    match called {
        Called::Response(head, read) => settle_response(running, operation, head, read).await,
        Called::Error(error) => {
            doubt(&mut running, Reason::Failed).await;
            Ran::Answered(Err(error))
        }
        Called::Failure(Failure::NotSent) => {
            let problem = Problem::new(
                Code::UpstreamUnreachable,
                "Nothing was sent. Send the same request with the same key again.",
            );
            stored(running.release(None).await, Ran::Failed(problem))
        }
        Called::Failure(Failure::Lost(reason)) => {
            doubt(&mut running, reason).await;
            Ran::Failed(unknown(reason))
        }
    }
}

async fn settle_response<R, E>(
    running: Running,
    operation: &Operation,
    mut head: response::Parts,
    read: Read<R>,
) -> Ran<R, E> {
    let ending = ending(operation, &mut head);
    match (ending, read) {
        (Ending::Keep, Read::Whole(body, trailers)) => {
            let outcome = capture::outcome(operation, &head, Some(&body), trailers.as_ref());
            let outcome = outcome.sealed(running.id());
            // The reply is made of the bytes that are stored.
            let body = Body::with_trailers(outcome.body(), trailers);
            let settled = running.complete(outcome).await;
            stored(settled, fresh(head, body))
        }
        (Ending::Keep, Read::Over(front, rest)) => {
            let outcome = capture::outcome(operation, &head, None, None);
            let settled = running.complete(outcome).await;
            stored(settled, fresh(head, Body::begun(front, rest)))
        }
        (Ending::Release, Read::Whole(body, trailers)) => {
            let answer = capture::answer(&head, &body, trailers.as_ref());
            let settled = running.release(Some(answer)).await;
            stored(settled, fresh(head, Body::with_trailers(body, trailers)))
        }
        (Ending::Release, Read::Over(front, rest)) => {
            let settled = running.release(None).await;
            stored(settled, fresh(head, Body::begun(front, rest)))
        }
    }
}

fn fresh<R, E>(head: response::Parts, body: Body<R>) -> Ran<R, E> {
    Ran::Answered(Ok(Response::from_parts(head, body)))
}

/// A reply leaves only when what it says is stored.
fn stored<R, E>(settled: crate::Result<Settled>, ran: Ran<R, E>) -> Ran<R, E> {
    match settled {
        Ok(Settled::Applied) => ran,
        Ok(Settled::Fenced | Settled::TooEarly { .. }) => Ran::Overtaken,
        Err(error) => {
            tracing::error!(%error, "an outcome could not be stored");
            let detail = "The operation has ended; its outcome could not be stored yet.";
            let problem = Problem::new(Code::OutcomeUnknown, detail);
            Ran::Failed(problem.with_status(StatusCode::SERVICE_UNAVAILABLE))
        }
    }
}

/// What becomes of the key: as the operation's answer says itself, or as the policy says.
fn ending(operation: &Operation, head: &mut response::Parts) -> Ending {
    let said = head.headers.remove(REFRAIN_OUTCOME);
    match said.as_ref().map(|value| value.as_bytes()) {
        Some(b"keep") => Ending::Keep,
        Some(b"release") => Ending::Release,
        Some(_) => {
            tracing::warn!(operation = %operation.name, "Refrain-Outcome is neither keep nor release: ignored");
            operation.keeps(head.status.as_u16())
        }
        None => operation.keeps(head.status.as_u16()),
    }
}

async fn doubt(running: &mut Running, reason: Reason) {
    if let Err(error) = running.doubt(reason).await {
        tracing::error!(record = %running.id(), %error, "a doubt could not be stored; the lease lapses instead");
    }
}

/// The truth came after the caller was told that it is not known.
async fn late<R, E>(running: Running, operation: &Operation, called: Called<R, E>) {
    if let Called::Response(mut head, read) = called {
        if ending(operation, &mut head) == Ending::Release {
            // Doubt is not taken back by an answer that says nothing about effects.
            return;
        }
        let body = match &read {
            Read::Whole(body, trailers) => Some((body, trailers.as_ref())),
            Read::Over(..) => None,
        };
        let trailers = body.and_then(|(_, trailers)| trailers);
        let outcome = capture::outcome(operation, &head, body.map(|(body, _)| body), trailers);
        if let Err(error) = running.complete(outcome).await {
            tracing::error!(%error, "a late outcome could not be stored");
        }
    }
}

/// Notes how an observed operation ended; its answer goes on untouched.
pub(super) async fn note(running: Running, operation: &Operation, status: StatusCode) {
    let settled = match operation.keeps(status.as_u16()) {
        Ending::Keep => {
            running
                .complete(crate::Outcome::new(status.as_u16(), ""))
                .await
        }
        Ending::Release => running.release(None).await,
    };
    if let Err(error) = settled {
        tracing::warn!(operation = %operation.name, %error, "an observed operation could not be noted");
    }
}

fn unknown(reason: Reason) -> Problem {
    let status = match reason {
        Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let detail = format!("The operation {}.", words(reason));
    Problem::new(Code::OutcomeUnknown, detail).with_status(status)
}

/// Why an outcome is not known, in words.
pub(super) fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Lapsed => "was cut off before its end was stored",
        Reason::Timeout => "did not answer in time",
        Reason::Reset => "broke off before it answered",
        Reason::Truncated => "broke off in the middle of its answer",
        Reason::Panicked => "failed in the middle",
        Reason::Dropped => "was stopped in the middle",
        Reason::Failed => "failed without an answer",
    }
}
