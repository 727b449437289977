//! `Claiming`: the policy's `probe`, a request that looks up the outcome of an indeterminate operation.
//!
//! It is sent to the service set with `RefrainLayer::with_probes`, never to the guarded one:
//! with a router that may be the handler of the operation itself, which would run it.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header, response};

use super::{
    Failure,
    body::{Body, Carried, Guarded, Share},
    capture::{self, BodyReader},
};
use crate::{
    Intent,
    engine::{Finding, Probe},
    policy::Match,
    record::Doubt,
};

/// Headers of the duplicate that the probe does not carry: of its body, its connection, ranges and conditions.
const NOT_ASKED: [HeaderName; 18] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::EXPECT,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::CONNECTION,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
];

/// Sends a probe to a service; resolves to the response, with its body up to the cap.
pub(super) type Ask =
    Arc<dyn Fn(Request<Body<Nothing>>, usize) -> Asking<Option<ProbeResponse>> + Send + Sync>;

type Asking<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An empty body.
pub(super) type Nothing = http_body_util::Empty<Bytes>;

/// Response of the service to a probe; without the body if it is over the cap.
pub(super) struct ProbeResponse {
    head: response::Parts,
    body: Option<(Bytes, Option<Box<HeaderMap>>)>,
}

/// Wraps any service as a target of probes.
pub(super) fn target<S, R>(service: S) -> Ask
where
    S: Guarded<Nothing, R>,
    R: Carried,
{
    let service = Mutex::new(service);
    Arc::new(move |request, bytes_max| {
        let service = service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Box::pin(send_request(service, request, bytes_max))
    })
}

async fn send_request<S, R>(
    mut service: S,
    request: Request<Body<Nothing>>,
    bytes_max: usize,
) -> Option<ProbeResponse>
where
    S: Guarded<Nothing, R>,
    R: Carried,
{
    poll_fn(|context| service.poll_ready(context)).await.ok()?;
    let response = service.call(request).await.ok()?;
    if response.extensions().get::<Failure>().is_some() {
        return None;
    }
    let (head, body) = response.into_parts();
    let reading = BodyReader::new(body, bytes_max, Share::default());
    let (read, rest) = reading.await.ok()?;
    let body = rest.is_none().then_some((read.bytes, read.trailers));
    Some(ProbeResponse { head, body })
}

/// Sends the policy's `probe`: 2xx is the outcome, 404 means that the operation never happened, anything else says nothing.
pub(super) struct HttpProbe {
    ask: Ask,
    found: Match,
    /// Headers of the duplicate, so that the probe has its credential.
    headers: HeaderMap,
}

impl HttpProbe {
    pub(super) fn new(ask: &Ask, found: &Match, headers: &HeaderMap) -> Self {
        let mut headers = headers.clone();
        NOT_ASKED.iter().for_each(|name| drop(headers.remove(name)));
        Self {
            ask: ask.clone(),
            found: found.clone(),
            headers,
        }
    }

    fn request(&self, intent: &Intent) -> Option<Request<Body<Nothing>>> {
        let probe = self.found.operation.probe.as_ref()?;
        let target = probe.target(|name| match name {
            "key" => Some(intent.key.as_str().as_bytes()),
            name => self.found.value(name),
        })?;
        let request = Request::builder().method(Method::GET).uri(target);
        let mut request = request.body(Body::full(Bytes::new())).ok()?;
        *request.headers_mut() = self.headers.clone();
        Some(request)
    }

    async fn send_probe(&self, intent: &Intent) -> Option<Finding> {
        let operation = &self.found.operation;
        let request = self.request(intent)?;
        let ProbeResponse { head, body } = (self.ask)(request, operation.outcome_bytes_max).await?;
        match head.status {
            StatusCode::NOT_FOUND => Some(Finding::NeverHappened),
            status if status.is_success() => {
                let (body, trailers) = match &body {
                    Some((body, trailers)) => (Some(&body[..]), trailers.as_deref()),
                    None => (None, None),
                };
                let outcome = capture::outcome(operation, &head, body, trailers);
                Some(Finding::Happened(outcome))
            }
            _ => None,
        }
    }
}

impl Probe for HttpProbe {
    fn probe<'a>(
        &'a self,
        intent: &'a Intent,
        _doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async { self.send_probe(intent).await.unwrap_or(Finding::Unknown) })
    }
}

impl fmt::Debug for HttpProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpProbe({})", self.found.operation.name)
    }
}
