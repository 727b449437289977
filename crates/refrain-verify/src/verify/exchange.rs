//! Exchanges for the report: shortened, and without secrets.

use serde::{Deserialize, Serialize};

use super::wire::{Request, Sent};

/// Maximum number of body bytes in a report.
const SHOWN_BYTES_MAX: usize = 2_048;
/// Maximum number of bytes of a header value in a report.
const VALUE_BYTES_MAX: usize = 300;

/// Response line of a message that the broker confirmed.
const PUBLISHED: &str = "published";

/// One request and its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Purpose of the request.
    pub label: String,
    /// Milliseconds since the case began.
    pub at_ms: u64,
    /// Milliseconds until the response was complete or failed.
    pub took_ms: u64,
    /// The request's first line and headers.
    pub request: Vec<String>,
    /// The request's body, truncated if it is long.
    pub request_body: String,
    /// The response's status; `None` if there was no response.
    pub status: Option<u16>,
    /// The response's first line and headers, or why there was no response.
    pub response: Vec<String>,
    /// The response's body, truncated if it is long.
    pub response_body: String,
}

impl Exchange {
    pub(super) fn new(
        label: &str,
        request: &Request,
        sent: &Sent,
        (at_ms, took_ms): (u64, u64),
        secret: &[String],
    ) -> Self {
        let first = format!("{} {}", request.method, request.target);
        let headers = request.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value).into_owned();
            line(name, &value, secret)
        });
        let (response, response_body) = match sent {
            Ok(answer) => {
                let headers = answer.headers.iter();
                let lines = headers.map(|(name, value)| line(name, value, secret));
                let first = format!("HTTP/1.1 {}", answer.status);
                (
                    std::iter::once(first).chain(lines).collect(),
                    body_excerpt(&answer.body),
                )
            }
            Err(lost) => (vec![lost.to_string()], String::new()),
        };
        Self {
            label: label.to_owned(),
            at_ms,
            took_ms,
            request: std::iter::once(first).chain(headers).collect(),
            request_body: body_excerpt(&request.body),
            status: sent.as_ref().ok().map(|answer| answer.status),
            response,
            response_body,
        }
    }
}

impl Exchange {
    /// Records a published message, and whether the broker confirmed it.
    pub(super) fn published(
        label: &str,
        queue: &str,
        headers: &[(String, String)],
        body: &[u8],
        (at_ms, took_ms, is_held): (u64, u64, bool),
    ) -> Self {
        let headers = headers.iter().map(|(name, value)| line(name, value, &[]));
        let said = match is_held {
            true => PUBLISHED,
            false => "the broker rejected it",
        };
        Self {
            label: label.to_owned(),
            at_ms,
            took_ms,
            request: std::iter::once(format!("publish to {queue}"))
                .chain(headers)
                .collect(),
            request_body: body_excerpt(body),
            status: None,
            response: vec![said.into()],
            response_body: String::new(),
        }
    }

    /// Whether it is a message that the broker confirmed.
    pub(super) fn is_published(&self) -> bool {
        self.response.first().is_some_and(|said| said == PUBLISHED)
    }
}

fn line(name: &str, value: &str, secret: &[String]) -> String {
    const SECRET: [&str; 5] = [
        "authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "proxy-authorization",
    ];
    let mut named = SECRET.into_iter().chain(secret.iter().map(String::as_str));
    if !named.any(|secret| secret.eq_ignore_ascii_case(name)) {
        return format!("{name}: {}", beginning(value, VALUE_BYTES_MAX));
    }
    // Keep the scheme, such as `Bearer`, or the name of a cookie.
    let kind = value.find([' ', '=']).map_or("", |at| &value[..=at]);
    format!("{name}: {kind}***")
}

fn body_excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES_MAX)]);
    match body.len() {
        len if len > SHOWN_BYTES_MAX => format!("{text}… ({len} bytes)"),
        _ => text.into_owned(),
    }
}

fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().find(|(at, _)| *at >= most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
