//! The guarded service: decides about each request before anything runs.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
    request::Parts,
};
use http_body::Body as HttpBody;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    Code, Decision, ResponseFuture,
    body::{Body, BodyError},
    decision::{Telling, marked},
    extract,
    future::ResponseState,
    layer::LayerState,
    problem::Problem,
    reply::{self, Replay},
    run::{Run, Task},
    stage::{Coming, Received, Stage},
    streamed::Streamed,
    unknown::unknown_before,
};
use crate::{
    Error, ErrorKind, Intent, Key, Operation, Verdict,
    clock::{Clock as _, SystemClock},
    engine::{Count, Guard, Live},
    fingerprint::Fingerprints,
    policy::{Duplicates, Match, OnStoreFailure, ReplayTo, Unverified},
};

/// Maximum `Retry-After` of a request in flight.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// A service whose operations are guarded. Made by [`RefrainLayer`](super::RefrainLayer).
#[derive(Debug, Clone)]
pub struct RefrainService<S> {
    pub(super) inner: S,
    pub(super) shared: Arc<LayerState>,
}

/// Result of a guarded service.
pub(super) type ServiceResult<R, E> = Result<Response<Body<R>>, E>;

/// Bounds of a body that can be guarded.
pub trait Carried: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static {}

impl<B> Carried for B where
    B: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static
{
}

/// Bounds of a service that can be guarded.
pub trait Guarded<B, R>:
    Service<Request<Body<B>>, Response = Response<R>, Error: Send, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S, B, R> Guarded<B, R> for S where
    S: Service<Request<Body<B>>, Response = Response<R>, Error: Send, Future: Send>
        + Clone
        + Send
        + 'static
{
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
        let begun = self.begin(&mut head, body);
        self.go_on(head, begun)
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

/// How far a request gets without waiting.
enum Progress<B, R> {
    /// A stored outcome answers it, and can be written unchanged.
    Replay(Replay),
    /// Another response answers it.
    Answer(Response<Body<R>>),
    /// The request is not guarded.
    Unguarded(B),
    /// The request is guarded, and has reached this stage.
    Guarded(Match, Instant, Stage<B, R>),
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
        match self.begin(&mut head, body) {
            Progress::Replay(replay) => Answering::Replay(replay, head),
            begun => Answering::Future(self.go_on(*head, begun)),
        }
    }

    #[inline]
    fn begin<B: Carried, R>(&self, head: &mut Parts, body: B) -> Progress<B, R> {
        strip(&mut head.headers);
        if let Some(page) = self.shared.page(head) {
            return Progress::Answer(page);
        }
        let Some(found) = self.shared.find(head) else {
            return Progress::Unguarded(body);
        };
        let since = Instant::now();
        let coming = Coming {
            shared: &self.shared,
            found: &found,
            head,
            since,
        };
        let stage = coming.begin(body);
        let Stage::Replayed(replay) = stage else {
            return Progress::Guarded(found, since, stage);
        };
        if let Some(observer) = &self.shared.observer {
            observer.decided(&found.operation, Decision::Replayed, since.elapsed());
        }
        match replay.is_plain() {
            true => Progress::Replay(replay),
            false => Progress::Answer(replay.into_response()),
        }
    }

    #[inline]
    fn go_on<B, R>(
        &mut self,
        head: Parts,
        begun: Progress<B, R>,
    ) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let (found, since, stage) = match begun {
            // The inner service stays ready for the next request.
            Progress::Replay(replay) => return ResponseState::here(replay.into_response()).into(),
            Progress::Answer(answer) => return ResponseState::here(answer).into(),
            Progress::Unguarded(body) => {
                let request = Request::from_parts(head, Body::through(body));
                return ResponseState::through(self.inner.call(request), None).into();
            }
            Progress::Guarded(found, since, stage) => (found, since, stage),
        };
        let observer = self.shared.observer.as_ref();
        let telling = observer.map(|it| Telling::new(it, &found.operation, since));
        // The service that was polled ready must be the one that is called.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let guarding = Guarding {
            shared: self.shared.clone(),
            inner,
            found,
        };
        ResponseFuture::told(telling, guarding.go_on(head, stage))
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

impl LayerState {
    /// The response for a verdict other than a grant.
    pub(super) fn other<G, R>(&self, verdict: &Verdict<G>) -> Response<Body<R>> {
        let problem = match verdict {
            Verdict::Replay(outcome) if outcome.is_body_kept() => {
                return Replay::new(outcome.clone(), false).into_response();
            }
            Verdict::Replay(outcome) => {
                let status = outcome.status();
                Problem::new(Code::BodyNotKept, format!("It ended with status {status}."))
                    .with_original(outcome.clone())
            }
            Verdict::InFlight { lease_left } => Problem::new(
                Code::InFlight,
                "Ask again with the same key for its outcome.",
            )
            .with_retry_after((*lease_left).min(RETRY_AFTER_MAX)),
            Verdict::OtherCredential => Problem::new(
                Code::CredentialChanged,
                "The outcome is shown only to the credential that sent the first request.",
            ),
            Verdict::Mismatch => Problem::new(
                Code::KeyReused,
                "Method, path, query, body or host differ from the first request's.",
            ),
            Verdict::Indeterminate(doubt) => unknown_before(doubt),
            Verdict::Expired => Problem::new(
                Code::KeyExpired,
                "It was used before, and is not run again.",
            ),
            Verdict::Granted(_) => Problem::new(Code::StoreUnavailable, "The claim was lost."),
        };
        self.refuse(&problem)
    }

    /// The streamed response of the request in flight.
    pub(super) fn follow<R>(&self, live: &Live) -> Response<Body<R>> {
        let answer = live.get::<Streamed>().and_then(|it| it.follow());
        // `None`: the body has just gone over the cap, or it has too many readers.
        match answer {
            Some(answer) => marked(Decision::Replayed, answer),
            None => {
                let lease_left = RETRY_AFTER_MAX;
                self.other(&Verdict::<Guard>::InFlight { lease_left })
            }
        }
    }

    pub(super) fn refuse<R>(&self, problem: &Problem) -> Response<Body<R>> {
        marked(problem.code().into(), problem.response(&self.problems))
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

/// Verifies the signature of a request, if its operation requires one.
pub(super) fn verified(
    shared: &LayerState,
    operation: &Operation,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(), Unverified> {
    let Some(signature) = &operation.signature else {
        return Ok(());
    };
    let verified = signature.verify(headers, body, SystemClock.wall());
    if let Err(why) = verified {
        shared.engine.tally().count(Count::Unverified);
        // Not a warning, because any client can cause it at any rate.
        tracing::debug!(operation = %operation.name, %why, "a request is not signed as it should be");
    }
    verified
}

/// Acknowledges a duplicate of a completed request, if the policy says so and the outcome or its body is no longer kept.
pub(super) fn acknowledged<G, R>(
    operation: &Operation,
    verdict: &Verdict<G>,
) -> Option<Response<Body<R>>> {
    if operation.duplicates != Duplicates::Acknowledge {
        return None;
    }
    let (status, outcome) = match verdict {
        Verdict::Expired if operation.keeps_successes_alone() => (StatusCode::OK, None),
        Verdict::Replay(outcome) if !outcome.is_body_kept() && outcome.status() < 400 => {
            (StatusCode::from_u16(outcome.status()).ok()?, Some(outcome))
        }
        _ => return None,
    };
    let answer = reply::acknowledge(status, outcome);
    Some(marked(Decision::Acknowledged, answer))
}

/// The intent of a request: its scope, key, fingerprint and credential, with the operation's terms.
pub(super) fn intent(
    shared: &LayerState,
    found: &Match,
    key: Key,
    head: &Parts,
    body: &Bytes,
) -> Result<Intent, Error> {
    let (operation, secret) = (&found.operation, shared.engine.secret());
    let uri = shared.uri(head);
    let host = extract::host(head, &uri);
    let host = host.as_deref();
    let scope = match &shared.scope {
        Some(scope) => scope(head),
        None => {
            let (parts, name) = (&operation.scope, &operation.name);
            let value = |it: &str| found.value(it);
            extract::scope(parts, secret, &head.headers, host, name, value)?
        }
    };
    let content = extract::content(head, body);
    let view = extract::view(head, &uri, host, &content);
    let fingerprints = Fingerprints::of(secret, &operation.fingerprint, &view);
    Ok(Intent {
        scope,
        key,
        fingerprint: fingerprints.whole,
        earlier_fingerprint: fingerprints.hostless,
        credential: (operation.replay_to == ReplayTo::SameCredential)
            .then(|| extract::credential(&operation.credential, secret, &head.headers)),
        terms: operation.terms,
        probe: None,
        receipts: shared.witness(operation).cloned(),
        audit: None,
    })
}

/// One guarded request in progress.
pub(super) struct Guarding<S> {
    pub(super) shared: Arc<LayerState>,
    pub(super) inner: S,
    pub(super) found: Match,
}

impl<S> Guarding<S> {
    /// Continues from a stage; called again with the next stage after each wait.
    fn go_on<B, R>(self, head: Parts, stage: Stage<B, R>) -> ResponseState<S::Future, R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        match stage {
            Stage::Replayed(replay) => ResponseState::here(replay.into_response()),
            Stage::Answered(answer) => ResponseState::here(answer),
            Stage::Observed(body) => ResponseState::boxed(self.observe(head, body)),
            Stage::Keyless(body) => self.pass(head, body, Decision::Passed),
            Stage::Reading(in_head, reading) => ResponseState::waiting(async move {
                let read = reading.await;
                let stage = self.coming(&head).received(in_head, read);
                self.go_on(head, stage)
            }),
            Stage::Asking(attending, body) => ResponseState::waiting(async move {
                let (turn, intent) = attending.await;
                let stage = self.coming(&head).attended(intent, body, turn);
                self.go_on(head, stage)
            }),
            Stage::Failed(error, body) => {
                ResponseState::boxed(self.store_failed(error, head, body))
            }
            Stage::Granted(intent, body, guard) => {
                let shared = self.shared.clone();
                let request = Request::from_parts(head, body.into_body());
                ResponseState::running(self.run(intent, request, guard), shared)
            }
        }
    }

    /// The request, as the stages see it, with the current time.
    fn coming<'a>(&'a self, head: &'a Parts) -> Coming<'a> {
        Coming {
            shared: &self.shared,
            found: &self.found,
            head,
            since: Instant::now(),
        }
    }

    fn run<B, R>(
        self,
        intent: Box<Intent>,
        request: Request<Body<B>>,
        guard: Guard,
    ) -> Task<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let run = Run {
            shared: self.shared,
            operation: self.found.operation,
            intent,
            is_to_head: *request.method() == Method::HEAD,
        };
        run.ready(self.inner, request, guard)
    }

    async fn store_failed<B, R>(
        self,
        error: Error,
        head: Parts,
        body: Received,
    ) -> ServiceResult<R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let operation = &*self.found.operation;
        let name = &operation.name;
        if error.kind() == ErrorKind::Unaudited {
            if let Some(suppressed) = self.shared.failed_claims.pass() {
                tracing::error!(operation = %name, %error, suppressed, "a claim failed: it must be audited and cannot be");
            }
            return Ok(self.shared.refuse(&unaudited()));
        }
        if let Some(suppressed) = self.shared.failed_claims.pass() {
            tracing::error!(operation = %name, %error, suppressed, "a claim failed: the store did, or the receipts");
        }
        if operation.on_store_failure == OnStoreFailure::Pass {
            if operation.is_audited() && self.shared.engine.audit_unguarded(name).await.is_err() {
                return Ok(self.shared.refuse(&unaudited()));
            }
            self.shared.engine.tally().count(Count::Unguarded);
            let body = body.into_body();
            return ResponseFuture::from(self.pass(head, body, Decision::Unguarded)).await;
        }
        let detail = "Nothing was run. Send the same request with the same key again.";
        Ok(self.shared.refuse(&unavailable(detail)))
    }

    /// Lets a request through unguarded.
    pub(super) fn pass<B, R>(
        mut self,
        head: Parts,
        body: Body<B>,
        decision: Decision,
    ) -> ResponseState<S::Future, R, S::Error>
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        let request = Request::from_parts(head, body);
        ResponseState::through(self.inner.call(request), Some(decision))
    }
}

fn unavailable(detail: &str) -> Problem {
    Problem::new(Code::StoreUnavailable, detail).with_retry_after(Duration::from_secs(1))
}

/// Rejects a request to an operation that must be audited, because there is no audit log.
pub(super) fn logless() -> Problem {
    unavailable("Nothing was run: the operation must be audited, and there is no audit log.")
}

fn unaudited() -> Problem {
    unavailable(
        "Nothing was run: the audit log cannot be written. Send the same request with the same key again.",
    )
}
