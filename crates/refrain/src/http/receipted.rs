//! Exactly-once: settles a run by its receipt, which says more than its response.
//!
//! A success is believed, and its receipt is checked after the reply. After any other end there may be a receipt,
//! of this attempt or of an earlier one whose response was lost, so the receipt is read before the response counts.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::{
    Code, Decision, Failure, REFRAIN_FENCE, REFRAIN_RECORD,
    body::Body,
    problem::Problem,
    reply,
    run::{self, Called, Ran, Run, ran_as},
    service::Carried,
};
use crate::{
    Error, Guarantee, Outcome,
    engine::Running,
    policy::Ending,
    receipts::{Sighting, Witness},
    record::Reason,
};

/// Adds the headers with record and fence, which the operation writes into its receipt.
pub(super) fn tell(headers: &mut HeaderMap, running: &Running) {
    let told = [
        (REFRAIN_RECORD, running.id().to_string()),
        (REFRAIN_FENCE, running.fence().to_string()),
    ];
    for (name, text) in told {
        // Digits and dots are always a valid header value.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
}

impl Run {
    /// Settles a run of an operation that writes receipts.
    pub(super) async fn settle_receipted<R: Carried, E>(
        self,
        witness: Arc<Witness>,
        running: Running,
        called: Called<R, E>,
    ) -> Ran<R, E> {
        let is_first = running.grant().attempt == 1;
        if let Called::Response(ending, response) = &called
            && is_success(response.status())
        {
            let is_kept = *ending == Ending::Keep;
            let (engine, id) = (self.shared.engine.clone(), running.id());
            let ran = self.settle_as_told(running, called).await;
            if is_kept && matches!(ran, Ran::Answered(_)) {
                engine.check_receipt(&witness, id);
            }
            return ran;
        }
        // No byte of the request was written, and there was no earlier attempt.
        if is_first && matches!(called, Called::Failure(Failure::NotSent)) {
            return self.settle_as_told(running, called).await;
        }
        let first = is_first.then(|| running.fence());
        let looked = self.shared.engine.receipt_of(&witness, running.id(), first);
        match looked.await {
            Ok(Sighting::Found(outcome)) => self.found(running, outcome).await,
            Ok(Sighting::Absent) => self.not_found(running, called).await,
            Ok(Sighting::Stale) => self.stale(running, called).await,
            Err(error) => self.unread(running, called, &error).await,
        }
    }

    /// Settles an attempt that committed, whatever its response: the receipt is the outcome, and the reply.
    pub(super) async fn found<R, E>(self, running: Running, outcome: Outcome) -> Ran<R, E> {
        let outcome = outcome.sealed(running.id());
        let answer = reply::answer(&outcome, self.is_to_head);
        let fresh = Ran::Answered(Box::new(answer));
        match self.keep(running, outcome).await {
            Ok(()) => ran_as(Decision::FreshKept, fresh),
            Err(instead) => instead,
        }
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
                told(running, &error);
                None
            }
        }
    }

    /// Settles an attempt that has not committed, or not yet. Its response counts only if no earlier attempt may still commit:
    /// after several attempts only a receipt is final.
    async fn not_found<R: Carried, E>(self, running: Running, called: Called<R, E>) -> Ran<R, E> {
        let is_alone = running.grant().attempt == 1;
        let is_receipted = running.guarantee() == Guarantee::ExactlyOnce;
        match called {
            // At-most-once is in force, so its table of statuses applies.
            Called::Response(Ending::Doubt, response) if !is_receipted => {
                let called = Called::Response(Ending::Keep, response);
                self.settle_as_told(running, called).await
            }
            Called::Response(Ending::Doubt, response) => self.doubtful(running, response).await,
            Called::Response(Ending::Keep, response) if is_receipted && !is_alone => {
                self.doubtful(running, response).await
            }
            called => self.settle_as_told(running, called).await,
        }
    }

    /// Returns the response and leaves the record indeterminate: the next retry looks for the receipt again, and runs.
    async fn doubtful<R: Carried, E>(
        self,
        mut running: Running,
        response: Box<Response<Body<R>>>,
    ) -> Ran<R, E> {
        run::doubt(&mut running, Reason::Failed).await;
        ran_as(Decision::OutcomeUnknown, Ran::Answered(response))
    }

    /// Settles an attempt that found a stale receipt: it blocks every commit, so this attempt has not committed.
    async fn stale<R: Carried, E>(self, running: Running, called: Called<R, E>) -> Ran<R, E> {
        let called = match called {
            Called::Response(_, response) => Called::Response(Ending::Release, response),
            other => other,
        };
        self.settle_as_told(running, called).await
    }

    /// Leaves the record indeterminate, because the receipts cannot be read.
    async fn unread<R, E>(
        self,
        mut running: Running,
        called: Called<R, E>,
        error: &Error,
    ) -> Ran<R, E> {
        told(&running, error);
        let reason = match &called {
            Called::Failure(Failure::Lost(reason)) => *reason,
            _ => Reason::Failed,
        };
        run::doubt(&mut running, reason).await;
        match called {
            Called::Error(error) => Ran::Erred(error),
            Called::Failure(Failure::Lost(reason)) => self.lost(&running, reason),
            _ => {
                let detail = "The operation has ended; whether it took effect cannot be looked up now. Send the same request with the same key again.";
                let problem = Problem::new(Code::OutcomeUnknown, detail).with_advice("wait");
                let problem = problem.with_status(StatusCode::SERVICE_UNAVAILABLE);
                Ran::Failed(Box::new(problem))
            }
        }
    }
}

/// Whether the status reports success.
pub(super) fn is_success(status: StatusCode) -> bool {
    status.as_u16() < 400
}

fn told(running: &Running, error: &Error) {
    tracing::error!(record = %running.id(), %error, "the receipts could not be read");
}
