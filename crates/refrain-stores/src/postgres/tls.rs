//! TLS to the server, with rustls.

use std::{fmt, io, path::Path, pin::Pin, sync::Arc, task};

use refrain::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    config::SslMode,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect},
};
use tokio_rustls::{
    TlsConnector, client,
    rustls::{
        self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
        SignatureScheme,
        client::{
            WebPkiServerVerifier,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

use super::{
    address::{Address, Trust},
    end_point,
};

/// TLS connector for the settings of an address.
#[derive(Debug, Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// # Errors
    /// If the CA certificates or the client certificate cannot be read.
    pub(super) fn new(address: &Address) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let uses_tls = address.config.get_ssl_mode() != SslMode::Disable;
        let verifier: Arc<dyn ServerCertVerifier> = match address.trust {
            trust if !uses_tls || trust == Trust::Anybody => Arc::new(Lenient {
                provider: provider.clone(),
                inner: None,
            }),
            trust => {
                let roots = Arc::new(roots(address.roots.as_deref())?);
                let strict =
                    WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                let strict = strict.map_err(|error| cannot("use the certificates", error))?;
                match trust {
                    Trust::Full => strict,
                    _ => Arc::new(Lenient {
                        provider: provider.clone(),
                        inner: Some(strict),
                    }),
                }
            }
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| cannot("set up TLS", error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &address.client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let certificates = read("sslcert", &client.certificate, OWN)?;
                let shown = config.with_client_auth_cert(certificates, key(&client.key)?);
                shown.map_err(|error| cannot("use sslcert with sslkey", error))?
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

fn cannot(what: &str, error: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("the PostgreSQL store cannot {what}: {error}"),
    )
}

/// CA certificates from the file, or the system's.
fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let certs = match file {
        None => rustls_native_certs::load_native_certs().certs,
        Some(path) => read("sslrootcert", path, AUTHORITY)?,
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certs);
    if added == 0 {
        let place = file.map_or("this machine".into(), |path| path.display().to_string());
        let message = format!(
            "no CA certificates found on {place}, so the server's certificate cannot be verified; install ca-certificates, or set sslrootcert=FILE to a PEM file"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(roots)
}

const AUTHORITY: &str = "the CA certificate";
const OWN: &str = "the client's certificate chain";

fn read(name: &str, path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let certs = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    certs.map_err(|error| unreadable(name, path, &error, what))
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let what = "the private key of sslcert, without a passphrase";
    PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable("sslkey", path, &error, what))
}

fn unreadable(name: &str, path: &Path, why: &dyn fmt::Display, what: &str) -> Error {
    let path = path.display();
    let message = format!("cannot read {name}={path}: {why}; it must be a PEM file with {what}");
    Error::new(ErrorKind::Invalid, message)
}

/// Verifier that checks the CA but not the host name, or nothing at all.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    inner: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Connect> {
        // A Unix socket has no host name, and no TLS.
        let name = if domain.is_empty() {
            "localhost"
        } else {
            domain
        };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.0.clone());
        Ok(Connect { connector, name })
    }
}

/// Pending TLS handshake.
pub(super) struct Connect {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Connect {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, socket).await?;
            Ok(Stream(Box::new(stream)))
        })
    }
}

/// TLS connection.
pub(super) struct Stream(Box<client::TlsStream<Socket>>);

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

impl tokio_postgres::tls::TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, connection) = self.0.get_ref();
        let shown = connection.peer_certificates().and_then(<[_]>::first);
        match shown.and_then(|certificate| end_point::digest(certificate)) {
            Some(digest) => ChannelBinding::tls_server_end_point(digest),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
