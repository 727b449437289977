//! `Replied`: Refrain's own responses, RFC 9457 problems that say what happened and what to do next.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::{
    BodyError, Decision,
    body::{Body, add_record},
    capture,
};
use crate::{
    Error, Operation, RecordId,
    outcome::Outcome,
    record::{Doubt, Reason},
};

/// Default path of the pages that the `type` of problems points to.
pub const PROBLEMS_PATH: &str = "/.well-known/refrain/problems/";

/// Challenge to a client whose token is missing or invalid (RFC 6750).
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");

/// Kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The first request with the key is still running.
    InFlight,
    /// The key was used for another request.
    KeyReused,
    /// The operation needs a key.
    KeyMissing,
    /// The key is malformed, or its header is sent twice.
    KeyInvalid,
    /// The operation may or may not have taken effect.
    OutcomeUnknown,
    /// The upstream is unreachable; nothing was sent.
    UpstreamUnreachable,
    /// The outcome is known; its body was too large to keep.
    BodyNotKept,
    /// The key was used before; its outcome is past retention.
    KeyExpired,
    /// The key belongs to another credential.
    CredentialChanged,
    /// The store did not answer, or the record is damaged.
    StoreUnavailable,
    /// The request body is over the cap.
    RequestTooLarge,
    /// The signature is missing or invalid.
    SignatureInvalid,
    /// The token is missing or invalid.
    TokenInvalid,
    /// It could not be confirmed who the caller is.
    CallerUnconfirmed,
    /// The memory budget for bodies is used up.
    OverBudget,
    /// The request is malformed or ambiguous.
    RequestMalformed,
    /// The client took too long to send the request.
    RequestTimeout,
    /// The target is over the cap.
    TargetTooLong,
    /// The head is over a cap.
    HeadTooLarge,
    /// The method is not forwarded.
    MethodUnsupported,
    /// An unguarded request was sent, and the connection failed before a response.
    UpstreamFailed,
    /// An unguarded request was sent, and no response came in time.
    UpstreamTimeout,
}

impl Code {
    /// All codes.
    pub const ALL: [Self; 22] = [
        Self::InFlight,
        Self::KeyReused,
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::OutcomeUnknown,
        Self::UpstreamUnreachable,
        Self::BodyNotKept,
        Self::KeyExpired,
        Self::CredentialChanged,
        Self::StoreUnavailable,
        Self::RequestTooLarge,
        Self::SignatureInvalid,
        Self::TokenInvalid,
        Self::CallerUnconfirmed,
        Self::OverBudget,
        Self::RequestMalformed,
        Self::RequestTimeout,
        Self::TargetTooLong,
        Self::HeadTooLarge,
        Self::MethodUnsupported,
        Self::UpstreamFailed,
        Self::UpstreamTimeout,
    ];

    /// A problem of this kind as a response, for services outside the layer.
    /// `base` is the base of the `type` of the problem.
    #[must_use]
    pub fn answer(self, detail: &str, base: &str) -> Response<Bytes> {
        self.answer_advising(self.advice(), detail, base)
    }

    /// As [`answer`](Self::answer), with another advice than the default of this kind.
    #[must_use]
    pub fn answer_advising(
        self,
        advice: &'static str,
        detail: &str,
        base: &str,
    ) -> Response<Bytes> {
        let problem = Problem::new(self, detail).with_advice(advice);
        let (head, _) = problem.response::<()>(base).into_parts();
        Response::from_parts(head, problem.json(&problem.page(base)))
    }

    /// The `code` of the problem, which is also the name of its page.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::KeyReused => "key-reused",
            Self::KeyMissing => "key-missing",
            Self::KeyInvalid => "key-invalid",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::UpstreamUnreachable => "upstream-unreachable",
            Self::BodyNotKept => "body-not-kept",
            Self::KeyExpired => "key-expired",
            Self::CredentialChanged => "credential-changed",
            Self::StoreUnavailable => "store-unavailable",
            Self::RequestTooLarge => "request-too-large",
            Self::SignatureInvalid => "signature-invalid",
            Self::TokenInvalid => "token-invalid",
            Self::CallerUnconfirmed => "caller-unconfirmed",
            Self::OverBudget => "over-budget",
            Self::RequestMalformed => "request-malformed",
            Self::RequestTimeout => "request-timeout",
            Self::TargetTooLong => "target-too-long",
            Self::HeadTooLarge => "head-too-large",
            Self::MethodUnsupported => "method-unsupported",
            Self::UpstreamFailed => "upstream-failed",
            Self::UpstreamTimeout => "upstream-timeout",
        }
    }

    /// The documentation page, in Markdown.
    #[must_use]
    pub fn page(self) -> &'static str {
        macro_rules! page {
            ($name:literal) => {
                include_str!(concat!("../../problems/", $name, ".md"))
            };
        }
        match self {
            Self::InFlight => page!("in-flight"),
            Self::KeyReused => page!("key-reused"),
            Self::KeyMissing => page!("key-missing"),
            Self::KeyInvalid => page!("key-invalid"),
            Self::OutcomeUnknown => page!("outcome-unknown"),
            Self::UpstreamUnreachable => page!("upstream-unreachable"),
            Self::BodyNotKept => page!("body-not-kept"),
            Self::KeyExpired => page!("key-expired"),
            Self::CredentialChanged => page!("credential-changed"),
            Self::StoreUnavailable => page!("store-unavailable"),
            Self::RequestTooLarge => page!("request-too-large"),
            Self::SignatureInvalid => page!("signature-invalid"),
            Self::TokenInvalid => page!("token-invalid"),
            Self::CallerUnconfirmed => page!("caller-unconfirmed"),
            Self::OverBudget => page!("over-budget"),
            Self::RequestMalformed => page!("request-malformed"),
            Self::RequestTimeout => page!("request-timeout"),
            Self::TargetTooLong => page!("target-too-long"),
            Self::HeadTooLarge => page!("head-too-large"),
            Self::MethodUnsupported => page!("method-unsupported"),
            Self::UpstreamFailed => page!("upstream-failed"),
            Self::UpstreamTimeout => page!("upstream-timeout"),
        }
    }

    /// The `title` of the problem.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::InFlight => "The first request with this key is still running",
            Self::KeyReused => "This key was used for another request",
            Self::KeyMissing => "This operation needs an idempotency key",
            Self::KeyInvalid => "The idempotency key is not valid",
            Self::OutcomeUnknown => "It is not known whether the operation took effect",
            Self::UpstreamUnreachable => "The service could not be reached; nothing was sent",
            Self::BodyNotKept => "The operation has ended; its response was too large to keep",
            Self::KeyExpired => "This key was used before; its outcome is no longer kept",
            Self::CredentialChanged => "This key was used with another credential",
            Self::StoreUnavailable => "The record of this key cannot be read",
            Self::RequestTooLarge => "The request body is too large",
            Self::SignatureInvalid => "The signature of the request is missing or invalid",
            Self::TokenInvalid => "The token of the request is missing or invalid",
            Self::CallerUnconfirmed => "It could not be confirmed who sent the request",
            Self::OverBudget => "Too many request bodies are held in memory",
            Self::RequestMalformed => "The request is malformed",
            Self::RequestTimeout => "The request did not arrive in time",
            Self::TargetTooLong => "The target of the request is too long",
            Self::HeadTooLarge => "The head of the request is too large",
            Self::MethodUnsupported => "The method is not supported",
            Self::UpstreamFailed => "The service closed the connection before it responded",
            Self::UpstreamTimeout => "The service did not respond in time",
        }
    }

    /// The default status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::InFlight | Self::OutcomeUnknown | Self::BodyNotKept | Self::CredentialChanged => {
                StatusCode::CONFLICT
            }
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::KeyMissing | Self::KeyInvalid | Self::RequestMalformed => StatusCode::BAD_REQUEST,
            Self::UpstreamUnreachable | Self::UpstreamFailed => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::KeyExpired => StatusCode::GONE,
            Self::StoreUnavailable | Self::OverBudget | Self::CallerUnconfirmed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::MethodUnsupported => StatusCode::NOT_IMPLEMENTED,
            Self::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SignatureInvalid | Self::TokenInvalid => StatusCode::UNAUTHORIZED,
        }
    }

    /// The default advice to the client: `wait`, `reuse-key`, `new-key` or `ask`.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::InFlight | Self::OverBudget => "wait",
            Self::UpstreamUnreachable
            | Self::StoreUnavailable
            | Self::RequestTimeout
            | Self::TokenInvalid
            | Self::CallerUnconfirmed => "reuse-key",
            Self::KeyReused
            | Self::KeyMissing
            | Self::KeyInvalid
            | Self::RequestTooLarge
            | Self::RequestMalformed
            | Self::TargetTooLong
            | Self::HeadTooLarge
            | Self::MethodUnsupported => "new-key",
            // A request with a new key might take effect twice: an operator must check first.
            Self::OutcomeUnknown
            | Self::BodyNotKept
            | Self::KeyExpired
            | Self::CredentialChanged
            | Self::SignatureInvalid
            | Self::UpstreamFailed
            | Self::UpstreamTimeout => "ask",
        }
    }
}

impl From<Code> for Decision {
    fn from(code: Code) -> Self {
        match code {
            Code::InFlight => Self::InFlight,
            Code::KeyReused => Self::KeyReused,
            Code::KeyMissing => Self::KeyMissing,
            Code::KeyInvalid => Self::KeyInvalid,
            Code::CredentialChanged => Self::CredentialChanged,
            Code::OutcomeUnknown => Self::OutcomeUnknown,
            Code::UpstreamUnreachable => Self::UpstreamUnreachable,
            Code::BodyNotKept => Self::BodyNotKept,
            Code::KeyExpired => Self::KeyExpired,
            Code::StoreUnavailable => Self::StoreUnavailable,
            Code::RequestTooLarge => Self::RequestTooLarge,
            Code::SignatureInvalid => Self::SignatureInvalid,
            Code::TokenInvalid => Self::TokenInvalid,
            Code::CallerUnconfirmed => Self::CallerUnconfirmed,
            Code::OverBudget => Self::OverBudget,
            Code::RequestMalformed
            | Code::TargetTooLong
            | Code::HeadTooLarge
            | Code::MethodUnsupported => Self::RequestMalformed,
            Code::RequestTimeout => Self::RequestTimeout,
            Code::UpstreamFailed | Code::UpstreamTimeout => Self::Failed,
        }
    }
}

/// A problem response before it is encoded.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    code: Code,
    status: StatusCode,
    detail: String,
    advice: &'static str,
    retry_after: Option<Duration>,
    /// The outcome whose body was not kept.
    original: Option<Outcome>,
    /// The record of the request, if its key was claimed.
    record: Option<RecordId>,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: code.status(),
            detail: detail.into(),
            advice: code.advice(),
            retry_after: None,
            original: None,
            record: None,
        }
    }

    pub(super) fn code(&self) -> Code {
        self.code
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Replaces the default advice.
    pub(super) fn with_advice(mut self, advice: &'static str) -> Self {
        self.advice = advice;
        self
    }

    pub(super) fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    pub(super) fn with_original(mut self, outcome: Outcome) -> Self {
        self.original = Some(outcome);
        self
    }

    pub(super) fn with_record(mut self, record: RecordId) -> Self {
        self.record = Some(record);
        self
    }

    /// The problem as an outcome, for duplicates that wait for the same request.
    pub(super) fn outcome(&self, base: &str) -> Option<Outcome> {
        capture::answer(&self.response::<()>(base), false)
    }

    fn page(&self, base: &str) -> String {
        format!("{base}{}", self.code.code())
    }

    /// The problem as a response; `base` is the base of its `type`.
    pub(super) fn response<R>(&self, base: &str) -> Response<Body<R>> {
        let page = self.page(base);
        let mut response = Response::new(Body::full(self.json(&page)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(link) = HeaderValue::try_from(format!("<{page}>; rel=\"describedby\"")) {
            headers.insert(header::LINK, link);
        }
        if self.code == Code::TokenInvalid {
            headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        if let Some(after) = self.retry_after {
            let seconds = after.as_millis().div_ceil(1_000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(record) = self.record {
            add_record(headers, record);
        }
        let location = self.original.iter().flat_map(Outcome::headers);
        for (_, value) in location.filter(|(name, _)| *name == "location") {
            if let Ok(value) = HeaderValue::from_maybe_shared(value) {
                headers.insert(header::LOCATION, value);
            }
        }
        response
    }

    fn json(&self, page: &str) -> Bytes {
        let mut json = serde_json::json!({
            "type": page,
            "title": self.code.title(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code.code(),
            "advice": self.advice,
        });
        if let Some(original) = &self.original {
            json["original_status"] = original.status().into();
        }
        if let Some(record) = self.record {
            json["record"] = record.to_string().into();
        }
        json.to_string().into()
    }
}

/// The request has no key where one is required.
pub(super) fn no_key(operation: &Operation) -> Problem {
    let sources: Vec<_> = operation.key.iter().map(ToString::to_string).collect();
    let sources = sources.join(" or ");
    let detail = format!("Send a key that is unique to this request: {sources}.");
    Problem::new(Code::KeyMissing, detail)
}

/// The key, or the scope that it belongs to, is invalid.
pub(super) fn invalid_key(error: &Error) -> Problem {
    Problem::new(Code::KeyInvalid, error.to_string())
}

/// The request body could not be read: the client disconnected (then nobody reads the response), sent nothing for too long,
/// or sent malformed framing.
pub(super) fn unreadable(error: &BodyError) -> Problem {
    tracing::debug!(%error, "cannot read a request body");
    let kind = error.downcast_ref().map(io::Error::kind);
    if kind == Some(io::ErrorKind::TimedOut) {
        let detail = "The request body did not arrive in time. Nothing was executed.";
        return Problem::new(Code::RequestTimeout, detail);
    }
    let detail = "The request body is incomplete or malformed. Nothing was executed.";
    Problem::new(Code::RequestMalformed, detail)
}

/// The memory budget for bodies is used up.
pub(super) fn over_budget() -> Problem {
    let detail = "The memory budget for bodies is used up. Nothing was executed. \
                  Send the same request with the same key again.";
    Problem::new(Code::OverBudget, detail).with_retry_after(Duration::from_secs(1))
}

/// The claim failed, because of the store or the receipts.
pub(super) fn no_store() -> Problem {
    unavailable("Nothing was executed. Send the same request with the same key again.")
}

/// The keys of a token are not available, or the upstream did not say whether the caller may see a replay.
pub(super) fn unconfirmed() -> Problem {
    let detail = "Nothing was executed, and nothing was replayed. Send the same request with the same key again.";
    Problem::new(Code::CallerUnconfirmed, detail).with_retry_after(Duration::from_secs(1))
}

/// The operation must be audited, and there is no audit log.
pub(super) fn no_audit_log() -> Problem {
    unavailable("Nothing was executed: the operation must be audited, and there is no audit log.")
}

/// The operation is audited, and the audit log cannot be written.
pub(super) fn unaudited() -> Problem {
    unavailable(
        "Nothing was executed: the audit log cannot be written. Send the same request with the same key again.",
    )
}

fn unavailable(detail: &str) -> Problem {
    Problem::new(Code::StoreUnavailable, detail).with_retry_after(Duration::from_secs(1))
}

/// The `outcome-unknown` problem for the first caller.
pub(super) fn unknown(reason: Reason) -> Problem {
    let status = match reason {
        Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let detail = format!("The operation {}.", describe_reason(reason));
    Problem::new(Code::OutcomeUnknown, detail).with_status(status)
}

/// The `outcome-unknown` problem for a duplicate of a request whose outcome is unknown.
pub(super) fn unknown_before(doubt: &Doubt) -> Problem {
    let reason = describe_reason(doubt.reason);
    Problem::new(Code::OutcomeUnknown, format!("The first request {reason}."))
}

/// Why the outcome is unknown, in words.
fn describe_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Lapsed => "was interrupted before its outcome was stored",
        Reason::Timeout => "did not answer in time",
        Reason::Reset => "lost its connection before it responded",
        Reason::Truncated => "was cut off in the middle of its response",
        Reason::Panicked => "panicked while it was running",
        Reason::Dropped => "was stopped while it was running",
        Reason::Failed => "failed without a response",
    }
}
