//! `Observing`: with `mode = "observe"`, counts the decisions that guarding would make, and changes nothing.
//!
//! Request and response pass through untouched; claim and settlement happen in a background task, so a slow or failing
//! store delays no request.
//! A request whose body the operation does not read to the end is not counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{Response, request::Parts};
use tokio::sync::oneshot;

use super::{
    Decision,
    body::{Body, BodyCopy, Carried, Share, marked},
    extract::{self, HeadKey},
    layer::LayerState,
    run,
};
use crate::{
    Intent, Operation, Outcome, Result, Scope, Verdict,
    engine::ClaimReply,
    policy::{Ending, Match},
};

/// Maximum number of requests observed at once. Requests beyond it are not counted.
const OBSERVED_MAX: usize = 1_024;

/// Starts to observe a request. Returns its body to pass on; without an observation if the request has no key,
/// or too many are observed.
pub(super) fn observe<B: Carried>(
    shared: &Arc<LayerState>,
    found: &Match,
    head: &Parts,
    body: B,
) -> (Body<B>, Option<Observation>) {
    let operation = &found.operation;
    let slot = match extract::head_key(&operation.key, operation.syntax, &head.headers) {
        Ok(HeadKey::Found(_) | HeadKey::NeedsBody) => ObservedSlot::take(&shared.observed),
        Ok(HeadKey::Absent) | Err(_) => None,
    };
    let Some(slot) = slot else {
        return (Body::through(body), None);
    };
    let share = Share::refusable(&shared.budget);
    let (mut copy, whole) = BodyCopy::new(operation.request_bytes_max, share);
    if body.is_end_stream() {
        copy.push(None);
    }
    let (ended, end) = oneshot::channel();
    let request = ObservedRequest {
        shared: shared.clone(),
        found: found.clone(),
        head: head.clone(),
        _slot: slot,
    };
    tokio::spawn(request.settle(whole, end));
    let observation = Observation {
        operation: operation.clone(),
        ended,
    };
    (Body::copied(body, copy), Some(observation))
}

/// How an observed operation ended, and with which status.
type ObservedEnd = (Ending, u16);

/// The observation of an operation that runs. If it is dropped before the end, the record becomes indeterminate.
pub(super) struct Observation {
    operation: Arc<Operation>,
    ended: oneshot::Sender<ObservedEnd>,
}

impl Observation {
    /// Notes how the operation ended, and passes its response on.
    pub(super) fn end<R>(self, response: Response<R>) -> Response<Body<R>> {
        let (mut head, body) = response.into_parts();
        let ending = run::ending(&self.operation, head.status, &mut head.headers);
        let _ = self.ended.send((ending, head.status.as_u16()));
        let response = Response::from_parts(head, Body::through(body));
        marked(Decision::Observed, response)
    }
}

/// One observed request, claimed and settled in the background.
struct ObservedRequest {
    shared: Arc<LayerState>,
    found: Match,
    head: Parts,
    _slot: ObservedSlot,
}

impl ObservedRequest {
    async fn settle(self, whole: oneshot::Receiver<Bytes>, end: oneshot::Receiver<ObservedEnd>) {
        let Ok(body) = whole.await else { return };
        let Ok(Some(intent)) = self.intent(&body) else {
            return;
        };
        drop(body);
        let reply = self.shared.engine.attend(&intent).await;
        let Ok(ClaimReply::Verdict(Verdict::Granted(guard))) = reply else {
            return;
        };
        let running = guard.start();
        // No response: dropping `running` leaves the record indeterminate.
        let Ok((ending, status)) = end.await else {
            return;
        };
        let settled = match ending {
            Ending::Keep => running.complete(Outcome::new(status, "")).await,
            Ending::Release => running.release(None).await,
            // Dropping `running` leaves the record indeterminate.
            Ending::Doubt => return,
        };
        if let Err(error) = settled {
            let operation = &self.found.operation.name;
            tracing::warn!(%operation, %error, "cannot store the end of an observed operation");
        }
    }

    /// The intent of the request, in a scope of its own: observed records have no bodies, and must never be replayed.
    fn intent(&self, body: &Bytes) -> Result<Option<Intent>> {
        let Self {
            shared,
            found,
            head,
            ..
        } = self;
        let operation = &found.operation;
        if extract::verify(shared, operation, &head.headers, body).is_err() {
            return Ok(None);
        }
        let content = extract::content(head, body);
        let uri = shared.uri(head);
        let key = extract::find_key(&operation.key, operation.syntax, head, &uri, &content)?;
        let Some(key) = key else { return Ok(None) };
        let mut intent = extract::intent(shared, found, key, head, body)?;
        intent.scope = scope(intent.scope);
        Ok(Some(intent))
    }
}

/// The scope of observed requests, separate from that of guarded ones.
pub(super) fn scope(scope: Scope) -> Scope {
    scope.with("mode", "observe")
}

/// A slot among the requests observed at once, released on drop.
struct ObservedSlot(Arc<AtomicUsize>);

impl ObservedSlot {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let slot = Self(taken.clone());
        (before < OBSERVED_MAX).then_some(slot)
    }
}

impl Drop for ObservedSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
