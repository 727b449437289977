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
    Code, Decision, RefrainLayer,
    body::{Body, Carried, Guarded},
    decision::DecisionReport,
    layer::LayerState,
    problem::Problem,
    reply::Replay,
    request::{MatchedRequest, ReadyService, RequestState, ResponseFuture, take_head},
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
        self.begin(&mut head, body)
    }
}

/// Result of [`RefrainService::replay_or_call`], for a server that writes replays to the connection itself.
#[derive(Debug)]
pub enum Answering<F, R: Send + 'static, E: Send + 'static> {
    /// A stored outcome that was available at once, and the head of the request, for reuse.
    Replay(Replay, Box<Parts>),
    /// The future that [`call`](Service::call) returns.
    Future(ResponseFuture<F, R, E>),
}

impl<S> RefrainService<S> {
    /// A problem of this kind as a response, with the problem base of this service.
    #[must_use]
    pub fn problem<R>(&self, code: Code, detail: &str) -> Response<Body<R>> {
        self.shared.refuse(&Problem::new(code, detail))
    }

    /// As [`call`](Service::call), but returns a stored outcome directly if it is available at once:
    /// building a response and taking it apart again costs more than the lookup.
    pub fn replay_or_call<B, R>(
        &mut self,
        mut head: Box<Parts>,
        body: B,
    ) -> Answering<S::Future, R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let future = self.begin(&mut head, body);
        match future.state {
            RequestState::Replaying {
                replay: Some(replay),
            } if replay.is_plain() => Answering::Replay(replay, head),
            _ => Answering::Future(future),
        }
    }

    /// Advances the request as far as possible without waiting.
    #[inline]
    fn begin<B, R>(&mut self, head: &mut Parts, body: B) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        strip(&mut head.headers);
        if let Some(page) = self.shared.page(head) {
            return ResponseFuture::new(None, RequestState::replied(page));
        }
        let Some(mut found) = self.shared.find(head) else {
            let request = Request::from_parts(take_head(head), Body::through(body));
            let future = self.inner.call(request);
            let decision = None;
            return ResponseFuture::new(None, RequestState::Passing { future, decision });
        };
        let since = Instant::now();
        let request = MatchedRequest {
            shared: &self.shared,
            inner: ReadyService::Lent(&mut self.inner),
            found: &mut found,
            head,
            since,
        };
        let state = request.matched(body);
        let report = self.shared.report(&found, &state, since);
        ResponseFuture::new(report, state)
    }
}

impl LayerState {
    fn find(&self, head: &Parts) -> Option<Match> {
        self.policy
            .find(head.method.as_str(), self.uri(head).path())
    }

    /// Reports a replay that was available at once; the report of any other request follows at its end.
    fn report<F, R: Send, E: Send>(
        &self,
        found: &Match,
        state: &RequestState<F, R, E>,
        since: Instant,
    ) -> Option<DecisionReport> {
        let observer = self.observer.as_ref()?;
        if let RequestState::Replaying { .. } = state {
            observer.decided(&found.operation, Decision::Replayed, since.elapsed());
            return None;
        }
        Some(DecisionReport::new(observer, &found.operation, since))
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
