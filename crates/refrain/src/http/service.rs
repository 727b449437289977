//! Before all states: applies the layer to a service, matches each request with its operation, and starts it on its path.

use std::{
    borrow::Cow,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, Method, Request, Response, Uri, request::Parts, uri::PathAndQuery,
};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Code, Decision, RefrainLayer,
    body::{Body, Carried, Guarded, marked},
    extract,
    layer::{LayerState, Prefix, Reported},
    lookup, observe, pages,
    problem::{PROBLEMS_PATH, Problem},
    report::DecisionReport,
    request::{MatchedRequest, RequestState, ResponseFuture},
};
use crate::{
    Error, ErrorKind, Key, Operation, RecordId, Result,
    engine::ProbeSource,
    jwt::VerifiedClaims,
    policy::{Match, Mode},
    receipts::{Standing, Witness},
};

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
            let report = DecisionReport::new(&self.shared, None, &head, Instant::now());
            let page = marked(Decision::PageServed, page);
            return ResponseFuture::new(report, RequestState::replied(page));
        }
        if self.shared.has_lookup
            && let Some(key) = self.shared.looked_up(&head)
        {
            let report = DecisionReport::new(&self.shared, None, &head, Instant::now());
            let replying = lookup::reply(self.shared.clone(), head, key);
            let next = Box::pin(async move { RequestState::replied(replying.await) });
            return ResponseFuture::new(report, RequestState::LookingUp { next });
        }
        let found = self.shared.find(&head);
        let since = Instant::now();
        let operation = found.as_ref().map(|found| &found.operation);
        let report = DecisionReport::new(&self.shared, operation, &head, since);
        let Some(found) = found else {
            let request = Request::from_parts(head, Body::through(body));
            let passing = RequestState::Passing {
                future: self.inner.call(request),
                called: since,
                decision: Decision::Passed,
            };
            return ResponseFuture::new(report, passing);
        };
        let request = MatchedRequest {
            shared: self.shared.clone(),
            inner: self.take_ready(),
            found,
            head,
            claims: None,
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

    /// The URI that the client requested: below a router's prefix, the request's head has only the rest of the path.
    pub(super) fn uri<'h>(&self, head: &'h Parts) -> Cow<'h, Uri> {
        if let Some(uri) = self.original.as_ref().and_then(|original| original(head)) {
            return Cow::Owned(uri);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = head.extensions.get() {
            self.report_nest(head, uri);
            return Cow::Borrowed(uri);
        }
        let put_in_front = self
            .prefix
            .as_ref()
            .and_then(|prefix| prefix.join(&head.uri));
        put_in_front.map_or(Cow::Borrowed(&head.uri), Cow::Owned)
    }

    /// Reports operations that match nothing below axum's `nest`, at the first nested request.
    ///
    /// Only such a request contains the prefix. Without the report, an operation written without the prefix would silently
    /// not be guarded.
    #[cfg(feature = "axum")]
    fn report_nest(&self, head: &Parts, original: &Uri) {
        if self.nest_reported.is_set() || original.path().len() == head.uri.path().len() {
            return;
        }
        let nest = head.extensions.get::<axum::extract::NestedPath>();
        let Some(nest) = nest.filter(|_| self.nest_reported.set() && self.prefix.is_none()) else {
            return;
        };
        let nest = nest.as_str();
        let Ok(prefix) = format!("* {nest}").parse::<crate::policy::Pattern>() else {
            return;
        };
        let unreached: Vec<_> = self.policy.out_of_reach(&prefix).collect();
        if !unreached.is_empty() {
            report_loudly(&format!(
                "no request below `{nest}`, where the router nests the layer, reaches these operations: {}; \
                 write their whole paths, such as `{}/...`, unless the layer is nested elsewhere too",
                names(&unreached),
                nest.trim_end_matches('/')
            ));
        }
    }

    /// The reader of this operation's receipts, if it has one.
    pub(super) fn witness(&self, operation: &Operation) -> Option<&Arc<Witness>> {
        match operation.is_receipted() {
            true => self.witnesses.get(&operation.name),
            false => None,
        }
    }

    /// The cap for request bodies: a body that never fits into the budget is over the cap, too.
    pub(super) fn request_bytes_max(&self, operation: &Operation) -> usize {
        let fits = self.budget.body_bytes_max();
        operation.request_bytes_max.min(fits)
    }

    /// Whether a retry learns the outcome of an attempt in doubt from its receipt, or executes. `is_receipted` is whether
    /// the attempt was exactly-once.
    pub(super) fn will_be_known(
        &self,
        operation: &Operation,
        is_receipted: bool,
        has_attempts: bool,
    ) -> bool {
        let standing = self.witness(operation).map(|it| it.standing());
        match standing {
            // Released once it can no longer commit.
            Some(Standing::Unproven) => is_receipted,
            // Replaced by another attempt.
            Some(Standing::Proven) => is_receipted && has_attempts,
            Some(Standing::Missing) | None => false,
        }
    }

    /// The problem as a response.
    pub(super) fn refuse<R>(&self, problem: &Problem) -> Response<Body<R>> {
        marked(problem.code().into(), problem.response(&self.problems))
    }
}

impl LayerState {
    /// The page that the `type` of a problem points to, or the index of all pages, if the request is for one.
    fn page<R>(&self, head: &Parts) -> Option<Response<Body<R>>> {
        let is_read = head.method == Method::GET || head.method == Method::HEAD;
        if !is_read || !self.problems.starts_with('/') {
            return None;
        }
        let uri = self.uri(head);
        let name = uri.path().strip_prefix(self.problems.as_str())?;
        // Below another base, the service may have a page of its own there.
        let has_index = self.problems == PROBLEMS_PATH;
        pages::find(name, has_index, head)
    }
}

impl Prefix {
    /// The URI with the prefix prepended to its path.
    fn join(&self, uri: &Uri) -> Option<Uri> {
        if self.pattern.names().next().is_some() {
            return None;
        }
        let rest = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(format!("{}{rest}", self.path).parse().ok()?);
        Uri::from_parts(parts).ok()
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

impl RefrainLayer {
    /// Reports probable configuration mistakes, such as operations that run without an audit log:
    /// as warnings, some of them on standard error if no subscriber collects warnings.
    /// Also lets the engine look up the [records in doubt](crate::Engine::resume_probes) of earlier processes.
    ///
    /// Called when the layer is applied to a service. Reports once, because routers apply the layer to each route.
    pub fn report(&self) {
        self.resume_probes();
        let reported = &self.shared.reported;
        if reported.is_set() || !reported.set() {
            return;
        }
        let LayerState { engine, policy, .. } = &*self.shared;
        let has_probe = |it: &Operation| it.probe.is_some() || it.replay_probe.is_some();
        if self.shared.probes.is_none() && policy.operations().any(has_probe) {
            tracing::warn!(
                "the policy has a `probe` or a `replay_probe`, but no service answers it; set one with `RefrainLayer::with_probes`"
            );
        }
        let is_unverified = |it: &Operation| self.shared.needs_token(it);
        if self.shared.jwt.is_none() && policy.operations().any(is_unverified) {
            report_loudly(
                "the policy has a scope with `jwt:`, but nothing verifies tokens, so every request is refused; \
                 set the keys with `RefrainLayer::with_jwt`",
            );
        }
        let is_blind =
            |it: &&Operation| it.is_receipted() && !self.shared.witnesses.contains_key(&it.name);
        for operation in policy.operations().filter(is_blind) {
            tracing::warn!(
                operation = %operation.name,
                "no reader of receipts is set, so the operation is only at-most-once; \
                 set one with `RefrainLayer::with_receipts`"
            );
        }
        let lacks_log = engine.audit().is_none();
        let runs = |it: &&Operation| match it.is_audited() {
            true => lacks_log && !it.audit_required,
            false => it.is_unaudited_money(),
        };
        let unaudited: Vec<_> = policy.operations().filter(runs).collect();
        if !unaudited.is_empty() {
            let help = match lacks_log {
                true => "give the engine an audit log with `Engine::with_audit`",
                false => "write audit = true",
            };
            report_loudly(&format!(
                "these operations run without an audit log: {}; {help}",
                names(&unaudited)
            ));
        }
        let required = policy
            .operations()
            .filter(|it| it.audit_required && it.is_audited());
        let required: Vec<_> = required.filter(|_| lacks_log).collect();
        if !required.is_empty() {
            report_loudly(&format!(
                "these operations have audit = \"required\" and are refused, because there is no audit log: {}; \
                 give the engine one with `Engine::with_audit`",
                names(&required)
            ));
        }
        let unreached: Vec<_> = self.out_of_reach().collect();
        if !unreached.is_empty() {
            report_loudly(&format!(
                "no request reaches these operations below the layer's prefix: {}; write their whole paths, \
                 or remove them from this layer's policy if more specific operations match all their requests",
                names(&unreached)
            ));
        }
    }
}

impl RefrainLayer {
    /// Lets the engine look up records that earlier processes left in doubt, if an operation has a way to do so.
    fn resume_probes(&self) {
        let shared = &self.shared;
        let is_probed = |it: &Operation| it.probe.is_some() && shared.probes.is_some();
        let can_look = |it: &Operation| is_probed(it) || shared.witness(it).is_some();
        if !shared.retired.is_set() && shared.policy.operations().any(can_look) {
            shared.engine.resume_probes(self.probe_source());
            // It may have been retired meanwhile.
            if shared.retired.is_set() {
                self.stop_probes();
            }
        }
        // Also without a way to look them up, records in doubt are logged.
        shared.engine.start_background();
    }

    pub(super) fn stop_probes(&self) {
        self.shared.engine.stop_probes(&self.probe_source());
    }

    fn probe_source(&self) -> Weak<dyn ProbeSource> {
        let source: Arc<dyn ProbeSource> = self.shared.clone();
        Arc::downgrade(&source)
    }
}

impl Reported {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it. Returns `true` to the first caller only.
    pub(super) fn set(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

fn names(operations: &[&Operation]) -> String {
    let names: Vec<_> = operations
        .iter()
        .map(|it| format!("`{}`", it.name))
        .collect();
    names.join(", ")
}

/// Warns; on standard error if no subscriber collects warnings.
fn report_loudly(message: &str) {
    match tracing::enabled!(tracing::Level::WARN) {
        true => tracing::warn!("{message}"),
        false => eprintln!("refrain: warning: {message}"),
    }
}

/// The operation and the record of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The operation that the request belongs to.
    pub operation: String,
    /// The identity of the record.
    pub record: RecordId,
}

impl RefrainLayer {
    /// Returns the record of a request, with the scope and key that the layer would use; `key` overrides the request's own.
    /// The token of the request is not verified: it may have expired.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the policy guards no such operation, or if key or scope are missing or invalid.
    pub fn locate(&self, head: &Parts, body: &Bytes, key: Option<Key>) -> Result<Located> {
        let uri = self.shared.uri(head);
        let (method, path) = (head.method.as_str(), uri.path());
        let policy = &self.shared.policy;
        let found = policy.find(method, path).ok_or_else(|| {
            invalid(format!(
                "no guarded operation matches {method} {path}; check the method and the path"
            ))
        })?;
        let operation = &found.operation;
        let content = extract::content(head, body);
        let sent = || extract::find_key(&operation.key, operation.syntax, head, &uri, &content);
        let key = match key {
            Some(key) => Some(key),
            None => sent()?,
        };
        let key = key.ok_or_else(|| invalid("the request has no key; pass one".into()))?;
        let claims = self.unverified_claims(operation, &head.headers)?;
        let claims = claims.as_ref();
        let mut intent = extract::intent(&self.shared, &found, key, head, claims, body)?;
        if operation.mode == Mode::Observe {
            intent.scope = observe::scope(intent.scope);
        }
        Ok(Located {
            operation: operation.name.clone(),
            record: self.shared.engine.record_id(&intent),
        })
    }
}

impl RefrainLayer {
    /// The claims of a request's token, which is not verified, if the scope of its operation needs them.
    fn unverified_claims(
        &self,
        operation: &Operation,
        headers: &HeaderMap,
    ) -> Result<Option<VerifiedClaims>> {
        match &self.shared.jwt {
            Some(verifier) if self.shared.needs_token(operation) => {
                let claims = verifier.read_unverified(headers);
                let header = &verifier.settings().header;
                let message = |why| format!("{why}; pass the header {header} of the request");
                claims.map(Some).map_err(|why| invalid(message(why)))
            }
            _ => Ok(None),
        }
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
