//! Error responses of the admin API.

use axum::{
    Json,
    extract::rejection::{BytesRejection, QueryRejection},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use refrain::{Error, ErrorKind};
use serde_json::json;

use crate::dashboard::refused;

/// An error response: what is wrong, and what to do.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
    pub(crate) fix: String,
    /// Seconds after which a retry may succeed.
    pub(crate) retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        error: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            status,
            error: error.into(),
            fix: fix.into(),
            retry_after: None,
        }
    }

    pub(crate) fn bad(error: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, fix)
    }

    pub(crate) fn conflict(error: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error, fix)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.error, "fix": self.fix }));
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, fix) = match error.kind() {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "correct the request"),
            ErrorKind::Corrupt => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "check the store with `refrain store check`",
            ),
            ErrorKind::Unaudited => (
                StatusCode::SERVICE_UNAVAILABLE,
                "repair the folder of the audit log, and restart the proxy",
            ),
            _ => (
                StatusCode::SERVICE_UNAVAILABLE,
                "check that the store is reachable, and retry",
            ),
        };
        Self::new(status, error.to_string(), fix)
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        let fix = "?state=in-flight|completed|indeterminate|tombstone, ?limit=NUMBER, ?after=ID";
        Self::bad(rejection.body_text(), fix)
    }
}

impl From<BytesRejection> for Refusal {
    fn from(rejection: BytesRejection) -> Self {
        let fix = "send a complete body within the size limit";
        Self::new(rejection.status(), rejection.body_text(), fix)
    }
}

pub(crate) async fn no_route(uri: Uri, headers: HeaderMap) -> Response {
    let fix = "use /, /livez, /readyz, /metrics, /api/overview, /api/requests, /api/records, /api/find, /api/operations, /api/workers or /api/reload";
    let error = format!("no such route: {}", uri.path());
    refused(Refusal::new(StatusCode::NOT_FOUND, error, fix), &headers)
}

pub(crate) async fn no_method(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let error = format!("{} does not support {method}", uri.path());
    let fix = "use GET to read, POST to resolve, find, redrive or reload, DELETE to delete";
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error, fix);
    refused(refusal, &headers)
}
