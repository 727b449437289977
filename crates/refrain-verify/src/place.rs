//! Address of a service and how to connect to it: plain TCP or TLS.

use std::{fmt, io, path::PathBuf, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    },
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
            Err(error) => Err(io::Error::new(error.kind(), told(&error))),
        }
    }
}

fn told(error: &io::Error) -> String {
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
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot set up TLS: {error}"))?;
        let mut config = match self {
            Self::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Gullible(provider)))
                .with_no_client_auth(),
            Self::Machine | Self::File(_) => builder
                .with_root_certificates(self.roots()?)
                .with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config).into())
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let (certs, place) = match self {
            Self::File(path) => {
                let place = path.display().to_string();
                let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
                let certs = read.map_err(|error| {
                    format!("cannot read {place}: {error}; --cacert must be a PEM file with CA certificates")
                })?;
                (certs, place)
            }
            Self::Machine | Self::Anybody => (
                rustls_native_certs::load_native_certs().certs,
                "this machine".into(),
            ),
        };
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certs);
        match added {
            0 => Err(format!(
                "{place}: no CA certificates found, so the service's certificate cannot be verified; install ca-certificates, or set --cacert FILE to a PEM file"
            )),
            _ => Ok(roots),
        }
    }
}

/// Accepts any certificate, but still verifies the handshake signatures.
#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
