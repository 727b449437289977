//! Sends exports to the collector, over one connection.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::TraceOptions;
use crate::connect::Connector;

/// Maximum time for one export.
const EXPORT_MAX: Duration = Duration::from_secs(10);
/// Maximum time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a response; a larger one ends the connection.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Why an export failed.
#[derive(Debug)]
pub(super) struct ExportError {
    message: String,
    /// Whether a retry may succeed.
    pub(super) is_temporary: bool,
    /// How long the collector asks to wait.
    pub(super) retry_after: Duration,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl ExportError {
    fn temporary(error: impl fmt::Display) -> Self {
        Self {
            message: error.to_string(),
            is_temporary: true,
            retry_after: Duration::ZERO,
        }
    }

    fn of_status(status: StatusCode, headers: &HeaderMap) -> Self {
        let after = headers.get(header::RETRY_AFTER);
        let after = after.and_then(|it| it.to_str().ok()?.parse().ok());
        Self {
            message: format!("the collector responded with {status}"),
            is_temporary: matches!(status.as_u16(), 429 | 502 | 503 | 504),
            retry_after: Duration::from_secs(after.unwrap_or(0)),
        }
    }
}

/// The client of the collector.
pub(super) struct Sender {
    connector: Connector,
    path: Uri,
    headers: HeaderMap,
    /// The connection of the last export, if it can be used again.
    idle: Option<SendRequest<Full<Bytes>>>,
}

impl Sender {
    pub(super) fn new(options: &TraceOptions) -> io::Result<Self> {
        let invalid = |error: &dyn fmt::Display| {
            let message = format!("invalid URL of the collector: {error}");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        let url: Uri = options.endpoint.parse().map_err(|error| invalid(&error))?;
        let authority = url.authority().ok_or_else(|| invalid(&"it has no host"))?;
        let is_tls = url.scheme_str() == Some("https");
        let mut headers: HeaderMap = options.headers.iter().cloned().collect();
        let host = HeaderValue::from_str(authority.as_str());
        headers.insert(header::HOST, host.map_err(|error| invalid(&error))?);
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        headers.insert(header::CONTENT_TYPE, protobuf);
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            connector: Connector::new(is_tls, authority.as_str(), CONNECT_MAX)?,
            path: path.parse().map_err(|error| invalid(&error))?,
            headers,
            idle: None,
        })
    }

    /// Sends one export.
    pub(super) async fn send(&mut self, body: Bytes) -> Result<(), ExportError> {
        match timeout(EXPORT_MAX, self.exchange(body)).await {
            Ok(sent) => sent,
            Err(_) => Err(ExportError::temporary(format!(
                "the collector did not respond within {} s",
                EXPORT_MAX.as_secs()
            ))),
        }
    }

    async fn exchange(&mut self, body: Bytes) -> Result<(), ExportError> {
        let idle = self.idle.take().filter(|idle| !idle.is_closed());
        let mut connection = match idle {
            Some(idle) => idle,
            None => self.connect().await.map_err(ExportError::temporary)?,
        };
        let mut request = Request::post(self.path.clone())
            .body(Full::new(body))
            .map_err(ExportError::temporary)?;
        *request.headers_mut() = self.headers.clone();
        let sent = connection.send_request(request).await;
        let (head, body) = sent.map_err(ExportError::temporary)?.into_parts();
        let rest = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        if rest.is_ok() {
            self.idle = Some(connection);
        }
        match head.status.is_success() {
            true => Ok(()),
            false => Err(ExportError::of_status(head.status, &head.headers)),
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let (stream, permit) = self.connector.connect().await?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            let _ = connection.await;
            drop(permit);
        });
        Ok(sender)
    }
}
