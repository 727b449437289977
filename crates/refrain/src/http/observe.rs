//! `mode = "observe"`: counts what would have happened, and changes nothing.
//!
//! The request and the answer pass through as they come; claiming and noting happen beside, so that
//! neither a slow store nor a failing one is felt.
//! An operation that does not read its request's body to the end is not counted.

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
    layer::Shared,
    run,
    service::{Answer, Carried, Guarded, Guarding, intent, verified},
    watch::Watch,
};
use crate::{
    Error, Intent, Outcome, Scope, Verdict,
    engine::Turn,
    policy::{Ending, Match},
};

/// How many are observed at once. What comes on top is not counted.
const OBSERVED_MAX: usize = 1_024;

impl<S> Guarding<S> {
    pub(super) async fn observe<B, R>(mut self, head: Parts, body: B) -> Answer<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let operation = self.found.operation.clone();
        let head_key = extract::head_key(&operation.key, operation.syntax, &head.headers);
        let place = match head_key {
            Ok(HeadKey::Found(_) | HeadKey::NeedsBody) => Place::take(&self.shared.observed),
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

/// What is seen of one observed request.
struct Sight {
    shared: Arc<Shared>,
    found: Match,
    head: Parts,
    _place: Place,
}

impl Sight {
    async fn observe(self, whole: oneshot::Receiver<Bytes>, end: oneshot::Receiver<Noted>) {
        let Ok(body) = whole.await else { return };
        let Ok(Some(intent)) = self.intent(&body) else {
            return;
        };
        drop(body);
        let turn = self.shared.engine.attend(&intent).await;
        let Ok(Turn::Verdict(Verdict::Granted(guard))) = turn else {
            return;
        };
        let running = guard.start();
        // Dropped where there was no answer, which leaves doubt.
        let Ok((ending, status)) = end.await else {
            return;
        };
        let settled = match ending {
            Ending::Keep => running.complete(Outcome::new(status, "")).await,
            Ending::Release => running.release(None).await,
            // Dropped, which leaves doubt.
            Ending::Doubt => return,
        };
        if let Err(error) = settled {
            let operation = &self.found.operation.name;
            tracing::warn!(%operation, %error, "an observed operation could not be noted");
        }
    }

    /// Records of an observed operation are kept apart: they have no bodies, and must not answer anybody later.
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

/// The scope of what is observed, apart from that of what is guarded.
pub(super) fn scope(scope: Scope) -> Scope {
    scope.with("mode", "observe")
}

/// One of the places for what is observed at once.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let place = Self(taken.clone());
        (before < OBSERVED_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
