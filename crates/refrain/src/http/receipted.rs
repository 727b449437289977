//! Exactly-once: what becomes of a run whose receipt tells more than its answer.
//!
//! A success is believed, and its receipt looked for behind the reply. Anything else may stand beside a receipt,
//! of this attempt or of one before it whose answer was lost, so the receipt is read before the answer counts.

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

/// Tells the operation what to write into its receipt.
pub(super) fn tell(headers: &mut HeaderMap, running: &Running) {
    let told = [
        (REFRAIN_RECORD, running.id().to_string()),
        (REFRAIN_FENCE, running.fence().to_string()),
    ];
    for (name, text) in told {
        // Digits and dots are always a value.
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
        // No byte of it was written, and there was nobody before it.
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

    /// It committed, whatever became of the answer: the receipt is the outcome, and the reply.
    pub(super) async fn found<R, E>(self, running: Running, outcome: Outcome) -> Ran<R, E> {
        let outcome = outcome.sealed(running.id());
        let answer = reply::answer(&outcome, self.is_to_head);
        let fresh = Ran::Answered(Box::new(answer));
        match self.keep(running, outcome).await {
            Ok(()) => ran_as(Decision::FreshKept, fresh),
            Err(instead) => instead,
        }
    }

    /// The outcome of an attempt that did not answer in time, if it has committed all the same.
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

    /// It has not committed, or not yet. What its answer says about it holds only where no attempt before it may still commit:
    /// of several, a receipt alone is final.
    async fn not_found<R: Carried, E>(self, running: Running, called: Called<R, E>) -> Ran<R, E> {
        let is_alone = running.grant().attempt == 1;
        let is_receipted = running.guarantee() == Guarantee::ExactlyOnce;
        match called {
            // In force is at-most-once: its table counts.
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

    /// Passes the answer on and leaves the doubt: the next retry looks again, and runs.
    async fn doubtful<R: Carried, E>(
        self,
        mut running: Running,
        response: Box<Response<Body<R>>>,
    ) -> Ran<R, E> {
        run::doubt(&mut running, Reason::Failed).await;
        ran_as(Decision::OutcomeUnknown, Ran::Answered(response))
    }

    /// Nothing can commit as long as the old receipt is there: this attempt has not.
    async fn stale<R: Carried, E>(self, running: Running, called: Called<R, E>) -> Ran<R, E> {
        let called = match called {
            Called::Response(_, response) => Called::Response(Ending::Release, response),
            other => other,
        };
        self.settle_as_told(running, called).await
    }

    /// Nothing is decided while the receipts cannot be read.
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

/// Whether the operation says that it did what it was asked.
pub(super) fn is_success(status: StatusCode) -> bool {
    status.as_u16() < 400
}

fn told(running: &Running, error: &Error) {
    tracing::error!(record = %running.id(), %error, "the receipts could not be read");
}
