//! Delivers a message to a service by POST, one request for each attempt, and derives the outcome from the response.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
    response,
};
use http_body_util::{BodyExt as _, Empty, Limited};
use refrain::{
    Outcome,
    consume::{Failure, Job, Message},
    http::{Body, Failure as Lost, Refusal},
    policy::{Settings, WorkerSettings, units::Span},
};
use refrain_proxy::{Forward, StartError, Target, UpstreamBody, admin::Metrics};
use tower_service::Service as _;

/// The most bytes of a response that are read, so that its connection can be reused.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The most bytes of an error response in the history of a dead letter.
const REASON_BYTES_MAX: usize = 300;
/// The longest `Retry-After` that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// Headers with which the worker describes the message and the attempt to the target.
const WORKER: HeaderName = HeaderName::from_static("refrain-worker");
const SUBJECT: HeaderName = HeaderName::from_static("refrain-subject");
const ATTEMPT: HeaderName = HeaderName::from_static("refrain-attempt");
const RECORD: HeaderName = HeaderName::from_static("refrain-record");
const FENCE: HeaderName = HeaderName::from_static("refrain-fence");
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Message headers that are not forwarded: they would frame, route or authorise the request, or the worker sets them itself.
const OURS: [&str; 14] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "authorization",
    "cookie",
    "idempotency-key",
];

/// The service to which one worker's messages are delivered.
#[derive(Debug, Clone)]
pub(super) struct Delivery {
    forward: Forward,
    uri: Uri,
    worker: HeaderValue,
    /// The credential for the service, from the settings and never from a message.
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl Delivery {
    pub(super) fn new(
        settings: &Settings,
        worker: &WorkerSettings,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let (origin, path) = split(worker.deliver.as_str());
        let mut settings = settings.clone();
        settings.upstream = Some(origin.into());
        let target = Arc::new(Target::new(&settings)?);
        target.count_errors(metrics);
        let authorization = worker.authorization.as_ref().map(|it| {
            // Validated when the file was parsed.
            let mut value =
                HeaderValue::from_str(it.header()).map_err(|_| StartError::NoUpstream)?;
            value.set_sensitive(true);
            Ok::<_, StartError>(value)
        });
        let authorization = authorization.transpose()?;
        Ok(Self {
            forward: Forward::new(&target),
            uri: path.parse().map_err(|_| StartError::NoUpstream)?,
            // Validated when the file was parsed.
            worker: HeaderValue::from_str(&worker.name).map_err(|_| StartError::NoUpstream)?,
            timeout: worker.terms.timeout,
            authorization,
        })
    }

    /// Makes one attempt.
    pub(super) async fn deliver(&self, job: Job) -> Result<Outcome, Failure> {
        let request = self.build_request(&job);
        let mut forward = self.forward.clone();
        let called = async {
            let Ok(response) = forward.call(request).await;
            read_outcome(response).await
        };
        match tokio::time::timeout(self.timeout, called).await {
            Ok(ended) => ended,
            Err(_) => {
                let timeout = Span(self.timeout);
                Err(Failure::retry(format!("no response within {timeout}")))
            }
        }
    }

    fn build_request(&self, job: &Job) -> Request<Body<Empty<Bytes>>> {
        // A granted body: `deliver` applies the timeout itself, and no upgrade is allowed.
        let body = Body::full(job.message.payload.clone()).granted();
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        pass_on(&job.message, headers);
        headers.insert(WORKER, self.worker.clone());
        if let Some(value) = &self.authorization {
            headers.insert(header::AUTHORIZATION, value.clone());
        }
        let told = [
            (KEY, job.key.as_str().to_owned()),
            (ATTEMPT, job.attempt.to_string()),
            (RECORD, job.record.to_string()),
            (FENCE, job.fence.to_string()),
            (SUBJECT, job.message.subject.clone()),
        ];
        for (name, text) in told {
            // A subject that is not a valid header value is left out.
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(name, value);
            }
        }
        request
    }
}

/// Splits a URL into scheme and authority, and the rest.
fn split(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    match url[start..].find(['/', '?']) {
        Some(at) => url.split_at(start + at),
        None => (url, "/"),
    }
}

/// Copies the message's headers to the request, where they are valid in HTTP.
fn pass_on(message: &Message, headers: &mut HeaderMap) {
    let content_type = message.content_type.as_deref();
    let content_type = content_type.and_then(|text| HeaderValue::from_str(text).ok());
    if let Some(value) = content_type {
        headers.insert(header::CONTENT_TYPE, value);
    }
    for (name, value) in &message.headers {
        let lower = name.to_ascii_lowercase();
        if lower == "content-type" && !headers.contains_key(header::CONTENT_TYPE) {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(header::CONTENT_TYPE, value);
            }
            continue;
        }
        if OURS.contains(&lower.as_str()) || lower.starts_with("refrain-") {
            continue;
        }
        let pair = (
            HeaderName::from_bytes(lower.as_bytes()),
            HeaderValue::from_bytes(value),
        );
        if let (Ok(name), Ok(value)) = pair {
            headers.append(name, value);
        }
    }
}

/// The outcome of a response: 2xx is handled; 4xx is rejected, except refusals for now; anything else is retried.
async fn read_outcome(response: Response<UpstreamBody>) -> Result<Outcome, Failure> {
    if let Some(lost) = response.extensions().get::<Lost>() {
        return Err(match *lost {
            Lost::NotSent => Failure::retry("cannot connect to the target").without_effect(),
            Lost::Lost(_) => Failure::retry("the target closed the connection before it responded"),
        });
    }
    let (head, body) = response.into_parts();
    let read = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    if head.status.is_success() {
        // A truncated success is still one, because its status arrived.
        return Ok(Outcome::new(head.status.as_u16(), ""));
    }
    Err(failure(
        &head,
        &read.map(|whole| whole.to_bytes()).unwrap_or_default(),
    ))
}

/// The failure for a response without success.
fn failure(head: &response::Parts, said: &[u8]) -> Failure {
    let reason = format!(
        "the target responded {}{}",
        head.status.as_u16(),
        excerpt(said)
    );
    let later = match retry_after(&head.headers) {
        Some(delay) => Failure::retry_after(delay, reason.clone()),
        None => Failure::retry(reason.clone()),
    };
    match (Refusal::of(head, said), head.status) {
        (Some(Refusal::Later), _) => later.without_effect(),
        // The guarantee decides, as after a lost response.
        (Some(Refusal::Unknown(_)), _) => later,
        // The target refused it before executing.
        (
            None,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS,
        ) => later.without_effect(),
        (None, status) if status.is_client_error() => Failure::reject(reason),
        (None, _) => later,
    }
}

/// The beginning of a response body, on one line.
fn excerpt(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[..said.len().min(REASON_BYTES_MAX)]);
    let words: Vec<_> = text.split_whitespace().collect();
    match words.is_empty() {
        true => String::new(),
        false => format!(": {}", words.join(" ")),
    }
}

/// `Retry-After` in seconds, or as a date relative to the `Date` of the same response, because clocks differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let after = text(header::RETRY_AFTER)?;
    let time = match after.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = |text: &str| httpdate::parse_http_date(text).ok();
            let now = date(text(header::DATE)?)?;
            date(after)?.duration_since(now).unwrap_or_default()
        }
    };
    Some(time.min(RETRY_AFTER_MAX))
}
