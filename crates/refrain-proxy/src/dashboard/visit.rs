//! Who asks for a page: sessions, roles, the tokens of forms, and log-in.
//!
//! Two cookies: the session, which has a role, and another one that only binds forms to this browser before there is a
//! session, or where none is needed. A form counts only with the token that belongs to the cookie.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Extension,
    body::to_bytes,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

use super::frame;
use crate::admin::{
    REQUEST_BYTES_MAX,
    access::{Access, Role, bearer},
    refusal::Refusal,
    sessions::random_id,
};

/// Largest form of a visitor who is not logged in.
const LOGIN_BYTES_MAX: usize = 8 << 10;
/// The stream of new requests.
pub(super) const LIVE: &str = "/live";
/// Longest value of a cookie that is looked at.
const COOKIE_LEN_MAX: usize = 128;

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    /// `None` before log-in.
    pub(super) role: Option<Role>,
    /// What each form sends back.
    pub(super) form_token: String,
    /// The id of the session, if there is one.
    session: Option<String>,
    /// A cookie to set.
    new_cookie: Option<String>,
}

impl Visitor {
    /// Recognises the visitor by the session cookie or, for programs, by the header `Authorization`.
    async fn recognise(access: &Access, uri: &Uri, headers: &HeaderMap) -> Result<Self, Refusal> {
        let session = cookie(headers, &session_cookie(access));
        let known = session.as_deref().and_then(|id| match uri.path() {
            // An open page connects again by itself.
            LIVE => access.sessions.role_unused(id),
            _ => access.sessions.role(id),
        });
        let role = match known {
            _ if !access.needs_token() => Some(Role::Resolver),
            Some(role) => Some(role),
            // Another scheme is for the proxy in front of the listener, such as its own log-in.
            None if bearer(headers).is_some() => Some(access.role_of_bearer(headers).await?),
            None => None,
        };
        let session = session.filter(|_| known.is_some() && access.needs_token());
        let (bound, is_new) = match (&session, cookie(headers, &form_cookie(access))) {
            (Some(session), _) => (session.clone(), false),
            (None, Some(known)) => (known, false),
            (None, None) => (random_id(), true),
        };
        Ok(Self {
            role,
            form_token: access.sessions.form_token(&bound),
            session,
            // Lax: a link from a message must not replace the cookie that open pages are bound to.
            new_cookie: is_new
                .then(|| set_cookie(access, &form_cookie(access), &bound, "Lax", headers)),
        })
    }

    /// Whether the visitor may change anything.
    pub(super) fn is_resolver(&self) -> bool {
        self.role == Some(Role::Resolver)
    }

    /// Whether the visitor is still let in: its session has not ended.
    pub(super) fn is_admitted(&self, access: &Access) -> bool {
        let is_open = |id: &String| access.sessions.role_unused(id).is_some();
        self.session.as_ref().is_none_or(is_open)
    }

    /// Whether the visitor can log out.
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    async fn serve(self, mut request: Request, next: Next) -> Response {
        let cookie = self.new_cookie.clone();
        request.extensions_mut().insert(self);
        let mut response = next.run(request).await;
        if let Some(cookie) = cookie.and_then(|it| HeaderValue::try_from(it).ok()) {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }
}

/// Lets visitors in who have a role. Browsers are sent to the log-in page.
pub(super) async fn admit(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let visitor = match Visitor::recognise(&access, request.uri(), headers).await {
        Ok(visitor) => visitor,
        Err(refusal) => return refusal.into_response(),
    };
    if visitor.role.is_some() {
        return visitor.serve(request, next).await;
    }
    let had_session = cookie(headers, &session_cookie(&access)).is_some();
    access.count_refused(if had_session {
        "session"
    } else {
        "token-missing"
    });
    match accepts_html(headers) {
        true => see_other(&login_address(&request)),
        false => unauthorized().into_response(),
    }
}

/// Lets everyone in, for the pages before log-in.
pub(super) async fn greet(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match Visitor::recognise(&access, request.uri(), request.headers()).await {
        Ok(visitor) => visitor.serve(request, next).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Checks the token of a form, and parses its fields. What is not read is a form: there is no other write here.
pub(super) async fn check_form(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    match checked_fields(&access, &mut request).await {
        Ok(fields) => {
            request.extensions_mut().insert(fields);
            next.run(request).await
        }
        Err(refusal) => frame::failure(&refusal),
    }
}

async fn checked_fields(access: &Access, request: &mut Request) -> Result<Fields, Refusal> {
    let visitor = request.extensions().get::<Visitor>().cloned();
    let visitor = visitor.ok_or_else(forbidden)?;
    let kind = request.headers().get(header::CONTENT_TYPE);
    let essence = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    let form = "application/x-www-form-urlencoded";
    if !essence.is_some_and(|it| it.trim().eq_ignore_ascii_case(form)) {
        access.count_refused("content-type");
        let error = "the Content-Type of the request is not that of a form";
        let fix = "use the page of the dashboard, or the API with Content-Type: application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error, fix));
    }
    let max = match visitor.role {
        Some(_) => REQUEST_BYTES_MAX,
        None => LOGIN_BYTES_MAX,
    };
    let body = to_bytes(std::mem::take(request.body_mut()), max).await;
    let body = body.map_err(|_| {
        let error = "the form is too large, or was not received completely";
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error, "send less")
    })?;
    let fields = Fields::parse(&body);
    // Hashes are compared in constant time.
    let shown = blake3::hash(fields.get("form_token").as_bytes());
    if shown == blake3::hash(visitor.form_token.as_bytes()) {
        return Ok(fields);
    }
    access.count_refused("form");
    Err(forbidden())
}

/// The fields of a form, or of a query.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(Arc<[(String, String)]>);

impl Fields {
    fn parse(bytes: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(bytes);
        Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    pub(super) fn of_query(uri: &Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }

    /// The first value of a field; empty if it is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(it, _)| it == name);
        found.map_or("", |(_, value)| value)
    }

    /// The value of a field that is filled in, without spaces around it.
    pub(super) fn filled(&self, name: &str) -> Option<&str> {
        Some(self.get(name).trim()).filter(|value| !value.is_empty())
    }

    /// The fields as a query, with one field replaced.
    pub(super) fn query_with(&self, name: &str, value: &str) -> String {
        let rest = self
            .0
            .iter()
            .filter(|(it, value)| it != name && !value.is_empty());
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(rest).append_pair(name, value);
        query.finish()
    }
}

pub(super) async fn login_page(
    Extension(access): Extension<Arc<Access>>,
    Extension(visitor): Extension<Visitor>,
    uri: Uri,
) -> Response {
    let query = Fields::of_query(&uri);
    let next = local_address(query.get("next"));
    match visitor.role {
        Some(_) => see_other(next),
        None => frame::login(&visitor, next, access.needs_token(), None),
    }
}

pub(super) async fn login(
    Extension(access): Extension<Arc<Access>>,
    Extension(visitor): Extension<Visitor>,
    Extension(fields): Extension<Fields>,
    headers: HeaderMap,
) -> Response {
    let next = local_address(fields.get("next"));
    let Some(role) = access.role_of(fields.get("token").trim().as_bytes()).await else {
        let fault = "The token is wrong. Use the value of REFRAIN_ADMIN_TOKEN of the proxy, or of REFRAIN_ADMIN_READER_TOKEN to read only.";
        return frame::login(&visitor, next, true, Some(fault));
    };
    if let Some(replaced) = cookie(&headers, &session_cookie(&access)) {
        access.sessions.end(&replaced);
    }
    let id = access.sessions.begin(role);
    let cookie = set_cookie(&access, &session_cookie(&access), &id, "Strict", &headers);
    with_cookie(see_other(next), &cookie)
}

pub(super) async fn logout(
    Extension(access): Extension<Arc<Access>>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
) -> Response {
    if let Some(id) = &visitor.session {
        access.sessions.end(id);
    }
    let mut cookie = set_cookie(&access, &session_cookie(&access), "", "Strict", &headers);
    let _ = write!(cookie, "; Max-Age=0");
    with_cookie(see_other("/login"), &cookie)
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// The text of a `Set-Cookie`, with `Secure` if the listener has TLS, or a proxy in front says that it was reached with TLS.
fn set_cookie(
    access: &Access,
    name: &str,
    value: &str,
    same_site: &str,
    headers: &HeaderMap,
) -> String {
    let is_told = || {
        let told = headers.get("x-forwarded-proto");
        told.is_some_and(|it| it == "https")
    };
    let is_secure = access.is_tls() || is_told();
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite={same_site}{secure}")
}

fn session_cookie(access: &Access) -> String {
    format!("refrain-session-{}", access.port())
}

fn form_cookie(access: &Access) -> String {
    format!("refrain-form-{}", access.port())
}

/// The value of a cookie.
fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(header::COOKIE).iter();
    let pairs = all
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(';'));
    let mut values = pairs.filter_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
    let value = values.next()?;
    (!value.is_empty() && value.len() <= COOKIE_LEN_MAX).then(|| value.to_owned())
}

pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    accepted.any(|it| it.to_str().is_ok_and(|it| it.contains("text/html")))
}

fn login_address(request: &Request) -> String {
    let target = request.uri().path_and_query().map(|it| it.as_str());
    let target = target.filter(|_| *request.method() == Method::GET);
    let next: String = form_urlencoded::byte_serialize(target.unwrap_or("/").as_bytes()).collect();
    format!("/login?next={next}")
}

/// The address, if it is one of this listener; otherwise the first page.
fn local_address(address: &str) -> &str {
    let is_local = address.starts_with('/')
        && !address.starts_with("//")
        && address
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_local { address } else { "/" }
}

pub(super) fn see_other(address: &str) -> Response {
    let address = HeaderValue::try_from(address);
    let address = address.unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, address)]).into_response()
}

fn unauthorized() -> Refusal {
    let error = "an admin token is required";
    let fix = "send the admin token as Authorization: Bearer, or open /login in a browser";
    Refusal::new(StatusCode::UNAUTHORIZED, error, fix)
}

/// A form without the token of its page.
pub(super) fn forbidden() -> Refusal {
    let error =
        "the form does not come from a current page of this dashboard, so nothing was changed";
    let fix = "open the page again, and repeat your entries there";
    Refusal::new(StatusCode::FORBIDDEN, error, fix)
}
