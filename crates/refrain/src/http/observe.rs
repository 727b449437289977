//! `mode = "observe"`: counts the decisions that guarding would make, and changes nothing.
//!
//! Request and response pass through untouched; claim and settlement happen in a background task, so a slow or failing
//! store delays no request.
//! A request whose body the operation does not read to the end is not counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use tokio::sync::oneshot;

use super::{
    Decision, ResponseFuture,
    body::Body,
    budget::Share,
    extract::{self, HeadKey},
    layer::LayerState,
    run,
    service::{Carried, Guarded, Guarding, ServiceResult, intent, verified},
    watch::Watch,
};
use crate::{
    Error, Intent, Outcome, Scope, Verdict,
    engine::ClaimReply,
    policy::{Ending, Match},
};

/// Maximum number of requests observed at once. Requests beyond it are not counted.
const OBSERVED_MAX: usize = 1_024;

impl<S> Guarding<S> {
    pub(super) async fn observe<B, R>(mut self, head: Parts, body: B) -> ServiceResult<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let operation = self.found.operation.clone();
        let head_key = extract::head_key(&operation.key, operation.syntax, &head.headers);
        let place = match head_key {
            Ok(HeadKey::Found(_) | HeadKey::NeedsBody) => ObservedSlot::take(&self.shared.observed),
            Ok(HeadKey::Absent) | Err(_) => None,
        };
        let Some(place) = place else {
            let body = Body::through(body);
            return ResponseFuture::from(self.pass(head, body, Decision::Observed)).await;
        };
        let (ended, end) = oneshot::channel();
        let (mut watch, whole) = Watch::new(
            operation.request_bytes_max,
            Share::refusable(&self.shared.budget),
        );
        if body.is_end_stream() {
            watch.see(None);
        }
        let sight = Sight {
            shared: self.shared.clone(),
            found: self.found.clone(),
            head: head.clone(),
            _place: place,
        };
        tokio::spawn(sight.observe(whole, end));
        let request = Request::from_parts(head, Body::watched(body, watch));
        let response = self.inner.call(request).await?;
        let (mut head, body) = response.into_parts();
        let ending = run::ending(&operation, head.status, &mut head.headers);
        let _ = ended.send((ending, head.status.as_u16()));
        Ok(Response::from_parts(head, Body::through(body)))
    }
}

/// How an observed operation ended, and with which status.
type Noted = (Ending, u16);

/// One observed request, processed in the background.
struct Sight {
    shared: Arc<LayerState>,
    found: Match,
    head: Parts,
    _place: ObservedSlot,
}

impl Sight {
    async fn observe(self, whole: oneshot::Receiver<Bytes>, end: oneshot::Receiver<Noted>) {
        let Ok(body) = whole.await else { return };
        let Ok(Some(intent)) = self.intent(&body) else {
            return;
        };
        drop(body);
        let turn = self.shared.engine.attend(&intent).await;
        let Ok(ClaimReply::Verdict(Verdict::Granted(guard))) = turn else {
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
            tracing::warn!(%operation, %error, "an observed operation could not be noted");
        }
    }

    /// The intent of the request, in a scope of its own: observed records have no bodies, and must never be replayed.
    fn intent(&self, body: &Bytes) -> Result<Option<Intent>, Error> {
        let operation = &self.found.operation;
        if verified(&self.shared, operation, &self.head.headers, body).is_err() {
            return Ok(None);
        }
        let content = extract::content(&self.head, body);
        let (head, uri) = (&self.head, self.shared.uri(&self.head));
        let key = extract::find_key(&operation.key, operation.syntax, head, &uri, &content)?;
        let Some(key) = key else { return Ok(None) };
        let mut intent = intent(&self.shared, &self.found, key, &self.head, body)?;
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
        let place = Self(taken.clone());
        (before < OBSERVED_MAX).then_some(place)
    }
}

impl Drop for ObservedSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
