//! The guarded service: what is decided before anything runs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::{
    Code, Decision, REFRAIN_OUTCOME,
    body::{Body, BodyError},
    capture::{self, Read},
    decision::{self, marked},
    extract::{self, HeadKey},
    layer::Shared,
    probe::HttpProbe,
    problem::Problem,
    receipted, reply,
    run::{self, Detached, Ran, Run, Task},
    streamed::Streamed,
};
use crate::{
    Error, ErrorKind, Fingerprint, Intent, Key, Operation, Verdict,
    clock::{Clock as _, SystemClock},
    engine::{Count, Guard, Live, Turn},
    policy::{Duplicates, Match, Mode, OnStoreFailure, ReplayTo, Unverified},
};

/// The longest that a client is told to wait before it asks again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// A service whose operations are guarded.
#[derive(Debug, Clone)]
pub struct RefrainService<S> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared>,
}

/// The answer of a guarded service.
pub(super) type Answer<R, E> = Result<Response<Body<R>>, E>;

type Boxed<R, E> = Pin<Box<dyn Future<Output = Answer<R, E>> + Send>>;

/// What a body has to be to be guarded.
pub trait Carried: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static {}

impl<B> Carried for B where
    B: HttpBody<Data = Bytes, Error: Into<BodyError>> + Unpin + Send + 'static
{
}

/// What a service has to be to be guarded.
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Whoever is guarded is told anew; nobody else has any.
        receipted::tell(&mut request, None);
        if let Some(page) = self.shared.page(&request) {
            return ResponseFuture::boxed(async { Ok(page) });
        }
        let Some(found) = self.shared.find(&request) else {
            return ResponseFuture::through(self.inner.call(request.map(Body::through)));
        };
        // The service that was polled ready is the one to call.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let (head, body) = request.into_parts();
        let guarding = Guarding {
            shared: self.shared.clone(),
            inner,
            found,
        };
        let Some(observer) = self.shared.observer.clone() else {
            return ResponseFuture::boxed(guarding.answer(head, body));
        };
        let operation = guarding.found.operation.clone();
        let answer = guarding.answer(head, body);
        ResponseFuture::boxed(decision::Observed::new(observer, operation, answer))
    }
}

impl Shared {
    fn find<B>(&self, request: &Request<B>) -> Option<Match> {
        self.policy
            .find(request.method().as_str(), request.uri().path())
    }

    /// The page behind a problem's `type`.
    fn page<B, R>(&self, request: &Request<B>) -> Option<Response<Body<R>>> {
        let name = request.uri().path().strip_prefix(self.problems.as_str())?;
        let code = Code::ALL.into_iter().find(|code| code.code() == name)?;
        if request.method() != Method::GET || !self.problems.starts_with('/') {
            return None;
        }
        let mut response = Response::new(Body::full(Bytes::from_static(code.page().as_bytes())));
        let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, markdown);
        Some(response)
    }
}

impl Shared {
    /// The answer to everybody who may not run.
    fn other<G, R>(&self, verdict: &Verdict<G>) -> Response<Body<R>> {
        let problem = match verdict {
            Verdict::Replay(outcome) if outcome.is_body_kept() => {
                return marked(Decision::Replayed, reply::replay(outcome));
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
                "Method, path, query or body differ from the first request's.",
            ),
            Verdict::Indeterminate(doubt) => {
                let reason = run::words(doubt.reason);
                Problem::new(Code::OutcomeUnknown, format!("The first request {reason}."))
            }
            Verdict::Expired => Problem::new(
                Code::KeyExpired,
                "It was used before, and is not run again.",
            ),
            Verdict::Granted(_) => Problem::new(Code::StoreUnavailable, "The claim was lost."),
        };
        self.refuse(&problem)
    }

    /// The answer of the one in flight, as it comes.
    fn follow<R>(&self, live: &Live) -> Response<Body<R>> {
        let answer = live.get::<Streamed>().and_then(|it| it.follow());
        // It has become too long just now, or too many read it.
        match answer {
            Some(answer) => marked(Decision::Replayed, answer),
            None => {
                let lease_left = RETRY_AFTER_MAX;
                self.other(&Verdict::<Guard>::InFlight { lease_left })
            }
        }
    }

    fn refuse<R>(&self, problem: &Problem) -> Response<Body<R>> {
        marked(problem.code().into(), problem.response(&self.problems))
    }
}

/// Whether a request is signed as its operation wants it. What need not be signed costs nothing.
pub(super) fn verified(
    shared: &Shared,
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
        // Anybody can cause this as often as they like, so it is no warning.
        tracing::debug!(operation = %operation.name, %why, "a request is not signed as it should be");
    }
    verified
}

/// Tells a duplicate of what is done just that, where the policy says so and the outcome is not whole any more.
fn acknowledged<G, R>(operation: &Operation, verdict: &Verdict<G>) -> Option<Response<Body<R>>> {
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

/// What a request intends: its scope, key, fingerprint and credential, on the operation's terms.
pub(super) fn intent(
    shared: &Shared,
    found: &Match,
    key: Key,
    head: &Parts,
    body: &Bytes,
) -> Result<Intent, Error> {
    let (operation, secret) = (&found.operation, shared.engine.secret());
    let scope = match &shared.scope {
        Some(scope) => scope(head),
        None => {
            let (parts, name) = (&operation.scope, &operation.name);
            extract::scope(parts, secret, &head.headers, name, |it| found.value(it))?
        }
    };
    let content = extract::content(head, body);
    let view = extract::view(head, &content);
    Ok(Intent {
        scope,
        key,
        fingerprint: Fingerprint::of(secret, &operation.fingerprint, &view),
        credential: (operation.replay_to == ReplayTo::SameCredential)
            .then(|| extract::credential(&operation.credential, secret, &head.headers)),
        terms: operation.terms,
        probe: None,
        receipts: shared.witness(operation).cloned(),
        audit: None,
    })
}

/// A request body that was read to its end.
struct Received {
    bytes: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Received {
    fn into_body<B>(self) -> Body<B> {
        Body::with_trailers(self.bytes, self.trailers)
    }
}

/// One guarded request on its way.
pub(super) struct Guarding<S> {
    pub(super) shared: Arc<Shared>,
    pub(super) inner: S,
    pub(super) found: Match,
}

// What is rare or large is boxed: a future is as large as its largest branch, is moved about as a whole,
// and what stays below a kilobyte is quickly allocated.
impl<S> Guarding<S> {
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    fn answer<B, R>(self, head: Parts, body: B) -> impl Future<Output = Answer<R, S::Error>> + Send
    where
        S: Guarded<B, R>,
        B: Carried,
        R: Carried,
    {
        async move {
            if self.found.operation.mode == Mode::Observe {
                return Box::pin(self.observe(head, body)).await;
            }
            let operation = &*self.found.operation;
            let in_head = match extract::head_key(&operation.key, operation.syntax, &head.headers) {
                // What is signed is verified before its key is looked at, which takes the body.
                _ if operation.signature.is_some() => None,
                Ok(HeadKey::Absent) if operation.required => {
                    return Ok(self.refuse(&self.missing()));
                }
                Ok(HeadKey::Absent) => {
                    let body = Body::through(body);
                    return Box::pin(self.pass(head, body, Decision::Passed)).await;
                }
                Ok(HeadKey::Found(key)) => Some(key),
                Ok(HeadKey::NeedsBody) => None,
                Err(error) => return Ok(self.refuse(&invalid(&error))),
            };
            let body = match capture::read(body, operation.request_bytes_max).await {
                Ok(Read::Whole(bytes, trailers)) => Received { bytes, trailers },
                Ok(Read::Over(..)) => return Ok(self.refuse(&self.too_large())),
                Err(error) => return Ok(unreadable(error.as_ref())),
            };
            if let Err(why) = verified(&self.shared, operation, &head.headers, &body.bytes) {
                return Ok(self.refuse(&Problem::new(Code::SignatureInvalid, format!("{why}."))));
            }
            let key = match self.key(in_head, &head, &body.bytes) {
                Ok(Some(key)) => key,
                Ok(None) if operation.required => return Ok(self.refuse(&self.missing())),
                Ok(None) => {
                    let body = body.into_body();
                    return Box::pin(self.pass(head, body, Decision::Passed)).await;
                }
                Err(error) => return Ok(self.refuse(&invalid(&error))),
            };
            let intent = match self.intent(key, &head, &body.bytes) {
                Ok(intent) => Box::new(intent),
                Err(error) => return Ok(self.refuse(&invalid(&error))),
            };
            let engine = &self.shared.engine;
            let turn = match engine.attend_now(&intent) {
                Some(turn) => turn,
                None => Box::pin(engine.attend_soon(&intent)).await,
            };
            let guard = match turn {
                Ok(Turn::Verdict(Verdict::Granted(guard))) => guard,
                Ok(Turn::Verdict(other)) => {
                    let done = acknowledged(operation, &other);
                    return Ok(done.unwrap_or_else(|| self.shared.other(&other)));
                }
                Ok(Turn::Refused(answer)) => {
                    let answer = reply::answer(&answer);
                    return Ok(marked(Decision::Refused, answer));
                }
                Ok(Turn::Live(live)) => return Ok(self.shared.follow(&live)),
                Err(error) => return Box::pin(self.store_failed(&error, head, body)).await,
            };
            let shared = self.shared.clone();
            let request = Request::from_parts(head, body.into_body());
            let task = self.run(intent, request, guard);
            Ok(match Detached::new(task).await {
                Ran::Answered(response) => *response,
                Ran::Erred(error) => return Err(error),
                Ran::Failed(problem) => shared.refuse(&problem),
                Ran::Overtaken(verdict) => shared.other(&verdict),
            })
        }
    }

    fn intent(&self, key: Key, head: &Parts, body: &Bytes) -> Result<Intent, Error> {
        let mut intent = intent(&self.shared, &self.found, key, head, body)?;
        if self.found.operation.audit {
            intent.audit = Some(self.found.operation.name.as_str().into());
        }
        if let (Some(_), Some(ask)) = (&self.found.operation.probe, &self.shared.probes) {
            let probe = HttpProbe::new(ask, &self.found, &head.headers);
            intent.probe = Some(Arc::new(probe));
        }
        Ok(intent)
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
        };
        run.ready(self.inner, request, guard)
    }

    fn key(&self, in_head: Option<Key>, head: &Parts, body: &Bytes) -> Result<Option<Key>, Error> {
        let operation = &self.found.operation;
        match in_head {
            Some(key) => Ok(Some(key)),
            None => {
                let content = extract::content(head, body);
                extract::find_key(&operation.key, operation.syntax, head, &content)
            }
        }
    }

    fn refuse<R>(&self, problem: &Problem) -> Response<Body<R>> {
        self.shared.refuse(problem)
    }

    fn missing(&self) -> Problem {
        let sources: Vec<_> = self
            .found
            .operation
            .key
            .iter()
            .map(ToString::to_string)
            .collect();
        let detail = format!(
            "Send a key that is unique to this request: {}.",
            sources.join(" or ")
        );
        Problem::new(Code::KeyMissing, detail)
    }

    fn too_large(&self) -> Problem {
        let bytes_max = self.found.operation.request_bytes_max;
        let detail = format!("At most {bytes_max} bytes are taken here.");
        Problem::new(Code::RequestTooLarge, detail)
    }

    async fn store_failed<B, R>(
        self,
        error: &Error,
        head: Parts,
        body: Received,
    ) -> Answer<R, S::Error>
    where
        S: Guarded<B, R>,
    {
        let operation = &*self.found.operation;
        let name = &operation.name;
        if error.kind() == ErrorKind::Unaudited {
            tracing::error!(operation = %name, %error, "it must be audited and cannot be");
            return Ok(self.refuse(&unaudited()));
        }
        tracing::error!(operation = %name, %error, "the store failed, or the receipts did");
        if operation.on_store_failure == OnStoreFailure::Pass {
            if operation.audit && self.shared.engine.audit_unguarded(name).await.is_err() {
                return Ok(self.refuse(&unaudited()));
            }
            self.shared.engine.tally().count(Count::Unguarded);
            let body = body.into_body();
            return self.pass(head, body, Decision::Unguarded).await;
        }
        let detail = "Nothing was run. Send the same request with the same key again.";
        Ok(self.refuse(&unavailable(detail)))
    }

    /// Lets a request through unguarded.
    pub(super) async fn pass<B, R>(
        mut self,
        head: Parts,
        body: Body<B>,
        decision: Decision,
    ) -> Answer<R, S::Error>
    where
        S: Guarded<B, R>,
    {
        let request = Request::from_parts(head, body);
        let response = passed(self.inner.call(request).await?);
        Ok(marked(decision, response))
    }
}

/// An unguarded answer as it is, without what the operation says to us alone.
fn passed<R>(mut response: Response<R>) -> Response<Body<R>> {
    response.headers_mut().remove(REFRAIN_OUTCOME);
    response.map(Body::through)
}

fn unavailable(detail: &str) -> Problem {
    Problem::new(Code::StoreUnavailable, detail).with_retry_after(Duration::from_secs(1))
}

fn unaudited() -> Problem {
    unavailable(
        "Nothing was run: the audit log cannot be written. Send the same request with the same key again.",
    )
}

fn invalid(error: &Error) -> Problem {
    Problem::new(Code::KeyInvalid, error.to_string())
}

/// The client broke off in the middle of its body, and nobody reads this answer; or what it sent is none.
fn unreadable<R>(error: &(dyn std::error::Error + Send + Sync)) -> Response<Body<R>> {
    const PROBLEM: &[u8] = br#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"The body of the request is broken off, or its framing is. Nothing ran."}"#;
    tracing::debug!(%error, "the request body could not be read");
    let mut response = Response::new(Body::full(Bytes::from_static(PROBLEM)));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let json = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The future of a [`RefrainService`].
pub struct ResponseFuture<F, R, E>(Kind<F, R, E>);

enum Kind<F, R, E> {
    Through(Pin<Box<F>>),
    Guarded(Boxed<R, E>),
}

impl<F, R, E> ResponseFuture<F, R, E> {
    fn through(future: F) -> Self {
        Self(Kind::Through(Box::pin(future)))
    }

    fn boxed(future: impl Future<Output = Answer<R, E>> + Send + 'static) -> Self {
        Self(Kind::Guarded(Box::pin(future)))
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Answer<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Kind::Guarded(future) => future.as_mut().poll(context),
            Kind::Through(future) => {
                let polled = future.as_mut().poll(context);
                polled.map_ok(passed)
            }
        }
    }
}

impl<F, R, E> std::fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseFuture")
    }
}
