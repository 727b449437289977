//! `Running`: calls the inner service, reads its response, and decides how the response ends the claim.
//!
//! A temporary refusal is not an outcome and releases the key. Refusals come from another Refrain between this one and the
//! operation, or from any service that sends `Retry-After`.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header, response};
use serde::Deserialize;

use super::{
    Failure, REFRAIN_OUTCOME,
    body::{Body, Carried},
    budget::Share,
    capture::BodyReader,
    problem::Code,
};
use crate::{
    policy::{Ending, Operation, Reply},
    record::Reason,
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

/// Response of the operation.
pub(super) struct OperationResponse<R> {
    /// How it ends the claim.
    pub(super) ending: Ending,
    /// Its body is in memory, up to the cap.
    pub(super) response: Box<Response<Body<R>>>,
    /// The unread body of a response that is streamed; the body of `response` is empty then.
    pub(super) unread: Option<Box<R>>,
}

/// Reason why a call returned no response.
pub(super) enum CallError<E> {
    /// The service returned an error.
    Service(E),
    /// There is no response, or only a part of one.
    Failure(Failure),
}

/// Result of calling the operation.
pub(super) type CallResult<R, E> = Result<OperationResponse<R>, CallError<E>>;

/// Awaits and reads the response of the operation; `calling` is `None` if the call itself panicked.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async fn stores its arguments twice"
)]
pub(super) fn call<F, R, E>(
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
        operation.reply == Reply::Streamed
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
    pub(super) async fn read<E>(self, operation: &Operation, share: Share) -> CallResult<R, E> {
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
pub(super) async fn caught<W, R, E>(work: &mut Pin<Box<W>>) -> CallResult<R, E>
where
    W: Future<Output = CallResult<R, E>>,
{
    poll_fn(|context| poll_caught(work, context)).await
}

/// Polls `work`, and catches its panics.
pub(super) fn poll_caught<W, R, E>(
    work: &mut Pin<Box<W>>,
    context: &mut Context<'_>,
) -> Poll<CallResult<R, E>>
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
            tracing::warn!(operation = %operation.name, "invalid Refrain-Outcome header ignored; send keep or release");
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
