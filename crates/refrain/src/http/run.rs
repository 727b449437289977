//! `Running`: executes the operation under its timeout, and has its record settled.
//!
//! A disconnecting client does not cancel it. A response that arrives after the timeout, when the caller has already got
//! `outcome-unknown`, still settles the record.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll},
};

use http::{HeaderValue, Request};
use tokio::{runtime::Handle, time::timeout_at};

use super::{
    Failure, REFRAIN_ATTEMPT,
    body::{Body, Carried, Guarded},
    budget::Share,
    call::{CallError, CallResult, OperationResponse, call, caught, poll_caught},
    settle::{Execution, ReplyResult, add_receipt_headers, doubt, is_success},
};
use crate::{
    Guarantee,
    engine::{Count, Guard, Running},
    policy::Ending,
    record::{Reason, Settled},
};

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
        if !self.shared.forwards {
            request.extensions_mut().insert(grant.fence);
            request.extensions_mut().insert(running.id());
        }
        if self.operation.terms.guarantee == Guarantee::ExactlyOnce {
            add_receipt_headers(request.headers_mut(), running);
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
            // An operation that is ready at the first poll needs no timer.
            let polled = poll_fn(|context| Poll::Ready(poll_caught(&mut work, context))).await;
            let called = match polled {
                Poll::Ready(called) => called,
                Poll::Pending => {
                    let timeout = tokio::time::Instant::now() + self.operation.terms.timeout;
                    let patience = running.deadline().min(timeout);
                    match timeout_at(patience, caught(&mut work)).await {
                        Ok(called) => called,
                        Err(_) => return Box::pin(self.time_out(work, running)).await,
                    }
                }
            };
            drop(work);
            let called = match called {
                // Such an operation has no receipts: the policy rejects streamed responses under exactly-once.
                Ok(OperationResponse {
                    response,
                    unread: Some(body),
                    ..
                }) => return Ok(self.stream(running, *response, *body)),
                called => called,
            };
            match self.intent.receipts.clone() {
                None => self.settle_by_status(running, called).await,
                Some(witness) => Box::pin(self.settle_by_receipt(witness, running, called)).await,
            }
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
