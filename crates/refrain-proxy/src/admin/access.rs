//! Access control of the admin API.
//!
//! Every program on the machine can reach a loopback address, including browsers, and any web page can make a browser send requests.
//! A page of another site may only link to this one.
//! So `Host` must be a loopback name (after DNS rebinding it is the page's own name), writes to the API need a content
//! type that browsers do not send across sites without a preflight request, forms of the dashboard need a token,
//! and no response allows another origin to read it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority};
use tokio::time::{Instant, sleep, timeout};

use super::{Admin, metrics::RefusedAccess, refusal::Refusal, sessions::Sessions};
use crate::dashboard::refused;

/// Longest time for a response.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Wrong tokens in one minute that are answered at once.
const WRONG_TOKENS_QUICK: u32 = 10;
/// Pause before the answer to each further wrong token. Every connection can thus guess once in this time.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// See everything, change nothing.
    Reader,
    /// Also resolve unknown outcomes, delete records and redrive dead letters.
    Resolver,
}

/// Access rules of one admin listener.
#[derive(Debug)]
pub(crate) struct Access {
    is_loopback: bool,
    /// Whether the listener itself has TLS.
    is_tls: bool,
    /// Further names of a loopback listener.
    hosts: Vec<String>,
    /// Hashes of the tokens. They have equal length and are compared in constant time, so timing reveals nothing.
    tokens: Vec<(blake3::Hash, Role)>,
    /// Part of the names of cookies: browsers share cookies between the ports of a host.
    port: u16,
    pub(crate) sessions: Sessions,
    refused: RefusedAccess,
    wrong_tokens: Mutex<WrongTokens>,
}

/// Wrong tokens in the current minute.
#[derive(Debug)]
struct WrongTokens {
    since: Instant,
    count: u32,
}

impl Access {
    pub(super) fn new(address: SocketAddr, admin: &Admin) -> io::Result<Self> {
        let is_loopback = address.ip().to_canonical().is_loopback();
        let token = admin.token.as_deref();
        let reader = admin.reader_token.as_deref();
        check_tokens(address, &admin.hosts, token, reader)?;
        let resolver = token.map(|it| (blake3::hash(it.as_bytes()), Role::Resolver));
        let reader = reader.map(|it| (blake3::hash(it.as_bytes()), Role::Reader));
        Ok(Self {
            is_loopback,
            is_tls: admin.tls.is_some(),
            hosts: admin.hosts.clone(),
            tokens: resolver.into_iter().chain(reader).collect(),
            port: address.port(),
            sessions: Sessions::new(),
            refused: admin.telemetry.metrics().refused_access().clone(),
            wrong_tokens: Mutex::new(WrongTokens {
                since: Instant::now(),
                count: 0,
            }),
        })
    }

    /// Whether callers must show a token.
    pub(crate) fn needs_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The port that the listener has.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the listener itself has TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Counts a request that was refused for this reason.
    pub(crate) fn count_refused(&self, reason: &'static str) {
        self.refused.get_or_create(&[("reason", reason)]).inc();
    }

    fn check_same_site(&self, request: &Request) -> Result<(), Refusal> {
        let host = host(request);
        if self.is_loopback && !host.as_ref().is_some_and(|host| self.is_own_name(host)) {
            self.count_refused("host");
            let error = "the Host header is not a loopback address, and not in admin_hosts";
            let fix = "send the request to 127.0.0.1 or localhost, or add the name to admin_hosts";
            return Err(Refusal::new(StatusCode::FORBIDDEN, error, fix));
        }
        let headers = request.headers();
        let checked = match *request.method() {
            // Where no token is needed, a page of another site could start searches and take the live streams.
            Method::GET | Method::HEAD if is_own_site(headers) || is_opened(headers) => Ok(()),
            Method::GET | Method::HEAD => Err(other_site()),
            _ => check_origin(headers, host.as_ref()),
        };
        checked.inspect_err(|_| self.count_refused("origin"))
    }

    fn is_own_name(&self, host: &Authority) -> bool {
        let has = |name: &String| name.eq_ignore_ascii_case(host.host());
        is_loopback(host) || self.hosts.iter().any(has)
    }

    /// The role of a token; `None` if it is wrong. After several wrong ones, each further one has to wait.
    pub(crate) async fn role_of(&self, token: &[u8]) -> Option<Role> {
        let shown = blake3::hash(token);
        // Every token is compared, so that the time does not tell which one it is.
        let roles = self
            .tokens
            .iter()
            .map(|(hash, role)| (*hash == shown).then_some(*role));
        let role = roles.fold(None, Option::or);
        if role.is_none() {
            self.count_refused("token-wrong");
            if self.is_guessing() {
                sleep(WRONG_TOKEN_PAUSE).await;
            }
        }
        role
    }

    /// Counts a wrong token; returns whether there were many of them.
    fn is_guessing(&self) -> bool {
        let wrong = self.wrong_tokens.lock();
        let mut wrong = wrong.unwrap_or_else(PoisonError::into_inner);
        if wrong.since.elapsed() >= MINUTE {
            (wrong.since, wrong.count) = (Instant::now(), 0);
        }
        wrong.count = wrong.count.saturating_add(1);
        wrong.count > WRONG_TOKENS_QUICK
    }

    /// The role of a caller that shows its token in the header `Authorization`.
    pub(crate) async fn role_of_bearer(&self, headers: &HeaderMap) -> Result<Role, Refusal> {
        if !self.needs_token() {
            return Ok(Role::Resolver);
        }
        let error = match bearer(headers) {
            Some(shown) => match self.role_of(shown).await {
                Some(role) => return Ok(role),
                None => "the admin token is wrong",
            },
            None => {
                self.count_refused("token-missing");
                "an admin token is required"
            }
        };
        let fix = "send the admin token as Authorization: Bearer";
        Err(Refusal::new(StatusCode::UNAUTHORIZED, error, fix))
    }

    /// Rejects a caller that may only read.
    pub(crate) fn check_resolver(&self, role: Role) -> Result<(), Refusal> {
        if role == Role::Resolver {
            return Ok(());
        }
        self.count_refused("role");
        let error = "the reader token may not change anything";
        let fix = "use the admin token, REFRAIN_ADMIN_TOKEN of the proxy";
        Err(Refusal::new(StatusCode::FORBIDDEN, error, fix))
    }
}

/// Checks the admin token and the token that only reads, for a listener on this address.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if a token is blank, if a token is missing on an address that is not a loopback one,
/// or with further host names, or if the token that only reads stands alone or equals the other one.
pub fn check_tokens(
    address: SocketAddr,
    hosts: &[String],
    token: Option<&str>,
    reader: Option<&str>,
) -> io::Result<()> {
    let mut all = [token, reader].into_iter().flatten();
    if all.any(|it| it.trim().is_empty()) {
        return Err(invalid(
            "the admin token is empty; set a token, or leave it unset".into(),
        ));
    }
    if token.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(invalid(format!(
            "the admin address {address} is reachable from other machines and needs a token; \
             set REFRAIN_ADMIN_TOKEN or REFRAIN_ADMIN_TOKEN_FILE, or listen on 127.0.0.1"
        )));
    }
    if token.is_none() && !hosts.is_empty() {
        let message = "`admin_hosts` is for a proxy in front of the admin listener and needs a token; \
                       set REFRAIN_ADMIN_TOKEN or REFRAIN_ADMIN_TOKEN_FILE, or leave it out";
        return Err(invalid(message.into()));
    }
    if reader.is_some() && (token.is_none() || token == reader) {
        let message = "REFRAIN_ADMIN_READER_TOKEN needs REFRAIN_ADMIN_TOKEN with another value; \
                       set both, or unset REFRAIN_ADMIN_READER_TOKEN";
        return Err(invalid(message.into()));
    }
    Ok(())
}

/// Rejects requests that another site may have caused, and limits the time of every response.
pub(super) async fn reject_cross_site(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers().clone();
    let mut response = match access.check_same_site(&request) {
        Err(refusal) => refused(refusal, &headers),
        Ok(()) => match timeout(ANSWER_MAX, next.run(request)).await {
            Ok(response) => response,
            Err(_) => refused(too_slow(), &headers),
        },
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// Rejects API requests without a token, if one is set, and writes that need another token or are not JSON.
pub(super) async fn require_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = access.role_of_bearer(request.headers()).await;
    // Looking up a record is a POST, because its request may be long.
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD)
        || request.uri().path() == "/api/find";
    match checked.and_then(|role| {
        if is_read {
            Ok(())
        } else {
            access.check_resolver(role)
        }
    }) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Rejects API requests whose body is not JSON, which forms of other sites cannot send.
pub(super) async fn require_json(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match check_type(&request) {
        Err(refusal) if !is_read => {
            access.count_refused("content-type");
            refusal.into_response()
        }
        _ => next.run(request).await,
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn too_slow() -> Refusal {
    let error = format!("there was no response within {} s", ANSWER_MAX.as_secs());
    let fix = "check that the store and, for workers, the broker respond, and retry";
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
    let is_own = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|it| it.split_once("://"));
        origin
            .zip(host)
            .is_some_and(|((_, from), host)| from == host.as_str())
    };
    let origin = headers.get(header::ORIGIN).is_none_or(is_own);
    match origin && is_own_site(headers) {
        true => Ok(()),
        false => Err(other_site()),
    }
}

/// Whether a browser sends the request for this site or for its user; programs do not say.
fn is_own_site(headers: &HeaderMap) -> bool {
    const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let site = headers.get(SEC_FETCH_SITE);
    site.is_none_or(|site| site == "same-origin" || site == "none")
}

/// Whether a browser opens the page in a tab, as for a link in a message.
fn is_opened(headers: &HeaderMap) -> bool {
    let has = |name, value| {
        headers
            .get(HeaderName::from_static(name))
            .is_some_and(|it| it == value)
    };
    has("sec-fetch-mode", "navigate") && has("sec-fetch-dest", "document")
}

fn other_site() -> Refusal {
    let error = "the request comes from a web page of another site";
    let fix = "send it from a program, or from a page of this address";
    Refusal::new(StatusCode::FORBIDDEN, error, fix)
}

/// Whether the body is JSON, or absent.
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

/// The token of the header `Authorization`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, shown) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(shown.trim_ascii())
}
