//! Fetches the JSON Web Key Set with which the layer verifies tokens.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header, uri::InvalidUri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use refrain::{
    Error, ErrorKind, Result,
    jwt::{FetchedJwks, JWKS_BYTES_MAX, JwksFetcher},
};

use crate::connect::Connector;

/// The key set at a URL. Each fetch has a connection of its own, and follows no redirect.
pub(crate) struct HttpJwks {
    connector: Connector,
    host: HeaderValue,
    target: Uri,
}

impl HttpJwks {
    /// The key set at this URL.
    ///
    /// # Errors
    /// When the URL is invalid, or needs TLS and this machine trusts no certificate authority.
    pub(crate) fn new(url: &str, patience: Duration) -> io::Result<Self> {
        let invalid = |error: http::Error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let uri: Uri = url
            .parse()
            .map_err(|error: InvalidUri| invalid(error.into()))?;
        let authority = uri.authority().map_or("", |it| it.as_str());
        let connector = Connector::new(uri.scheme_str() == Some("https"), authority, patience)?;
        let target = uri.path_and_query().map_or("/", |it| it.as_str());
        Ok(Self {
            connector,
            host: HeaderValue::from_str(authority).map_err(|error| invalid(error.into()))?,
            target: target
                .parse()
                .map_err(|error: InvalidUri| invalid(error.into()))?,
        })
    }

    async fn get(&self) -> Result<Bytes> {
        let (io, _permit) = self.connector.connect().await.map_err(unavailable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(unavailable)?;
        // Ends with the sender and the body of the response.
        tokio::spawn(connection);
        let request = Request::get(self.target.clone())
            .header(header::HOST, &self.host)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .body(Empty::<Bytes>::new());
        let request = request.map_err(unavailable)?;
        let response = sender.send_request(request).await.map_err(unavailable)?;
        if response.status() != StatusCode::OK {
            let message = format!(
                "the response has status {}; check the URL, redirects are not followed",
                response.status().as_u16()
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let body = Limited::new(response.into_body(), JWKS_BYTES_MAX);
        let body = body.collect().await.map_err(unavailable)?;
        Ok(body.to_bytes())
    }
}

fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "no response").with_source(error)
}

impl JwksFetcher for HttpJwks {
    fn fetch<'a>(&'a self, _: &'a str) -> FetchedJwks<'a> {
        Box::pin(self.get())
    }
}

impl fmt::Debug for HttpJwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpJwks({:?})", self.host)
    }
}
