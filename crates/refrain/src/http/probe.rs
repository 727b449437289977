//! The policy's `probe`: asks the service itself what became of an indeterminate operation.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};

use super::{
    Failure,
    body::Body,
    capture::{self, Read},
    service::{Carried, Guarded},
};
use crate::{
    Intent,
    engine::{Finding, Probe},
    policy::Match,
    record::Doubt,
};

/// What belongs to the duplicate alone: to its body, to its connection, or to a part or a version of an answer.
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

/// Asks the inner service: 2xx is the outcome, 404 means that it never happened, anything else says nothing.
pub(super) struct HttpProbe<S, B, R> {
    inner: Mutex<S>,
    found: Match,
    /// Who asks is who sent the duplicate.
    headers: HeaderMap,
    bodies: PhantomData<fn() -> (B, R)>,
}

impl<S, B, R> HttpProbe<S, B, R> {
    pub(super) fn new(inner: S, found: &Match, headers: &HeaderMap) -> Self {
        let mut headers = headers.clone();
        NOT_ASKED.iter().for_each(|name| drop(headers.remove(name)));
        Self {
            inner: Mutex::new(inner),
            found: found.clone(),
            headers,
            bodies: PhantomData,
        }
    }

    fn request(&self, intent: &Intent) -> Option<Request<Body<B>>> {
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

    async fn ask(&self, intent: &Intent) -> Option<Finding>
    where
        S: Guarded<B, R>,
        R: Carried,
    {
        let request = self.request(intent)?;
        let mut inner = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        std::future::poll_fn(|context| inner.poll_ready(context))
            .await
            .ok()?;
        let response = inner.call(request).await.ok()?;
        if response.extensions().get::<Failure>().is_some() {
            return None;
        }
        let operation = &self.found.operation;
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::NOT_FOUND => Some(Finding::NeverHappened),
            status if status.is_success() => {
                let read = capture::read(body, operation.outcome_bytes_max)
                    .await
                    .ok()?;
                let outcome = match &read {
                    Read::Whole(body, trailers) => {
                        capture::outcome(operation, &head, Some(body), trailers.as_ref())
                    }
                    Read::Over(..) => capture::outcome(operation, &head, None, None),
                };
                Some(Finding::Happened(outcome))
            }
            _ => None,
        }
    }
}

impl<S, B, R> Probe for HttpProbe<S, B, R>
where
    S: Guarded<B, R>,
    B: Carried,
    R: Carried,
{
    fn probe<'a>(
        &'a self,
        intent: &'a Intent,
        _doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async { self.ask(intent).await.unwrap_or(Finding::Unknown) })
    }
}

impl<S, B, R> fmt::Debug for HttpProbe<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpProbe({})", self.found.operation.name)
    }
}
