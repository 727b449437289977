//! TLS of a listener: its certificate and key, and the certificates of its clients.
//!
//! [`ServerFiles::read`] reads all files at once and [`ServerFile`]s keep their content, so that what was compared with
//! an earlier version is what the configuration is built from.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

pub use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version,
};

use crate::TlsError;

/// Maximum size of a PEM file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Permission bit of a file: anybody may read it.
const READABLE_BY_OTHERS: u32 = 0o004;

/// The files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate, then the intermediate ones.
    pub certificate: PathBuf,
    /// The private key of the first certificate, without a passphrase.
    pub key: PathBuf,
    /// The authorities that may issue certificates of clients; without them no client is asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is rejected.
    pub requires_client: bool,
}

/// The content of a listener's files at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerPem {
    certificate: ServerFile,
    key: ServerFile,
    client_ca: Option<ServerFile>,
    requires_client: bool,
}

/// The content of one file.
#[derive(Clone, PartialEq, Eq)]
struct ServerFile {
    path: PathBuf,
    bytes: Vec<u8>,
    is_readable_by_others: bool,
}

impl std::fmt::Debug for ServerPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerPem").finish_non_exhaustive()
    }
}

impl ServerFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them cannot be read, with its path.
    pub fn read(&self) -> Result<ServerPem, TlsError> {
        Ok(ServerPem {
            certificate: ServerFile::read(&self.certificate)?,
            key: ServerFile::read(&self.key)?,
            client_ca: self
                .client_ca
                .as_deref()
                .map(ServerFile::read)
                .transpose()?,
            requires_client: self.requires_client,
        })
    }
}

impl ServerPem {
    /// Builds the configuration of a TLS server: TLS 1.2 or later, and these ALPN protocols, the preferred one first.
    ///
    /// # Errors
    /// If a file has no certificate or key, or if certificate and key do not belong together; names the file.
    pub fn config(&self, protocols: &[&[u8]]) -> Result<ServerConfig, TlsError> {
        let chain = self.certificate.certificates()?;
        let key = self.key.key()?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|error| TlsError(format!("cannot set up TLS: {error}")))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => builder.with_client_cert_verifier(self.client_verifier(file)?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let (certificate, key) = (self.certificate.path.display(), self.key.path.display());
            TlsError(format!("cannot use {certificate} with {key}: {error}"))
        })?;
        config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
        Ok(config)
    }

    /// The key file, if every user of the machine may read it.
    #[must_use]
    pub fn key_readable_by_others(&self) -> Option<&Path> {
        let key = &self.key;
        key.is_readable_by_others.then_some(key.path.as_path())
    }

    fn client_verifier(&self, file: &ServerFile) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in file.certificates()? {
            roots
                .add(certificate)
                .map_err(|error| file.unusable(&error, "CA certificates"))?;
        }
        let provider = Arc::new(ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = match self.requires_client {
            true => builder,
            false => builder.allow_unauthenticated(),
        };
        let built = builder.build();
        built.map_err(|error| file.unusable(&error, "CA certificates"))
    }
}

impl ServerFile {
    fn read(path: &Path) -> Result<Self, TlsError> {
        let mut read = Self {
            path: path.to_owned(),
            bytes: Vec::new(),
            is_readable_by_others: false,
        };
        read.fill()
            .map_err(|error| read.unusable(&error, "certificates or a private key"))?;
        Ok(read)
    }

    fn fill(&mut self) -> io::Result<()> {
        let file = File::open(&self.path)?;
        self.is_readable_by_others = is_readable_by_others(&file.metadata()?);
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut self.bytes)?;
        match read as u64 > FILE_BYTES_MAX {
            true => Err(io::Error::other("it is larger than 4 MiB")),
            false => Ok(()),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let content = "certificates";
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match parsed {
            Ok(certificates) if certificates.is_empty() => {
                Err(self.unusable(&"it has no certificate", content))
            }
            parsed => parsed.map_err(|error| self.unusable(&error, content)),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes)
            .map_err(|error| self.unusable(&error, "a private key, without a passphrase"))
    }

    fn unusable(&self, why: &dyn std::fmt::Display, content: &str) -> TlsError {
        let path = self.path.display();
        TlsError(format!(
            "cannot use {path}: {why}; it must be a PEM file with {content}, readable by this process"
        ))
    }
}

#[cfg(unix)]
fn is_readable_by_others(file: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.permissions().mode() & READABLE_BY_OTHERS != 0
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &std::fs::Metadata) -> bool {
    false
}

/// The subject of a client's certificate, as bytes that are equal for equal subjects; `None` if it has none.
///
/// It is the distinguished name or, for certificates that leave it empty, the URIs and DNS names of the extension
/// `subjectAltName`.
#[must_use]
pub fn subject(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let name = certificate.subject();
    if !name.is_empty() {
        return Some([b"dn:", name].concat());
    }
    let uris = certificate.valid_uri_names().map(|name| ("uri:", name));
    let hosts = certificate.valid_dns_names().map(|name| ("dns:", name));
    let mut names = Vec::new();
    for (kind, name) in uris.chain(hosts) {
        names.extend_from_slice(kind.as_bytes());
        names.extend_from_slice(&(name.len() as u64).to_be_bytes());
        names.extend_from_slice(name.as_bytes());
    }
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(name: Option<&str>, uri: Option<&str>) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let uri = uri.map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uri);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    }

    #[test]
    fn subject_is_the_name_or_else_the_alternative_names() {
        let of = |name, uri| subject(certificate(name, uri).0.der());
        assert_eq!(of(Some("a"), None), of(Some("a"), Some("spiffe://x/1")));
        assert_ne!(of(Some("a"), None), of(Some("b"), None));
        assert!(of(None, Some("spiffe://x/1")).is_some());
        assert_ne!(
            of(None, Some("spiffe://x/1")),
            of(None, Some("spiffe://x/2"))
        );
        assert_eq!(of(None, None), None);
    }

    #[test]
    fn names_the_file_that_is_unusable() {
        let folder = tempfile::tempdir().unwrap();
        let files = ServerFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
            client_ca: None,
            requires_client: false,
        };
        let build = || files.read().and_then(|pem| pem.config(&[b"h2"]).map(drop));
        let refused = || build().unwrap_err().to_string();
        assert!(refused().contains("tls.crt: "), "{}", refused());
        let (own, key) = certificate(Some("a"), None);
        fs::write(&files.certificate, own.pem()).unwrap();
        assert!(refused().contains("tls.key: "), "{}", refused());
        fs::write(&files.key, &key.serialize_pem()[..60]).unwrap();
        assert!(refused().contains("tls.key: "), "{}", refused());
        let (_, other) = certificate(Some("a"), None);
        fs::write(&files.key, other.serialize_pem()).unwrap();
        assert!(refused().contains("tls.crt with "), "{}", refused());
        fs::write(&files.key, key.serialize_pem()).unwrap();
        assert_eq!(build(), Ok(()));
    }
}
