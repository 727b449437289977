//! Access control of the admin API.
//!
//! Every program on the machine can reach a loopback address, including browsers, and any web page can make a browser send requests.
//! So `Host` must be a loopback name (after DNS rebinding it is the page's own name), writes need a content type
//! that browsers do not send across sites without a preflight request, and no response allows another origin to read it.

use std::{io, net::IpAddr, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority};
use tokio::time::timeout;

use super::refusal::Refusal;

/// Longest time for a response.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Access rules of the admin API.
#[derive(Debug)]
pub(super) struct Access {
    is_loopback: bool,
    /// Hash of the token. Hashes have equal length and are compared in constant time, so timing reveals nothing.
    token: Option<blake3::Hash>,
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: Option<&str>) -> io::Result<Self> {
        let is_loopback = address.ip().to_canonical().is_loopback();
        if token.is_some_and(|token| token.trim().is_empty()) {
            return Err(invalid(
                "the admin token is empty; set a token, or leave it unset".into(),
            ));
        }
        if !is_loopback && token.is_none() {
            return Err(invalid(format!(
                "the admin address {address} is reachable from other machines, and no token is set; \
                 set a token, or listen on 127.0.0.1"
            )));
        }
        Ok(Self {
            is_loopback,
            token: token.map(|token| blake3::hash(token.as_bytes())),
        })
    }

    fn check_same_site(&self, request: &Request) -> Result<(), Refusal> {
        let host = host(request);
        if self.is_loopback && !host.as_ref().is_some_and(is_loopback) {
            let error = "the Host header is not a loopback address";
            let fix = "send the request to http://127.0.0.1 or http://localhost";
            return Err(Refusal::new(StatusCode::FORBIDDEN, error, fix));
        }
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(());
        }
        check_origin(request.headers(), host.as_ref())?;
        check_type(request)
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        match bearer(headers) {
            Some(shown) if blake3::hash(shown) == *token => Ok(()),
            shown => {
                let error = match shown {
                    Some(_) => "the admin token is wrong",
                    None => "an admin token is required",
                };
                let fix = "send the admin token as Authorization: Bearer";
                Err(Refusal::new(StatusCode::UNAUTHORIZED, error, fix))
            }
        }
    }
}

/// Rejects requests that another site may have caused, and limits the time of every response.
pub(super) async fn reject_cross_site(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match access.check_same_site(&request) {
        Err(refusal) => refusal.into_response(),
        Ok(()) => match timeout(ANSWER_MAX, next.run(request)).await {
            Ok(response) => response,
            Err(_) => too_slow().into_response(),
        },
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// Rejects requests without the token, if one is set.
pub(super) async fn require_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match access.check_token(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn too_slow() -> Refusal {
    let error = "the store did not respond in time";
    let fix = "check that the store is reachable, and retry";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, fix)
}

/// The host that the request names; `None` unless there is exactly one.
fn host(request: &Request) -> Option<Authority> {
    if let Some(authority) = request.uri().authority() {
        return Some(authority.clone());
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none())?;
    host.as_bytes().try_into().ok()
}

fn is_loopback(host: &Authority) -> bool {
    let name = host.host();
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || literal
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Rejects requests that a browser marks as coming from another origin.
fn check_origin(headers: &HeaderMap, host: Option<&Authority>) -> Result<(), Refusal> {
    const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let is_own = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|it| it.split_once("://"));
        origin
            .zip(host)
            .is_some_and(|((_, from), host)| from == host.as_str())
    };
    let origin = headers.get(header::ORIGIN).is_none_or(is_own);
    let site = headers
        .get(SEC_FETCH_SITE)
        .is_none_or(|site| site == "same-origin" || site == "none");
    if origin && site {
        return Ok(());
    }
    let error = "the request comes from a web page of another site";
    let fix = "send it from a program, or from a page of this address";
    Err(Refusal::new(StatusCode::FORBIDDEN, error, fix))
}

/// Requires JSON, which forms of other sites cannot send.
fn check_type(request: &Request) -> Result<(), Refusal> {
    use http_body::Body as _;
    let kind = request.headers().get(header::CONTENT_TYPE);
    let essence = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    let is_json = essence.is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"));
    if is_json || kind.is_none() && request.body().is_end_stream() {
        return Ok(());
    }
    let error = "the Content-Type of the request is not JSON";
    let fix = "send Content-Type: application/json";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error, fix))
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, shown) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(shown.trim_ascii())
}
