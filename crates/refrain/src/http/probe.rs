//! `Claiming`: the policy's `probe`, a request that looks up the outcome of an indeterminate operation.
//! Without a request, for a record of an earlier process, it is made of what the record keeps.
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
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, response};

use super::{
    Failure,
    body::{Body, Carried, Guarded, Share},
    capture::{self, BodyReader},
    layer::LayerState,
};
use crate::{
    Intent, Key, Operation, RecordId, Scope,
    engine::{Finding, Probe, ProbeSource, Unprobed},
    key::{CredentialPart, ScopePart},
    policy::{Match, Mode},
    record::{Doubt, History},
    store::Reading,
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
    pub(super) head: response::Parts,
    pub(super) body: Option<(Bytes, Option<Box<HeaderMap>>)>,
}

/// The headers of a duplicate that a probe carries.
pub(super) fn asked_headers(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    NOT_ASKED.iter().for_each(|name| drop(headers.remove(name)));
    headers
}

/// The request of a probe; `None` if a placeholder has no value. `record` is the identity of the record.
pub(super) fn probe_request(
    probe: &crate::policy::Probe,
    found: &Match,
    key: &Key,
    record: Option<&str>,
    headers: HeaderMap,
) -> Option<Request<Body<Nothing>>> {
    let target = probe.target(|name| match (name, found.value(name), record) {
        ("key", _, _) => Some(key.as_str().as_bytes()),
        ("record", None, Some(record)) => Some(record.as_bytes()),
        (_, value, _) => value,
    })?;
    let request = Request::builder().method(Method::GET).uri(target);
    let mut request = request.body(Body::full(Bytes::new())).ok()?;
    *request.headers_mut() = headers;
    Some(request)
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

/// Sends the policy's `probe`: 2xx is the outcome, 404 means that the operation never happened if the probe may see
/// all that the client sees, anything else says nothing.
pub(super) struct HttpProbe {
    ask: Ask,
    found: Match,
    /// The identity of the record, if the probe names it.
    record: Option<String>,
    /// Headers of the duplicate, so that the probe has its credential.
    headers: HeaderMap,
    /// Whether the probe may see all that the client sees, so that 404 means that the operation never happened.
    trusts_absence: bool,
}

impl HttpProbe {
    /// The probe of a request; `record` is called if the probe names the record.
    pub(super) fn new(
        ask: &Ask,
        found: &Match,
        headers: &HeaderMap,
        record: impl FnOnce() -> RecordId,
    ) -> Self {
        let headers = asked_headers(headers);
        let is_named = found.operation.is_probed_by_record();
        Self {
            ask: ask.clone(),
            found: found.clone(),
            record: is_named.then(|| record().to_string()),
            headers,
            trusts_absence: true,
        }
    }

    fn request(&self, intent: &Intent) -> Option<Request<Body<Nothing>>> {
        let probe = self.found.operation.probe.as_ref()?;
        let (record, headers) = (self.record.as_deref(), self.headers.clone());
        probe_request(probe, &self.found, &intent.key, record, headers)
    }

    async fn send_probe(&self, intent: &Intent) -> Option<Finding> {
        let operation = &self.found.operation;
        let request = self.request(intent)?;
        let ProbeResponse { head, body } = (self.ask)(request, operation.outcome_bytes_max).await?;
        match head.status {
            StatusCode::NOT_FOUND => self.trusts_absence.then_some(Finding::NeverHappened),
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

impl ProbeSource for LayerState {
    fn intent(&self, reading: &Reading, history: &History) -> Option<Result<Intent, Unprobed>> {
        let mut operations = self.policy.operations();
        let operation = operations.find(|it| it.name == history.operation)?;
        if !operation.guarded || operation.mode == Mode::Observe {
            return None;
        }
        let receipts = self.witness(operation).cloned();
        let key = history.key.as_deref().and_then(|key| Key::new(key).ok());
        let probe = match &self.probes {
            Some(ask) if operation.probe.is_some() => {
                let has_key = key.is_some();
                Some(self.resumed_probe(ask, (operation, has_key), reading, history))
            }
            _ => None,
        };
        let probe = match probe {
            Some(Err(why)) if receipts.is_none() => return Some(Err(why)),
            None if receipts.is_none() => return None,
            probe => probe.and_then(Result::ok),
        };
        // A probe that names the key is made only if the key was kept.
        let key = key.unwrap_or_else(|| Key::from(reading.id));
        Some(Ok(Intent {
            terms: operation.terms,
            probe,
            receipts,
            audit: operation
                .is_audited()
                .then(|| operation.name.as_str().into()),
            ..Intent::new(Scope::none(), key)
        }))
    }
}

impl LayerState {
    /// The probe of a record whose request is gone.
    fn resumed_probe(
        &self,
        ask: &Ask,
        (operation, has_key): (&Operation, bool),
        reading: &Reading,
        history: &History,
    ) -> Result<Arc<dyn Probe>, Unprobed> {
        let is_authorized = operation.probe_authorization.is_some();
        let is_anonymous = || {
            let is_nobody = reading.record.credential == Some(self.engine.secret().nobody());
            is_nobody && shows_every_credential(operation)
        };
        if !is_authorized && !is_anonymous() {
            return Err(Unprobed::CredentialNotKept);
        }
        if self.scope.is_some() || !keeps_scope(operation) {
            return Err(Unprobed::ScopeNotKept);
        }
        let names_key = |probe: &crate::policy::Probe| probe.places().any(|place| place == "key");
        if !has_key && operation.probe.as_ref().is_some_and(names_key) {
            return Err(Unprobed::KeyNotKept);
        }
        let found = history
            .request()
            .and_then(|(method, path)| self.policy.find(method, path));
        let found = found.filter(|found| found.operation.name == operation.name);
        let found = found.ok_or(Unprobed::RequestNotKept)?;
        let headers = resumed_headers(operation, history).ok_or(Unprobed::RequestNotKept)?;
        let probe = HttpProbe::new(ask, &found, &headers, || reading.id);
        Ok(Arc::new(HttpProbe {
            // A client may have named itself in a way that the policy does not know, such as a certificate.
            trusts_absence: is_authorized,
            ..probe
        }))
    }
}

/// Whether a request without a known credential had none at all, as far as the policy can tell.
fn shows_every_credential(operation: &Operation) -> bool {
    let usual = CredentialPart::default_list();
    let mut usual = usual.iter();
    usual.all(|part| operation.credential.contains(part))
}

/// Whether a probe has every part of the scope: a service may look for the payment of another tenant without it.
fn keeps_scope(operation: &Operation) -> bool {
    let is_kept = |part: &ScopePart| match part {
        ScopePart::Header(name) => name == header::HOST.as_str(),
        ScopePart::Jwt(_) | ScopePart::TlsSubject => false,
        _ => true,
    };
    operation.scope.iter().all(is_kept)
}

/// The host of the request, and the credential that the policy gives to probes; `None` if the host was not kept:
/// on another host, 404 says nothing.
fn resumed_headers(operation: &Operation, history: &History) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let host = HeaderValue::from_str(history.host.as_deref()?).ok()?;
    headers.insert(header::HOST, host);
    if let Some(authorization) = &operation.probe_authorization {
        let mut value = HeaderValue::from_str(authorization.header()).ok()?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    Some(headers)
}
