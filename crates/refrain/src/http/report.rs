//! At the end of all states: reports a request and its decision to the observer.

use std::sync::Arc;

use http::{HeaderValue, Method, Response, Uri, request::Parts};
use tokio::time::Instant;

use super::{
    DecidedRequest, Decision, Observer, TraceContext, body::Body, extract, layer::LayerState,
};
use crate::Operation;

/// Reports a request to the observer: when its response is ready, or when this is dropped because the client disconnected.
pub(super) struct DecisionReport(Option<Box<ReportedRequest>>);

struct ReportedRequest {
    observer: Arc<dyn Observer>,
    operation: Option<Arc<Operation>>,
    since: Instant,
    method: Method,
    target: Uri,
    traceparent: Option<HeaderValue>,
    trace: Option<TraceContext>,
    /// Whether it waited for another request.
    waited: bool,
}

impl DecisionReport {
    /// The report of a request with this head, if there is an observer.
    pub(super) fn new(
        shared: &LayerState,
        operation: Option<&Arc<Operation>>,
        head: &Parts,
        since: Instant,
    ) -> Option<Self> {
        let observer = shared.observer.as_ref()?.clone();
        Some(Self(Some(Box::new(ReportedRequest {
            observer,
            operation: operation.cloned(),
            since,
            method: head.method.clone(),
            target: shared.uri(head).into_owned(),
            traceparent: extract::traceparent(&head.headers).cloned(),
            trace: head.extensions.get().copied(),
            waited: false,
        }))))
    }

    /// Notes that the request waited for another one.
    pub(super) fn note_waited(&mut self) {
        if let Some(request) = &mut self.0 {
            request.waited = true;
        }
    }

    /// Reports the response; `None` if the service failed.
    pub(super) fn send<R>(mut self, response: Option<&Response<Body<R>>>) {
        let Some(request) = self.0.take() else {
            return;
        };
        let Some(response) = response else {
            request.observer.decided(&request.decided(Decision::Failed));
            return;
        };
        let body = response.body();
        let reported = DecidedRequest {
            response: Some((response.status(), response.headers())),
            served: body.served,
            ..request.decided(body.decision.unwrap_or(Decision::Passed))
        };
        request.observer.decided(&reported);
    }
}

impl ReportedRequest {
    fn decided(&self, decision: Decision) -> DecidedRequest<'_> {
        DecidedRequest {
            operation: self.operation.as_deref(),
            decision,
            method: &self.method,
            target: &self.target,
            response: None,
            traceparent: self.traceparent.as_ref(),
            trace: self.trace,
            since: self.since,
            took: self.since.elapsed(),
            served: None,
            waited: self.waited,
        }
    }
}

impl Drop for DecisionReport {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.observer.decided(&request.decided(Decision::HungUp));
        }
    }
}
