//! Sends a request on to the upstream, and brings back its answer or the truth about why there is none.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use refrain::{
    Fence,
    http::{Body, Code, Failure},
    policy::{ProxySettings, Settings, units::Span},
    record::Reason,
};
use tower_service::Service;

use crate::{
    connect::Connector,
    headers::{self, Visible},
    outgoing::Outgoing,
    pool::{Lost, Pool},
    server::StartError,
    tunnel,
    upstream_body::UpstreamBody,
};

/// The upstream, and everything that all threads know about it.
#[derive(Clone)]
pub struct Target {
    connector: Connector,
    visible: Visible,
    settings: ProxySettings,
    /// What the `type` of a problem starts with.
    problems: Arc<str>,
}

impl Target {
    /// The upstream that the settings name.
    ///
    /// # Errors
    /// When there is none, or it needs TLS and this machine has nobody to trust.
    pub fn new(settings: &Settings) -> Result<Self, StartError> {
        let Some(upstream) = &settings.upstream else {
            return Err(StartError::NoUpstream);
        };
        let (scheme, authority) = upstream.split_once("://").unwrap_or(("http", upstream));
        let connect = |error| StartError::Upstream {
            url: upstream.clone(),
            error,
        };
        let patience = settings.proxy.connect_timeout;
        let connector = Connector::new(scheme == "https", authority, patience).map_err(connect)?;
        let host = HeaderValue::from_str(authority).map_err(|_| StartError::NoUpstream)?;
        Ok(Self {
            connector,
            visible: Visible {
                host: settings.proxy.host,
                upstream: host,
            },
            settings: settings.proxy,
            problems: settings.problems.as_str().into(),
        })
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({:?})", self.visible.upstream)
    }
}

/// The service that forwards, for one client and with one thread's connections.
#[derive(Clone)]
pub struct Forward {
    target: Arc<Target>,
    pool: Arc<Pool>,
    client: Option<IpAddr>,
}

impl Forward {
    /// A service with connections of its own, for requests that come from no client.
    #[must_use]
    pub fn new(target: &Arc<Target>) -> Self {
        Self {
            target: target.clone(),
            pool: Pool::new(target.connector.clone(), &target.settings),
            client: None,
        }
    }

    /// The same service for a client.
    pub(crate) fn of(&self, client: IpAddr) -> Self {
        Self {
            client: Some(client),
            ..self.clone()
        }
    }

    pub(crate) fn sweep(&self) {
        self.pool.sweep();
    }
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Forward").field(&self.client).finish()
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
        let forward = self.clone();
        let request = request.map(Outgoing::from);
        Box::pin(async move { Ok(forward.forward(request).await) })
    }
}

impl Forward {
    async fn forward(self, request: Request<Outgoing>) -> Response<UpstreamBody> {
        // The layer sees to the times of what it guards.
        let is_guarded = request.extensions().get::<Fence>().is_some();
        let stall = (!is_guarded).then_some(self.target.settings.read_timeout);
        let (mut head, mut body) = request.into_parts();
        if head.method == Method::CONNECT {
            return UpstreamBody::problem(
                StatusCode::NOT_IMPLEMENTED,
                "Tunnels are not opened here.",
            );
        }
        let upgrade = match is_guarded {
            true => None,
            false => tunnel::wanted(&mut head),
        };
        let (token, tunnel) = upgrade.unzip();
        headers::to_upstream(&mut head, &self.target.visible, self.client, token);
        let movement = stall.map(|patience| (patience, body.watch()));
        let sending = self.pool.send(Request::from_parts(head, body));
        let sent = match movement {
            None => sending.await,
            Some((patience, movement)) => match movement.or_still(patience, sending).await {
                Some(sent) => sent,
                None => return self.too_late(patience),
            },
        };
        let (mut response, line) = match sent {
            Ok(answered) => answered,
            Err(lost) => return self.lost(&lost),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return match tunnel {
                Some(client) => tunnel::open(client, response),
                None => self.unasked(),
            };
        }
        headers::to_client(response.headers_mut());
        // Which version the upstream speaks is between it and us.
        *response.version_mut() = Version::HTTP_11;
        response.map(|incoming| UpstreamBody::of(incoming, self.pool, line, stall))
    }

    /// The layer makes its own answer of the failure; who is not guarded gets this one.
    fn lost(&self, lost: &Lost) -> Response<UpstreamBody> {
        if lost.is_clients_fault {
            let mut response = UpstreamBody::problem(
                StatusCode::BAD_REQUEST,
                "The body of the request is broken off, or its framing is.",
            );
            response.extensions_mut().insert(lost.failure);
            return response;
        }
        tracing::warn!(why = %lost.why, "no answer from the upstream");
        let mut response = match lost.failure {
            Failure::NotSent => {
                let detail = "Nothing was sent. Send the same request again.";
                let problem = Code::UpstreamUnreachable.answer(detail, &self.target.problems);
                problem.map(UpstreamBody::own)
            }
            Failure::Lost(_) => UpstreamBody::problem(
                StatusCode::BAD_GATEWAY,
                "The upstream broke off before it answered.",
            ),
        };
        response.extensions_mut().insert(lost.failure);
        response
    }

    /// The upstream switched protocols though nobody asked: that is no answer, and says nothing about effects.
    fn unasked(&self) -> Response<UpstreamBody> {
        let detail = "The upstream switched protocols unasked.";
        let mut response = UpstreamBody::problem(StatusCode::BAD_GATEWAY, detail);
        let failure = Failure::Lost(Reason::Failed);
        response.extensions_mut().insert(failure);
        response
    }

    fn too_late(&self, patience: Duration) -> Response<UpstreamBody> {
        let patience = Span(patience);
        let detail = format!("The upstream did not begin to answer within {patience}.");
        let mut response = UpstreamBody::problem(StatusCode::GATEWAY_TIMEOUT, &detail);
        let failure = Failure::Lost(Reason::Timeout);
        response.extensions_mut().insert(failure);
        response
    }
}
