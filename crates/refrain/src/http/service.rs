//! Before all states: matches each request with its operation, and starts it on its path.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header, request::Parts};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Code, RefrainLayer,
    body::{Body, Carried, Guarded},
    decision::DecisionReport,
    layer::LayerState,
    problem::Problem,
    request::{MatchedRequest, RequestState, ResponseFuture},
};
use crate::policy::Match;

/// A service whose operations are guarded. Made by [`RefrainLayer`].
#[derive(Debug, Clone)]
pub struct RefrainService<S> {
    inner: S,
    shared: Arc<LayerState>,
}

impl<S> Layer<S> for RefrainLayer {
    type Service = RefrainService<S>;

    fn layer(&self, inner: S) -> RefrainService<S> {
        self.report();
        RefrainService {
            inner,
            shared: self.shared.clone(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for RefrainService<S>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Guarded<B, R>,
    B: Carried,
    R: Carried,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        strip(&mut head.headers);
        if let Some(page) = self.shared.page(&head) {
            return ResponseFuture::new(None, RequestState::replied(page));
        }
        let Some(found) = self.shared.find(&head) else {
            let request = Request::from_parts(head, Body::through(body));
            let future = self.inner.call(request);
            let decision = None;
            return ResponseFuture::new(None, RequestState::Passing { future, decision });
        };
        let since = Instant::now();
        let observer = self.shared.observer.as_ref();
        let report = observer.map(|it| DecisionReport::new(it, &found.operation, since));
        let request = MatchedRequest {
            shared: self.shared.clone(),
            inner: self.take_ready(),
            found,
            head,
            since,
        };
        // Starts at once, without waiting for the first poll.
        ResponseFuture::new(report, request.matched(body))
    }
}

impl<S> RefrainService<S> {
    /// A problem of this kind as a response, with the problem base of this service.
    #[must_use]
    pub fn problem<R>(&self, code: Code, detail: &str) -> Response<Body<R>> {
        self.shared.refuse(&Problem::new(code, detail))
    }

    /// Takes the inner service that was polled ready, which must be the one that is called.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl LayerState {
    fn find(&self, head: &Parts) -> Option<Match> {
        self.policy
            .find(head.method.as_str(), self.uri(head).path())
    }

    /// The documentation page that the `type` of a problem points to, if the request is for one.
    fn page<R>(&self, head: &Parts) -> Option<Response<Body<R>>> {
        if head.method != Method::GET || !self.problems.starts_with('/') {
            return None;
        }
        let uri = self.uri(head);
        let name = uri.path().strip_prefix(self.problems.as_str())?;
        let code = Code::ALL.into_iter().find(|code| code.code() == name)?;
        let mut response = Response::new(Body::full(Bytes::from_static(code.page().as_bytes())));
        let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, markdown);
        Some(response)
    }
}

/// Removes the headers that only Refrain may send to an operation; guarded requests get fresh ones later.
fn strip(headers: &mut HeaderMap) {
    // CGI and WSGI do not distinguish `_` and `-` in a name.
    let is_ours = |name: &HeaderName| {
        let rest = name.as_str().strip_prefix("refrain");
        rest.is_some_and(|rest| rest.starts_with(['-', '_']))
    };
    // Scanning the names is fast, and such headers are rare.
    if headers.keys().any(is_ours) {
        let names: Vec<_> = headers.keys().filter(|it| is_ours(it)).cloned().collect();
        names.iter().for_each(|name| drop(headers.remove(name)));
    }
}
