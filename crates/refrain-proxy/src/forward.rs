//! Forwards a request to the upstream, and returns its response or the exact reason why there is none.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use refrain::{
    http::{Body, Code, Failure},
    policy::{Network, ProxySettings, Settings, redacted, units::Span},
    record::Reason,
};
use tower_service::Service;

use crate::{
    admin::{Metrics, UpstreamErrors},
    clients::InterimSender,
    connect::Connector,
    headers::{self, Caller, Visible},
    pool::{LostExchange, UpstreamPool},
    server::StartError,
    telemetry::{ClientSpan, Telemetry, Tracer},
    tunnel,
    upstream::ends_with_connection,
    upstream_body::{Outgoing, Stall, UpstreamBody, UpstreamFlow},
    watch::Client,
};

/// The upstream, and the settings for it that all threads share.
#[derive(Clone)]
pub struct Target {
    /// The address, without a password.
    upstream: Box<str>,
    connector: Connector,
    visible: Visible,
    /// Proxies in front of this one whose forwarding headers are believed.
    trusted_proxies: Box<[Network]>,
    settings: ProxySettings,
    /// Prefix of the `type` member of problem responses.
    problems: Arc<str>,
    errors: OnceLock<UpstreamErrors>,
    /// Records the spans of calls, if it has a tracer.
    telemetry: OnceLock<Arc<Telemetry>>,
}

impl Target {
    /// Reads the upstream from the settings.
    ///
    /// # Errors
    /// When no upstream is set, its address is invalid, or it needs TLS and this machine trusts no certificate authority.
    pub fn new(settings: &Settings) -> Result<Self, StartError> {
        let Some(upstream) = &settings.upstream else {
            return Err(StartError::NoUpstream);
        };
        let (scheme, rest) = upstream.split_once("://").unwrap_or(("http", upstream));
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let connect = |error| StartError::Upstream {
            url: upstream.clone(),
            error,
        };
        let patience = settings.proxy.connect_timeout;
        let connector = Connector::new(scheme == "https", authority, patience).map_err(connect)?;
        let host = HeaderValue::from_str(authority).map_err(|_| StartError::NoUpstream)?;
        Ok(Self {
            upstream: redacted(upstream).into(),
            connector,
            visible: Visible {
                host: settings.proxy.host,
                upstream: host,
                base: base.into(),
            },
            trusted_proxies: settings.trusted_proxies.as_slice().into(),
            settings: settings.proxy,
            problems: settings.problems.as_str().into(),
            errors: OnceLock::new(),
            telemetry: OnceLock::new(),
        })
    }

    /// Counts failed requests in these metrics. Call it once.
    pub fn count_errors(&self, metrics: &Metrics) {
        let _ = self.errors.set(metrics.upstream_errors().clone());
    }

    /// Whether requests are sent below a base path.
    pub(crate) fn has_base(&self) -> bool {
        !self.visible.base.is_empty()
    }

    fn trusts(&self, client: IpAddr) -> bool {
        let mut networks = self.trusted_proxies.iter();
        networks.any(|network| network.contains(client))
    }

    /// Number of open connections of all threads to the upstream.
    pub(crate) fn open_connections(&self) -> usize {
        self.connector.open()
    }

    fn count_error(&self, reason: &'static str) {
        if let Some(errors) = self.errors.get() {
            errors.get_or_create(&[("reason", reason)]).inc();
        }
    }

    /// Counts failed requests, and records spans of all, here. Call it once.
    pub(crate) fn report_to(&self, telemetry: &Arc<Telemetry>) {
        self.count_errors(telemetry.metrics());
        let _ = self.telemetry.set(telemetry.clone());
    }

    fn tracer(&self) -> Option<&Tracer> {
        self.telemetry.get()?.tracer()
    }

    /// Limits the open connections of all threads to the upstream.
    pub(crate) fn limit_connections(&self, connections_max: usize) {
        self.connector.limit(connections_max);
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({:?})", self.visible.upstream)
    }
}

/// Service that forwards the requests of one client over the upstream connections of one thread.
#[derive(Clone)]
pub struct Forward(Arc<ForwardPath>);

/// The path of requests from one client to the upstream.
struct ForwardPath {
    target: Arc<Target>,
    pool: Arc<UpstreamPool>,
    client: Option<Caller>,
    /// The client's connection, for interim responses.
    connection: Option<Arc<Client>>,
}

/// A request that is ready to be sent to the upstream.
struct ReadyRequest {
    request: Request<Outgoing>,
    /// How long the exchange may stall; `None` if the layer applies the timeouts.
    patience: Option<Duration>,
    /// The client's side of the tunnel, if the request asks for an upgrade.
    tunnel: Option<tunnel::TunnelClient>,
    /// The span of the call, if the request is traced.
    span: Option<Box<ClientSpan>>,
    /// Receives interim responses, if the client can.
    interim: Option<InterimSender>,
    /// Whether the request has a claim.
    is_granted: bool,
    /// Whether a response that ends with its connection counts as complete; it cannot be distinguished from a truncated one.
    trusts_close: bool,
}

impl Forward {
    /// A service with its own connection pool, for requests that come from no client, such as probes.
    #[must_use]
    pub fn new(target: &Arc<Target>) -> Self {
        Self(Arc::new(ForwardPath {
            target: target.clone(),
            pool: UpstreamPool::new(target.connector.clone(), &target.settings),
            client: None,
            connection: None,
        }))
    }

    /// The same service, with the same pool, for a client that is connected with or without TLS.
    pub(crate) fn of(&self, client: IpAddr, is_tls: bool, connection: Arc<Client>) -> Self {
        let target = self.0.target.clone();
        let client = Caller::new(client, is_tls, target.trusts(client));
        Self(Arc::new(ForwardPath {
            target,
            pool: self.0.pool.clone(),
            client: Some(client),
            connection: Some(connection),
        }))
    }

    /// Whether requests are sent below a base path.
    pub(crate) fn has_base(&self) -> bool {
        self.0.target.has_base()
    }

    pub(crate) fn sweep(&self) {
        self.0.pool.sweep();
    }
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Forward").field(&self.0.client).finish()
    }
}

impl<B> Service<Request<Body<B>>> for Forward
where
    Outgoing: From<Body<B>>,
    B: Send + 'static,
{
    type Response = Response<UpstreamBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<B>>) -> Self::Future {
        let is_granted = request.body().is_granted();
        let ready = self.0.prepare(request.map(Outgoing::from), is_granted);
        Box::pin(self.0.clone().send(ready))
    }
}

impl ForwardPath {
    fn prepare(&self, request: Request<Outgoing>, is_granted: bool) -> ReadyRequest {
        // The layer itself applies the timeouts of guarded requests.
        let patience = (!is_granted).then_some(self.target.settings.read_timeout);
        let (mut head, body) = request.into_parts();
        let interim = self.connection.as_ref().and_then(InterimSender::new);
        let upgrade = match is_granted {
            true => None,
            false => tunnel::take_upgrade(&mut head),
        };
        let (token, tunnel) = upgrade.unzip();
        let tracer = self.target.tracer();
        let span = tracer.and_then(|tracer| tracer.start_client_span(&mut head));
        let forwarded = headers::ForwardedHead {
            visible: &self.target.visible,
            client: self.client.as_ref(),
            upgrade: token,
        };
        forwarded.rewrite(&mut head, &body);
        ReadyRequest {
            request: Request::from_parts(head, body),
            patience,
            tunnel,
            span,
            interim,
            is_granted,
            // The response to a guarded request or a probe decides an outcome, so it must not be truncated.
            // Other clients see the close themselves.
            trusts_close: self.target.settings.http10_upstream
                || !is_granted && self.client.is_some(),
        }
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    fn send(
        self: Arc<Self>,
        ready: ReadyRequest,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Infallible>> + Send + use<> {
        async move {
            let ReadyRequest {
                request,
                patience,
                tunnel,
                span,
                interim,
                is_granted,
                trusts_close,
            } = ready;
            let is_to_head = request.method() == Method::HEAD;
            // The engine itself warns of guarded requests whose outcome is unknown.
            let is_warned = |lost: &LostExchange| !is_granted || lost.failure == Failure::NotSent;
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let (response, connection) = match self.pool.send(request, patience, interim).await {
                Ok(received) => {
                    if let Some(span) = span {
                        span.responded(received.0.status());
                    }
                    received
                }
                Err(lost) => {
                    let reason = reason(&lost);
                    if let Some(span) = span {
                        span.failed(reason);
                    }
                    if lost.client.is_none() {
                        self.target.count_error(reason);
                    }
                    if lost.client.is_none() && is_warned(&lost) {
                        let (upstream, path) = (&self.target.upstream, uri.path());
                        refrain::log_rarely!(warn, by = reason, %upstream, %method, path, why = %lost.why, "no response from the upstream");
                    }
                    return Ok(self.failure_response(&lost));
                }
            };
            let (mut head, body) = response.into_parts();
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(match tunnel {
                    Some(client) => {
                        tunnel::open(client, Response::from_parts(head, ()), *connection)
                    }
                    None => self.unexpected_upgrade(),
                });
            }
            let trusts_close = trusts_close || connection.is_authenticated;
            let body = UpstreamBody::upstream(UpstreamFlow {
                body,
                is_cut_by_close: !trusts_close && ends_with_connection(is_to_head, &head),
                connection: Some(connection),
                is_over: false,
                pool: self.pool.clone(),
                stall: patience.map(Stall::new),
                errors: patience.and_then(|_| self.target.errors.get().cloned()),
                front: None,
                broken: None,
            });
            // The upstream's HTTP version is not passed on.
            head.version = Version::HTTP_11;
            headers::to_client(&mut head.headers);
            Ok(Response::from_parts(head, body))
        }
    }

    /// The response to a request that failed. The layer replaces it for guarded requests; unguarded clients get it as it is.
    fn failure_response(&self, lost: &LostExchange) -> Response<UpstreamBody> {
        let mut response = match lost.client {
            Some(code) => self.incomplete_request(code),
            None => self.no_response(lost.failure),
        };
        response.extensions_mut().insert(lost.failure);
        response
    }

    /// The response to an incomplete request. A part of it may have been sent on, so the client must not simply retry.
    fn incomplete_request(&self, code: Code) -> Response<UpstreamBody> {
        let detail = match code {
            Code::RequestTimeout => {
                "The request body did not arrive in time. Part of it may have been forwarded."
            }
            _ => "The request body is incomplete or malformed. Part of it may have been forwarded.",
        };
        let answer = code.answer_advising("ask", detail, &self.target.problems);
        answer.map(UpstreamBody::own)
    }

    fn no_response(&self, failure: Failure) -> Response<UpstreamBody> {
        let too_late;
        let (code, detail) = match failure {
            Failure::NotSent => (
                Code::UpstreamUnreachable,
                "Nothing was sent to the upstream. Send the same request again.",
            ),
            Failure::Lost(Reason::Timeout) => {
                let patience = Span(self.target.settings.read_timeout);
                too_late = format!("The upstream did not start its response within {patience}.");
                (Code::UpstreamTimeout, &*too_late)
            }
            Failure::Lost(_) => (
                Code::UpstreamFailed,
                "The upstream closed the connection before it responded.",
            ),
        };
        let answer = code.answer(detail, &self.target.problems);
        answer.map(UpstreamBody::own)
    }

    /// The failure of an upstream that switched protocols without a request: the response is invalid, and says nothing about effects.
    fn unexpected_upgrade(&self) -> Response<UpstreamBody> {
        let detail = "The upstream switched protocols without a request to do so.";
        let answer = Code::UpstreamFailed.answer(detail, &self.target.problems);
        let mut response = answer.map(UpstreamBody::own);
        let failure = Failure::Lost(Reason::Failed);
        response.extensions_mut().insert(failure);
        response
    }
}

/// Why there is no response, as in metrics and spans.
fn reason(lost: &LostExchange) -> &'static str {
    match (lost.client, lost.failure) {
        (Some(code), _) => code.code(),
        (None, Failure::NotSent) => "unreachable",
        (None, Failure::Lost(reason)) => reason.name(),
    }
}
