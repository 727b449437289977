//! What a response means for a client that may retry.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header};

use crate::clock::Timestamp;

/// Header of a replayed response.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Next action, as in Refrain's own problem responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The first request is still running: retry later, with the same key.
    Wait,
    /// Nothing is known to have happened: retry with the same key.
    ReuseKey,
    /// This key cannot be used for this request.
    NewKey,
    /// It may have taken effect: an operator must check first.
    Ask,
}

/// Problem response that contains advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Next action.
    pub advice: Advice,
    /// Problem code, such as `outcome-unknown`; empty if missing.
    pub code: String,
    /// Human-readable explanation; empty if missing.
    pub detail: String,
}

impl Problem {
    /// Parses the problem of a response, if it has one with a known advice.
    #[must_use]
    pub fn of(response: &Response<Bytes>) -> Option<Self> {
        let kind = response.headers().get(header::CONTENT_TYPE)?.as_bytes();
        let kind = kind.split(|byte| *byte == b';').next()?.trim_ascii();
        let is_problem = kind.eq_ignore_ascii_case(b"application/problem+json");
        if !is_problem || response.status().as_u16() < 400 {
            return None;
        }
        let json: serde_json::Value = serde_json::from_slice(response.body()).ok()?;
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let advice = match json["advice"].as_str()? {
            "wait" => Advice::Wait,
            "reuse-key" => Advice::ReuseKey,
            "new-key" => Advice::NewKey,
            "ask" => Advice::Ask,
            _ => return None,
        };
        Some(Self {
            advice,
            code: text("code"),
            detail: text("detail"),
        })
    }
}

/// What the client does after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// The response is the final outcome.
    Final,
    /// Refused before anything ran, as a retry would be. Final if no earlier attempt can have run.
    Refused,
    /// Retry with the same key.
    Again(Again),
    NewKey,
    Ask,
}

/// How to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    /// Whether this attempt counts towards the limit; waiting for a running request does not.
    pub(super) counts: bool,
    /// Whether this attempt may have taken effect.
    pub(super) may_have_run: bool,
    /// Minimum delay that the server requests.
    pub(super) after: Option<Duration>,
}

/// Classifies a response that arrived at wall-clock time `now`.
pub(super) fn judge(response: &Response<Bytes>, conflict_is_final: bool, now: Timestamp) -> Judged {
    let is_replay = response
        .headers()
        .get(REPLAYED)
        .is_some_and(|it| it == "true");
    let again = |counts, may_have_run| {
        Judged::Again(Again {
            counts,
            may_have_run,
            after: retry_after(response.headers(), now),
        })
    };
    match Problem::of(response).map(|it| (it.advice, it.code)) {
        Some((Advice::NewKey, _)) => return Judged::NewKey,
        Some((Advice::Ask, _)) => return Judged::Ask,
        // A replay is stored on the server: every retry would return the same.
        _ if is_replay => return Judged::Final,
        Some((Advice::Wait, _)) => return again(false, true),
        Some((Advice::ReuseKey, code)) => return again(true, code != "upstream-unreachable"),
        None => {}
    }
    match response.status() {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            again(true, false)
        }
        StatusCode::CONFLICT if !conflict_is_final => again(true, true),
        StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => again(true, true),
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::MISDIRECTED_REQUEST => Judged::Refused,
        _ => Judged::Final,
    }
}

/// Parses `Retry-After`, in seconds or as a date.
///
/// A date is compared with the server's `Date` header if present, else with the local clock.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = since_1970(value)?;
    let server = headers.get(header::DATE).and_then(|it| it.to_str().ok());
    let now = server
        .and_then(since_1970)
        .unwrap_or(Duration::from_millis(now.0));
    Some(until.saturating_sub(now))
}

fn since_1970(date: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(date).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}
