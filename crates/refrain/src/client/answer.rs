//! What an answer means for a client that may send again.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header};

use crate::clock::Timestamp;

/// The mark of an answer that is a kept outcome.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What to do next, in the one word that Refrain's own answers have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The first one is still running: ask again later, with the same key.
    Wait,
    /// Nothing is known to have happened: send again, with the same key.
    ReuseKey,
    /// This key cannot be used for this request.
    NewKey,
    /// Somebody has to look first: it may have taken effect.
    Ask,
}

/// A problem answer that says what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What to do.
    pub advice: Advice,
    /// Which problem it is, such as `outcome-unknown`; empty where it does not say.
    pub code: String,
    /// What happened, for people; empty where it does not say.
    pub detail: String,
}

impl Problem {
    /// The problem in an answer, if it is one that says what to do.
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

/// What an answer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is what became of the call.
    Final,
    /// It was refused before anything ran, and would be again: final where nothing can have run before.
    Refused,
    /// To be sent again, with the same key.
    Again(Again),
    NewKey,
    Ask,
}

/// How to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    /// Whether it counts as one of the attempts; waiting for what runs does not.
    pub(super) counts: bool,
    /// Whether this attempt may have taken effect.
    pub(super) may_have_run: bool,
    /// So long the server wants not to be asked.
    pub(super) after: Option<Duration>,
}

/// Judges an answer that came when the wall clock showed `now`.
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
        // What is kept is kept: the same would come again for ever.
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

/// How long `Retry-After` asks for, in seconds or as a date.
///
/// A date is held against the server's own clock where the answer tells it, and against ours where it does not.
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
