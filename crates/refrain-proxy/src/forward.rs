//! Sends a request on to the upstream, and brings back its answer or the truth about why there is none.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use refrain::{
    http::{Body, Code, Failure},
    policy::{ProxySettings, Settings, units::Span},
    record::Reason,
};
use tower_service::Service;

use crate::{
    connect::Connector,
    headers::{self, Caller, Visible},
    http1::Sending,
    outgoing::Outgoing,
    pool::{Lost, Pool},
    server::StartError,
    tunnel,
    upstream::{Answer, Ask, Head},
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
pub struct Forward(Arc<Way>);

/// From one client to the upstream.
struct Way {
    target: Arc<Target>,
    pool: Arc<Pool>,
    client: Option<Caller>,
}

/// A request as it goes to the upstream.
struct Ready {
    ask: Ask,
    /// The client's side of the tunnel that it asks for.
    tunnel: Option<tunnel::Client>,
    /// Whether an answer that ends with its connection is complete: nobody can tell it from one that was cut.
    trusts_close: bool,
}

impl Forward {
    /// A service with connections of its own, for requests that come from no client.
    #[must_use]
    pub fn new(target: &Arc<Target>) -> Self {
        Self(Arc::new(Way {
            target: target.clone(),
            pool: Pool::new(target.connector.clone(), &target.settings),
            client: None,
        }))
    }

    /// The same service for a client.
    pub(crate) fn of(&self, client: IpAddr) -> Self {
        Self(Arc::new(Way {
            target: self.0.target.clone(),
            pool: self.0.pool.clone(),
            client: Some(Caller::new(client)),
        }))
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

impl Way {
    fn prepare(&self, request: Request<Outgoing>, is_granted: bool) -> Ready {
        // The layer sees to the times of what it guards.
        let patience = (!is_granted).then_some(self.target.settings.read_timeout);
        let (mut head, body) = request.into_parts();
        let upgrade = match is_granted {
            true => None,
            false => tunnel::wanted(&mut head),
        };
        let (token, tunnel) = upgrade.unzip();
        let way = headers::Way {
            visible: &self.target.visible,
            client: self.client.as_ref(),
            upgrade: token,
        };
        let size = match body.is_end_stream() {
            true => Some(0),
            false => body.size_hint().exact(),
        };
        let (bytes, length) = way.to_upstream(&head, size);
        let ask = Ask {
            sending: Some(Sending::new(bytes, length, body)),
            is_to_head: head.method == Method::HEAD,
            patience,
        };
        Ready {
            ask,
            tunnel,
            // What is decided by an answer, a probe's too, must not hang on a cut one. Others see the end for themselves.
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
        mut ready: Ready,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Infallible>> + Send + use<> {
        async move {
            let patience = ready.ask.patience;
            let Answer { head, line } = match self.pool.send(&mut ready.ask).await {
                Ok(answered) => answered,
                Err(lost) => return Ok(self.lost(&lost)),
            };
            let (framing, pool) = (head.framing, head.stays_open.then_some(&self.pool));
            let mut response = response(head);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(match ready.tunnel {
                    Some(client) => tunnel::open(client, response, *line),
                    None => self.unasked(),
                });
            }
            headers::to_client(response.headers_mut());
            let trusts_close = ready.trusts_close || line.is_authenticated();
            let body = UpstreamBody::of(framing, line, pool, patience).trusting(trusts_close);
            Ok(response.map(|()| body))
        }
    }

    /// The layer makes its own answer of the failure; who is not guarded gets this one.
    fn lost(&self, lost: &Lost) -> Response<UpstreamBody> {
        let mut response = match lost.client {
            Some(code) => self.incomplete(code),
            None => {
                tracing::warn!(why = %lost.why, "no answer from the upstream");
                self.unanswered(lost.failure)
            }
        };
        response.extensions_mut().insert(lost.failure);
        response
    }

    /// A part of the request may have been sent on, so that it must not simply be sent again.
    fn incomplete(&self, code: Code) -> Response<UpstreamBody> {
        let detail = match code {
            Code::RequestTimeout => {
                "The body of the request did not come in time. A part of it may have been sent on."
            }
            _ => {
                "The body of the request is broken off, or its framing is. A part of it may have been sent on."
            }
        };
        let answer = code.answer_advising("ask", detail, &self.target.problems);
        answer.map(UpstreamBody::own)
    }

    fn unanswered(&self, failure: Failure) -> Response<UpstreamBody> {
        let too_late;
        let (code, detail) = match failure {
            Failure::NotSent => (
                Code::UpstreamUnreachable,
                "Nothing was sent. Send the same request again.",
            ),
            Failure::Lost(Reason::Timeout) => {
                let patience = Span(self.target.settings.read_timeout);
                too_late = format!("The upstream did not begin to answer within {patience}.");
                (Code::UpstreamTimeout, &*too_late)
            }
            Failure::Lost(_) => (
                Code::UpstreamFailed,
                "The upstream broke off before it answered.",
            ),
        };
        let answer = code.answer(detail, &self.target.problems);
        answer.map(UpstreamBody::own)
    }

    /// The upstream switched protocols though nobody asked: that is no answer, and says nothing about effects.
    fn unasked(&self) -> Response<UpstreamBody> {
        let detail = "The upstream switched protocols unasked.";
        let answer = Code::UpstreamFailed.answer(detail, &self.target.problems);
        let mut response = answer.map(UpstreamBody::own);
        let failure = Failure::Lost(Reason::Failed);
        response.extensions_mut().insert(failure);
        response
    }
}

/// Which version the upstream speaks is between it and us.
fn response(head: Head) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if let Some(reason) = head.reason {
        response.extensions_mut().insert(reason);
    }
    response
}
