//! `Running`: settles the record of an attempt, by its receipt or by its response.
//!
//! Under exactly-once the receipt says more than the response. A success is believed, and its receipt is checked after the
//! reply. After any other end there may be a receipt, of this attempt or of an earlier one whose response was lost, so the
//! receipt is read before the response counts.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::{
    Decision, Failure, REFRAIN_FENCE,
    body::{Body, Carried, add_record},
    capture,
    layer::LayerState,
    problem::{Code, Problem, unknown},
    reply,
};
use crate::{
    Error, ErrorKind, Guarantee, Intent, Outcome, RecordId, Verdict,
    engine::Running,
    policy::{Ending, Operation},
    receipts::{Sighting, Witness},
    record::{Reason, Settled},
};

/// One granted attempt of an operation, with everything that is needed to settle it.
pub(super) struct Execution {
    pub(super) shared: Arc<LayerState>,
    pub(super) operation: Arc<Operation>,
    pub(super) intent: Box<Intent>,
    pub(super) record: RecordId,
    /// Whether the request is `HEAD`, whose response has a `content-length` without a body.
    pub(super) is_to_head: bool,
}

/// A response, boxed because it is passed from future to future.
pub(super) type BoxedResponse<R> = Box<Response<Body<R>>>;

/// The reply to the caller: a response, or the service's own error.
pub(super) type ReplyResult<R, E> = Result<BoxedResponse<R>, E>;

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

// Rare branches are boxed: a future is as large as its largest branch, and is moved as a whole.
impl Execution {
    /// Settles by the response, according to the policy's table of statuses.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn stores its arguments twice"
    )]
    pub(super) fn settle_by_status<R: Carried, E>(
        self,
        mut running: Running,
        called: CallResult<R, E>,
    ) -> impl Future<Output = ReplyResult<R, E>> {
        async move {
            let (ending, mut response) = match called {
                Ok(called) => (called.ending, called.response),
                Err(CallError::Service(error)) => {
                    Box::pin(doubt(&mut running, Reason::Failed)).await;
                    return Err(error);
                }
                Err(CallError::Failure(failure)) => {
                    return Ok(Box::pin(self.settle_failure(running, failure)).await);
                }
            };
            if ending == Ending::Release {
                let shown = capture::answer(&response, self.is_to_head);
                mark(&mut response, self.record, Decision::FreshReleased);
                return Ok(Box::pin(self.release(running, shown, response)).await);
            }
            let outcome = self.outcome(&response, running.id());
            // The reply is built from the stored bytes.
            if outcome.is_body_kept() {
                response.body_mut().refill(outcome.body());
            }
            mark(&mut response, self.record, Decision::FreshKept);
            let kept = self.keep(running, outcome).await;
            Ok(kept.err().unwrap_or(response))
        }
    }

    /// Settles an attempt without a response.
    async fn settle_failure<R>(&self, mut running: Running, failure: Failure) -> BoxedResponse<R> {
        match failure {
            Failure::NotSent => {
                let detail = "Nothing was sent. Send the same request with the same key again.";
                let problem =
                    Problem::new(Code::UpstreamUnreachable, detail).with_record(self.record);
                let shown = problem.outcome(&self.shared.problems);
                let response = self.refused(problem);
                self.release(running, shown, response).await
            }
            Failure::Lost(reason) => {
                doubt(&mut running, reason).await;
                self.lost(&running, reason)
            }
        }
    }

    /// The outcome of a response whose body was read, sealed for its record.
    pub(super) fn outcome<R>(&self, response: &Response<Body<R>>, record: RecordId) -> Outcome {
        capture::sealed(&self.operation, response, record, self.is_to_head)
    }

    /// Stores the outcome; if that fails, returns the response to send instead.
    pub(super) fn keep<R>(
        &self,
        running: Running,
        outcome: Outcome,
    ) -> impl Future<Output = Result<(), BoxedResponse<R>>> {
        let outcome = outcome.sealed(running.id());
        async move {
            match running.complete_sealed(outcome.clone()).await {
                Ok(Settled::Applied) => Ok(()),
                settled => Box::pin(self.keep_again(settled, outcome)).await,
            }
        }
    }

    /// Continues after a first settlement that was not applied, until an outcome is stored.
    async fn keep_again<R>(
        &self,
        mut settled: crate::Result<Settled>,
        outcome: Outcome,
    ) -> Result<(), BoxedResponse<R>> {
        loop {
            match settled {
                Ok(Settled::Applied) => return Ok(()),
                Ok(Settled::Fenced | Settled::TooEarly { .. }) => {}
                Err(error) => return Err(self.not_stored(&error)),
            }
            // Overtaken: the outcome of the other attempt counts.
            let is_failure = outcome.status() >= 400 && self.intent.receipts.is_some();
            let running = match Box::pin(self.shared.engine.claim(&self.intent)).await {
                // The other attempt may still commit, although this one failed. Dropping the guard restores the doubt.
                Ok(Verdict::Granted(_)) if is_failure => {
                    return Err(self.refused(unknown(Reason::Failed)));
                }
                // The other attempt has no outcome, so this one is stored. The operation is not executed again.
                Ok(Verdict::Granted(guard)) => guard.start(),
                Ok(other) => {
                    return Err(Box::new(reply::to_verdict(
                        &self.shared,
                        self.record,
                        &other,
                    )));
                }
                Err(error) => return Err(self.not_stored(&error)),
            };
            settled = running.complete(outcome.clone()).await;
        }
    }

    /// Releases the key, then returns `response`; `shown` is the response for duplicates that wait.
    async fn release<R>(
        &self,
        running: Running,
        shown: Option<Outcome>,
        response: BoxedResponse<R>,
    ) -> BoxedResponse<R> {
        match running.release(shown).await {
            Ok(Settled::Applied) => response,
            Ok(Settled::Fenced | Settled::TooEarly { .. }) => {
                match Box::pin(self.shared.engine.claim(&self.intent)).await {
                    // The other attempt has no outcome either; dropping the guard releases the key.
                    Ok(Verdict::Granted(_)) => response,
                    Ok(other) => Box::new(reply::to_verdict(&self.shared, self.record, &other)),
                    Err(error) => self.not_stored(&error),
                }
            }
            Err(error) => self.not_stored(&error),
        }
    }

    /// The `outcome-unknown` problem for the caller of an attempt whose outcome is unknown.
    pub(super) fn lost<R>(&self, running: &Running, reason: Reason) -> BoxedResponse<R> {
        let problem = unknown(reason);
        self.refused(match running.guarantee() {
            // A retry executes again, or finds the outcome.
            Guarantee::ExactlyOnce | Guarantee::AtLeastOnce => problem.with_advice("wait"),
            Guarantee::AtMostOnce => problem,
        })
    }

    fn not_stored<R>(&self, error: &Error) -> BoxedResponse<R> {
        let (record, operation) = (self.record, &self.operation.name);
        tracing::error!(%record, operation, %error, "cannot store an outcome");
        let detail = match error.kind() {
            ErrorKind::Unaudited => {
                "The operation has ended. Its outcome is not returned before it is in the audit log."
            }
            _ => "The operation has ended. Its outcome could not be stored yet.",
        };
        let problem = Problem::new(Code::OutcomeUnknown, detail);
        self.refused(problem.with_status(StatusCode::SERVICE_UNAVAILABLE))
    }

    fn refused<R>(&self, problem: Problem) -> BoxedResponse<R> {
        Box::new(self.shared.refuse(&problem.with_record(self.record)))
    }
}

impl Execution {
    /// Settles an attempt of an operation that writes receipts.
    pub(super) async fn settle_by_receipt<R: Carried, E>(
        self,
        witness: Arc<Witness>,
        running: Running,
        called: CallResult<R, E>,
    ) -> ReplyResult<R, E> {
        let is_first = running.grant().attempt == 1;
        if let Ok(OperationResponse {
            ending, response, ..
        }) = &called
            && is_success(response.status())
        {
            let is_kept = *ending == Ending::Keep;
            let (engine, id) = (self.shared.engine.clone(), running.id());
            let reply = self.settle_by_status(running, called).await;
            let is_stored = |it: &BoxedResponse<R>| it.body().decision == Some(Decision::FreshKept);
            if is_kept && reply.as_ref().is_ok_and(is_stored) {
                engine.check_receipt(&witness, id);
            }
            return reply;
        }
        // No byte of the request was written, and there was no earlier attempt.
        if is_first && matches!(called, Err(CallError::Failure(Failure::NotSent))) {
            return self.settle_by_status(running, called).await;
        }
        let first = is_first.then(|| running.fence());
        let looked = self.shared.engine.receipt_of(&witness, running.id(), first);
        match looked.await {
            Ok(Sighting::Found(outcome)) => Ok(self.settle_found(running, outcome).await),
            Ok(Sighting::Absent) => self.settle_absent(running, called).await,
            // A stale receipt blocks every commit, so this attempt has not committed.
            Ok(Sighting::Stale) => {
                let released = called.map(|it| OperationResponse {
                    ending: Ending::Release,
                    ..it
                });
                self.settle_by_status(running, released).await
            }
            Err(error) => self.settle_unread(running, called, &error).await,
        }
    }

    /// Settles an attempt that committed, with any response: the receipt is the outcome, and the reply.
    pub(super) async fn settle_found<R>(
        self,
        running: Running,
        outcome: Outcome,
    ) -> BoxedResponse<R> {
        let outcome = outcome.sealed(running.id());
        let mut response = Box::new(reply::answer(&outcome, self.is_to_head));
        mark(&mut response, self.record, Decision::FreshKept);
        let kept = self.keep(running, outcome).await;
        kept.err().unwrap_or(response)
    }

    /// The outcome of an attempt that timed out, if it has committed nevertheless.
    pub(super) async fn found_late(&self, running: &Running) -> Option<Outcome> {
        let witness = self.intent.receipts.as_ref()?;
        let first = (running.grant().attempt == 1).then(|| running.fence());
        let looked = self.shared.engine.receipt_of(witness, running.id(), first);
        match looked.await {
            Ok(Sighting::Found(outcome)) => Some(outcome),
            Ok(_) => None,
            Err(error) => {
                log_unread(running, &error);
                None
            }
        }
    }

    /// Settles an attempt that has not committed, or not yet. Its response counts only if no earlier attempt may still commit:
    /// after several attempts only a receipt is final.
    async fn settle_absent<R: Carried, E>(
        self,
        mut running: Running,
        called: CallResult<R, E>,
    ) -> ReplyResult<R, E> {
        let is_alone = running.grant().attempt == 1;
        let is_receipted = running.guarantee() == Guarantee::ExactlyOnce;
        match called {
            Ok(mut it) if is_receipted && it.is_open(is_alone) => {
                // The next retry looks for the receipt again, and executes.
                doubt(&mut running, Reason::Failed).await;
                mark(&mut it.response, self.record, Decision::OutcomeUnknown);
                Ok(it.response)
            }
            // `Ending::Doubt` is stored as an outcome here: at-most-once is in force, so its table of statuses applies.
            called => self.settle_by_status(running, called).await,
        }
    }

    /// Leaves the record indeterminate, because the receipts cannot be read.
    async fn settle_unread<R, E>(
        self,
        mut running: Running,
        called: CallResult<R, E>,
        error: &Error,
    ) -> ReplyResult<R, E> {
        log_unread(&running, error);
        let reason = match &called {
            Err(CallError::Failure(Failure::Lost(reason))) => *reason,
            _ => Reason::Failed,
        };
        doubt(&mut running, reason).await;
        match called {
            Err(CallError::Service(error)) => Err(error),
            Err(CallError::Failure(Failure::Lost(reason))) => Ok(self.lost(&running, reason)),
            _ => {
                let detail = "The operation has ended. Its receipt cannot be read now, so it is not known whether it took effect. Send the same request with the same key again.";
                let problem = Problem::new(Code::OutcomeUnknown, detail).with_advice("wait");
                Ok(self.refused(problem.with_status(StatusCode::SERVICE_UNAVAILABLE)))
            }
        }
    }
}

impl<R> OperationResponse<R> {
    /// Whether another attempt has to decide about an exactly-once operation without a receipt.
    fn is_open(&self, is_alone: bool) -> bool {
        match self.ending {
            Ending::Doubt => true,
            Ending::Keep => !is_alone,
            Ending::Release => false,
        }
    }
}

/// Adds the headers with record and fence, which the operation writes into its receipt.
pub(super) fn add_receipt_headers(headers: &mut HeaderMap, running: &Running) {
    add_record(headers, running.id());
    // Digits and dots are always a valid header value.
    if let Ok(fence) = HeaderValue::try_from(running.fence().to_string()) {
        headers.insert(REFRAIN_FENCE, fence);
    }
}

/// Marks the outcome of an attempt as unknown.
pub(super) async fn doubt(running: &mut Running, reason: Reason) {
    if let Err(error) = running.doubt(reason).await {
        tracing::error!(record = %running.id(), %error, "cannot store an unknown outcome; the lease lapses instead");
    }
}

/// Whether the status reports success.
pub(super) fn is_success(status: StatusCode) -> bool {
    status.as_u16() < 400
}

fn mark<R>(response: &mut Response<Body<R>>, record: RecordId, decision: Decision) {
    add_record(response.headers_mut(), record);
    response.body_mut().decision = Some(decision);
}

fn log_unread(running: &Running, error: &Error) {
    crate::log_rarely!(error, record = %running.id(), %error, "cannot read receipts");
}
