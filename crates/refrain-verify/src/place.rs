//! Address of a service and how to connect to it: plain TCP or TLS.

use std::{fmt, io, path::PathBuf, sync::Arc};

use refrain_tls::{Authorities, PemFile, Verification};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{self, pki_types::ServerName},
};

/// Which TLS certificates to trust.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the machine's trusted certificate authorities.
    #[default]
    Machine,
    /// Only those of the certificate authorities in this PEM file.
    File(PathBuf),
    /// Any certificate: the server's identity is not verified.
    Anybody,
}

/// A connection, plain TCP or TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for T {}

/// Address as `host:port`, with the expected server name for TLS.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Endpoint {
    /// Returns an address reached over plain TCP.
    pub(crate) fn plain(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            tls: None,
        }
    }

    /// Returns an address reached over TLS; the certificate must be valid for the host.
    pub(crate) fn secured(address: &str, tls: TlsConnector) -> Result<Self, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("invalid host name `{host}` for TLS"))?;
        Ok(Self {
            address: address.into(),
            tls: Some((tls, name)),
        })
    }

    /// Whether connections are plain TCP.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let Some((tls, name)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        match tls.connect(name.clone(), stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(io::Error::new(error.kind(), describe_tls_error(&error))),
        }
    }
}

fn describe_tls_error(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|it| it.downcast_ref());
    let help = match inner {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "; set the CA certificate with --cacert FILE, or pass --insecure"
        }
        _ => "",
    };
    format!("TLS: {error}{help}")
}

impl Trust {
    /// Returns a TLS connector that trusts these certificates.
    pub(crate) fn connector(&self) -> Result<TlsConnector, String> {
        let setting = "--cacert";
        let authorities = match self {
            Self::Anybody => None,
            Self::Machine => Some(Authorities::read(None)),
            Self::File(path) => Some(Authorities::read(Some(PemFile { setting, path }))),
        };
        let verification = match authorities {
            None => Ok(Verification::None),
            Some(read) => read
                .and_then(|authorities| authorities.at_least_one("--cacert FILE"))
                .map(Verification::Full),
        };
        let config = verification.and_then(|it| refrain_tls::client(it, None));
        let mut config = config.map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config).into())
    }
}
