//! TLS of the connections that Refrain opens, to upstreams, PostgreSQL, NATS and tested services; and of those that it
//! [accepts](server), from clients.
//!
//! It is rustls with the ring provider, also if the program installs another default provider.

use std::{fmt, path::Path, sync::Arc};

pub mod server;

pub use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::{
    self, CertificateError, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};

/// How much of a server's certificate is verified.
#[derive(Debug, Clone)]
pub enum Verification {
    /// Nothing: the connection is encrypted, but anybody can impersonate the server.
    None,
    /// That one of these authorities issued it, but not the host name.
    Authority(Authorities),
    /// That one of these authorities issued it for this host name.
    Full(Authorities),
}

/// A PEM file, with the name of the setting or option that names it.
#[derive(Debug, Clone, Copy)]
pub struct PemFile<'a> {
    /// The setting or option, as error messages name it.
    pub setting: &'static str,
    /// The path of the file.
    pub path: &'a Path,
}

/// The client's certificate chain and its private key.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The client's certificate, then the intermediate ones.
    pub certificates: PemFile<'a>,
    /// The private key of the first certificate, without a passphrase.
    pub key: PemFile<'a>,
}

/// Why a TLS configuration cannot be built, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

impl PemFile<'_> {
    fn certificates(self, content: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read = CertificateDer::pem_file_iter(self.path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) if certificates.is_empty() => {
                Err(self.unreadable(&"it has no certificate", content))
            }
            read => read.map_err(|error| self.unreadable(&error, content)),
        }
    }

    fn key(self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_file(self.path)
            .map_err(|error| self.unreadable(&error, "a private key, without a passphrase"))
    }

    fn unreadable(self, why: &dyn fmt::Display, content: &str) -> TlsError {
        let Self { setting, path } = self;
        let path = path.display();
        TlsError(format!(
            "cannot read {setting}={path}: {why}; it must be a PEM file with {content}, readable by this process"
        ))
    }
}

/// Certificate authorities to trust.
#[derive(Debug, Clone)]
pub struct Authorities(RootCertStore);

impl Authorities {
    /// Reads the file, or without one the authorities of the system, or those that `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` name. The system may have none; then no certificate is valid.
    ///
    /// # Errors
    /// If the file cannot be read or has no certificate.
    pub fn read(file: Option<PemFile<'_>>) -> Result<Self, TlsError> {
        let certificates = match file {
            Some(file) => file.certificates("CA certificates")?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        Ok(Self(roots))
    }

    /// Returns these authorities if there is at least one. `setting` is how users name a file.
    ///
    /// # Errors
    /// If the system has none.
    pub fn at_least_one(self, setting: &str) -> Result<Self, TlsError> {
        if self.0.is_empty() {
            let message = format!(
                "no CA certificates found, so the server's certificate cannot be verified; \
                 install ca-certificates, or set {setting} to a PEM file"
            );
            return Err(TlsError(message));
        }
        Ok(self)
    }
}

/// Builds the configuration of a TLS client.
///
/// # Errors
/// If the client's certificate or key cannot be read, or they do not belong together.
pub fn client(
    verification: Verification,
    identity: Option<Identity<'_>>,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError(format!("cannot set up TLS: {error}")))?;
    let inner = match verification {
        Verification::Full(authorities) => {
            return identify(builder.with_root_certificates(authorities.0), identity);
        }
        Verification::Authority(authorities) => Some(
            WebPkiServerVerifier::builder_with_provider(Arc::new(authorities.0), provider.clone())
                .build()
                .map_err(|error| TlsError(format!("cannot use the CA certificates: {error}")))?,
        ),
        Verification::None => None,
    };
    let lenient = Arc::new(Lenient { provider, inner });
    let builder = builder.dangerous();
    identify(builder.with_custom_certificate_verifier(lenient), identity)
}

/// Adds the client's certificate, if it has one.
fn identify(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<Identity<'_>>,
) -> Result<ClientConfig, TlsError> {
    let Some(Identity { certificates, key }) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates.certificates("the client's certificate chain")?;
    let config = builder.with_client_auth_cert(chain, key.key()?);
    config.map_err(|error| {
        let (certificates, key) = (certificates.setting, key.setting);
        TlsError(format!("cannot use {certificates} with {key}: {error}"))
    })
}

/// Verifies the authority but not the host name, or neither. It always verifies the signatures of the handshake.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_setting_of_an_unusable_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let read = || {
            let setting = "ca";
            let file = PemFile {
                setting,
                path: &path,
            };
            Authorities::read(Some(file)).map(drop)
        };
        let message = read().unwrap_err().to_string();
        assert!(message.starts_with("cannot read ca=/"), "{message}");
        std::fs::write(&path, "no PEM").unwrap();
        let message = read().unwrap_err().to_string();
        assert!(message.contains("no certificate"), "{message}");
        let own = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        std::fs::write(&path, own.cert.pem()).unwrap();
        assert_eq!(read(), Ok(()));
    }

    #[test]
    fn rejects_key_of_another_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let made = || rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let (own, other) = (made(), made());
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        std::fs::write(&cert, own.cert.pem()).unwrap();
        let build = || {
            let identity = Identity {
                certificates: PemFile {
                    setting: "cert",
                    path: &cert,
                },
                key: PemFile {
                    setting: "key",
                    path: &key,
                },
            };
            client(Verification::None, Some(identity)).map(drop)
        };
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        assert_eq!(build(), Ok(()));
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        let message = build().unwrap_err().to_string();
        assert!(
            message.starts_with("cannot use cert with key: "),
            "{message}"
        );
    }

    #[test]
    fn says_how_to_name_an_authority_if_the_system_has_none() {
        let none = Authorities(RootCertStore::empty());
        let message = none.at_least_one("--cacert FILE").unwrap_err().to_string();
        assert!(message.contains("set --cacert FILE"), "{message}");
    }
}
