//! The dashboard of the admin listener: HTML pages made on the server, with one style sheet and one small script.
//!
//! It works without the script, which only adds new requests to the list of requests. Pages load nothing from anywhere
//! else, and their policy forbids it. All text that clients or services control is escaped by `maud`, and a test
//! checks in a browser that none of it runs.
//!
//! | part | contents |
//! |---|---|
//! | `visit` | who asks: sessions, roles, form tokens, log-in |
//! | `frame` | what all pages share |
//! | `overview`, `chart`, `live` | the first page, its charts, and the list of requests |
//! | `search`, `record`, `timeline`, `resolve`, `advice` | records, unknown outcomes, and how they are settled |
//! | `once` | changes that are made once, and their results |
//! | `settings`, `workers` | operations, store and configuration in force; workers and their dead letters |

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{FromRequestParts, Request},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};

use crate::admin::{Admin, CurrentAdmin, access::Access, refusal::Refusal};

mod advice;
mod chart;
mod frame;
mod live;
mod once;
mod overview;
mod record;
mod resolve;
mod search;
mod settings;
mod timeline;
mod visit;
mod workers;

use visit::Visitor;

/// Pages load their own style, script and images, and nothing else; forms are sent only here, and no page frames them.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The routes of the dashboard.
pub(crate) fn routes(access: &Arc<Access>) -> Router<CurrentAdmin> {
    let pages = Router::new()
        .route("/", get(overview::show))
        .route(visit::LIVE, get(live::live))
        .route("/unknown", get(search::unknown))
        .route("/records", get(search::records))
        .route("/records/{id}", get(record::show))
        .route("/records/{id}/resolve", post(resolve::resolve))
        .route("/operations", get(settings::operations))
        .route("/configuration", get(settings::configuration))
        .route("/store", get(settings::store))
        .route("/workers", get(workers::list))
        .route("/workers/{name}", get(workers::show))
        .route("/workers/{name}/redrive", post(workers::redrive))
        .route("/problems/{code}", get(advice::problem))
        .layer(middleware::from_fn_with_state(
            access.clone(),
            visit::check_form,
        ))
        .layer(middleware::from_fn_with_state(access.clone(), visit::admit));
    let open = Router::new()
        .route("/login", get(visit::login_page).post(visit::login))
        .route("/logout", post(visit::logout))
        .layer(middleware::from_fn_with_state(
            access.clone(),
            visit::check_form,
        ))
        .layer(middleware::from_fn_with_state(access.clone(), visit::greet))
        .route("/dashboard.css", get(style))
        .route("/dashboard.js", get(script));
    pages
        .merge(open)
        .layer(Extension(access.clone()))
        .layer(Extension(overview::StoreView::default()))
        .layer(Extension(live::Streams::default()))
        .layer(Extension(once::Changes::default()))
        .layer(middleware::from_fn(restrict))
}

async fn style() -> Response {
    let kind = "text/css; charset=utf-8";
    let bytes = include_str!("dashboard/dashboard.css");
    ([(header::CONTENT_TYPE, kind)], bytes).into_response()
}

async fn script() -> Response {
    let kind = "text/javascript; charset=utf-8";
    let bytes = include_str!("dashboard/dashboard.js");
    ([(header::CONTENT_TYPE, kind)], bytes).into_response()
}

/// A refusal outside the dashboard: a page for browsers, JSON for programs.
pub(crate) fn refused(refusal: Refusal, headers: &HeaderMap) -> Response {
    match visit::accepts_html(headers) {
        true => restricted(frame::failure(&refusal)),
        false => refusal.into_response(),
    }
}

async fn restrict(request: Request, next: Next) -> Response {
    restricted(next.run(request).await)
}

/// Adds the headers that tell the browser what a page may do.
fn restricted(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        // Not `no-referrer`: with it, browsers send forms with `Origin: null`, as if from another site.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// What every page is made from.
#[derive(Debug)]
struct Desk {
    admin: Arc<Admin>,
    visitor: Visitor,
}

impl FromRequestParts<CurrentAdmin> for Desk {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, admin: &CurrentAdmin) -> Result<Self, Refusal> {
        let visitor = parts.extensions.get::<Visitor>().cloned();
        Ok(Self {
            admin: admin.get(),
            visitor: visitor.ok_or_else(visit::forbidden)?,
        })
    }
}

impl Desk {
    /// Whether the process guards requests; one that only runs workers does not.
    fn has_operations(&self) -> bool {
        self.admin.layer.policy().operations().next().is_some()
    }
}
