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
    Decision, Observed,
    body::{Body, BodyCopy, Carried, Share, TooLong, marked},
    extract::{self, HeadKey},
    layer::LayerState,
    run,
};
use crate::{
    Intent, Operation, Outcome, Scope, Verdict,
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
        Ok(HeadKey::Found(_) | HeadKey::NeedsBody) => {
            ObservedSlot::take(&shared.observed).ok_or(Observed::Unknown)
        }
        Ok(HeadKey::Absent) => Err(Observed::KeyMissing),
        Err(_) => Err(Observed::KeyInvalid),
    };
    let slot = match slot {
        Ok(slot) => slot,
        Err(result) => {
            report(shared, operation, result);
            return (Body::through(body), None);
        }
    };
    let share = Share::refusable(&shared.budget);
    let (mut copy, whole) = BodyCopy::new(shared.request_bytes_max(operation), share);
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
    async fn settle(
        self,
        whole: oneshot::Receiver<Result<Bytes, TooLong>>,
        end: oneshot::Receiver<ObservedEnd>,
    ) {
        let report = |result| report(&self.shared, &self.found.operation, result);
        let body = match whole.await {
            Ok(Ok(body)) => body,
            Ok(Err(TooLong)) => return report(Observed::WouldRefuse),
            Err(_) => return report(Observed::Unknown),
        };
        let intent = match self.intent(&body).await {
            Ok(Some(intent)) => intent,
            Ok(None) => return report(Observed::KeyMissing),
            Err(result) => return report(result),
        };
        drop(body);
        let guard = match self.shared.engine.attend(&intent).await {
            Ok(ClaimReply::Verdict(Verdict::Granted(guard))) => guard,
            Ok(reply) => return report(observed_as(&reply)),
            Err(_) => return report(Observed::Unknown),
        };
        report(Observed::WouldExecute);
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
            crate::log_rarely!(warn, by = operation, %operation, %error, "cannot store the end of an observed operation");
        }
    }

    /// The intent of the request, in a scope of its own: observed records have no bodies, and must never be replayed.
    async fn intent(&self, body: &Bytes) -> Result<Option<Intent>, Observed> {
        let Self {
            shared,
            found,
            head,
            ..
        } = self;
        let operation = &found.operation;
        if extract::verify(shared, operation, &head.headers, body).is_err() {
            return Err(Observed::WouldRefuse);
        }
        let content = extract::content(head, body);
        let uri = shared.uri(head);
        let invalid = |_| Observed::KeyInvalid;
        let key = extract::find_key(&operation.key, operation.syntax, head, &uri, &content);
        let Some(key) = key.map_err(invalid)? else {
            return Ok(None);
        };
        let claims = match shared.needs_token(operation) {
            true => {
                let verified = shared.verified_claims(operation, &head.headers).await;
                Some(verified.map_err(|_| Observed::WouldRefuse)?)
            }
            false => None,
        };
        let mut intent =
            extract::intent(shared, found, key, head, claims.as_ref(), body).map_err(invalid)?;
        intent.scope = scope(intent.scope);
        Ok(Some(intent))
    }
}

fn report(shared: &LayerState, operation: &Operation, result: Observed) {
    if let Some(observer) = &shared.observer {
        observer.observed(operation, result);
    }
}

/// What the client would have got instead of an execution.
fn observed_as(reply: &ClaimReply) -> Observed {
    match reply {
        ClaimReply::Verdict(Verdict::Replay(_)) | ClaimReply::Refused(_) | ClaimReply::Live(_) => {
            Observed::WouldReplay
        }
        ClaimReply::Verdict(_) => Observed::WouldRefuse,
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
