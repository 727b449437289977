//! Transport over hyper's pooled client, with automatic retries disabled.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};

#[cfg(feature = "client-tls")]
use refrain_tls::{Authorities, Verification};

use super::{Transport, TransportError};

/// Time and size limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time to connect.
    pub connect: Duration,
    /// Maximum time of an attempt, from connecting to the last byte of the response.
    pub attempt: Duration,
    /// Maximum size of a response body, in bytes.
    pub answer_bytes_max: usize,
    /// Maximum number of idle connections per host.
    pub idle_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            attempt: Duration::from_secs(30),
            answer_bytes_max: 8 << 20,
            idle_max: 32,
        }
    }
}

/// HTTP/1.1 with keep-alive connections.
///
/// Redirects are not followed. If the server has just closed the connection, the result of the attempt is unknown,
/// and the client decides whether to retry.
#[derive(Clone)]
pub struct HyperTransport<C = HttpConnector> {
    client: Client<C, Full<Bytes>>,
    limits: Limits,
}

impl<C> fmt::Debug for HyperTransport<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperTransport")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl HyperTransport {
    /// Creates a transport for `http://` addresses.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_connector(tcp(limits), limits)
    }
}

#[cfg(feature = "client-tls")]
impl HyperTransport<hyper_rustls::HttpsConnector<HttpConnector>> {
    /// Creates a transport for `https://` and `http://` addresses, with the certificate authorities of the system.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the system has none.
    pub fn with_tls(limits: Limits) -> crate::Result<Self> {
        let authorities = Authorities::read(None).and_then(|it| it.at_least_one("SSL_CERT_FILE"));
        let config = authorities.and_then(|it| refrain_tls::client(Verification::Full(it), None));
        let config = config
            .map_err(|error| crate::Error::new(crate::ErrorKind::Unavailable, error.to_string()))?;
        Ok(Self::with_tls_config(config, limits))
    }

    /// Creates a transport for `https://` and `http://` addresses with this TLS configuration.
    #[must_use]
    pub fn with_tls_config(config: refrain_tls::ClientConfig, limits: Limits) -> Self {
        let mut tcp = tcp(limits);
        tcp.enforce_http(false);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Self::with_connector(connector, limits)
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> HyperTransport<C> {
    /// Creates a transport with a custom connector.
    #[must_use]
    pub fn with_connector(connector: C, limits: Limits) -> Self {
        let client = Client::builder(TokioExecutor::new())
            // Only the client above may retry, because it knows the key.
            .retry_canceled_requests(false)
            .pool_max_idle_per_host(limits.idle_max)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self { client, limits }
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let answered = self.client.request(request.map(Full::new)).await;
        let (head, body) = answered
            .map_err(|error| match error.is_connect() {
                true => TransportError::not_sent(error),
                false => TransportError::unknown(error),
            })?
            .into_parts();
        match Limited::new(body, self.limits.answer_bytes_max)
            .collect()
            .await
        {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(TransportError::too_long(head.status, error))
            }
            Err(error) => Err(TransportError::unknown(error)),
        }
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> Transport for HyperTransport<C> {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let limit = self.limits.attempt;
        match tokio::time::timeout(limit, self.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(TransportError::unknown(format!(
                "the attempt timed out after {limit:?}"
            ))),
        }
    }
}

fn tcp(limits: Limits) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(limits.connect));
    tcp.set_nodelay(true);
    tcp
}
