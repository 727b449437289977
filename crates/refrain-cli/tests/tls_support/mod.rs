//! Certificates for tests, and TLS clients that trust them.

#![allow(dead_code, reason = "each test file uses only part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::support::PATIENCE;

/// A folder with an authority, and what it has issued.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority; its certificate is `ca.pem`.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let own = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), own.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate with this common name, for localhost, as `NAME.crt` and `NAME.key`; returns it.
    pub(crate) fn issue(&self, name: &str) -> Vec<u8> {
        let (certificate, key, der) = self.issued(name);
        fs::write(self.path(&format!("{name}.key")), key).unwrap();
        fs::write(self.path(&format!("{name}.crt")), certificate).unwrap();
        der
    }

    /// Certificate and key as PEM, and the certificate as DER.
    pub(crate) fn issued(&self, name: &str) -> (String, String, Vec<u8>) {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let der = certificate.der().to_vec();
        (certificate.pem(), key.serialize_pem(), der)
    }

    /// `[tls]` with the certificate of this name, and more settings.
    pub(crate) fn table(&self, table: &str, name: &str, more: &str) -> String {
        let file = |end| self.path(&format!("{name}.{end}"));
        let (certificate, key) = (file("crt"), file("key"));
        format!("[{table}]\ncertificate = {certificate:?}\nkey = {key:?}\n{more}\n")
    }

    /// Configuration of a client that trusts this authority, and has the certificate of this name.
    pub(crate) fn client(&self, name: Option<&str>, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(pem(&self.path("ca.pem"))).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = self.path(&format!("{name}.key"));
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                let chain = vec![pem(&self.path(&format!("{name}.crt")))];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Runs curl, which trusts this authority.
    pub(crate) fn curl(&self, args: &[&str]) -> Output {
        let ca = self.path("ca.pem");
        let common = ["-sS", "--max-time", "60", "--cacert"];
        let mut command = Command::new("curl");
        command.args(common).arg(ca).args(args).output().unwrap()
    }
}

fn pem(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// A TLS connection.
pub(crate) struct TlsClient(pub(crate) StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    /// Connects and completes the handshake.
    pub(crate) fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        let mut tcp = TcpStream::connect(address)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let mut session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut tcp)?;
        }
        Ok(Self(StreamOwned::new(session, tcp)))
    }

    /// The protocol of ALPN.
    pub(crate) fn protocol(&self) -> Option<String> {
        let protocol = self.0.conn.alpn_protocol();
        protocol.map(|it| String::from_utf8(it.to_vec()).unwrap())
    }

    /// Whether this is the server's certificate.
    pub(crate) fn serves(&self, der: &[u8]) -> bool {
        *self.0.conn.peer_certificates().unwrap()[0] == *der
    }

    /// Sends an HTTP/1.1 request, and returns the head of the response and as much of the body as its length says.
    pub(crate) fn call(&mut self, request: &str) -> std::io::Result<String> {
        self.0.write_all(request.as_bytes())?;
        self.0.flush()?;
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let text = String::from_utf8_lossy(&all).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let mut lines = head.lines();
                let length = lines.find_map(|it| it.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |it| it.parse().unwrap()) {
                    return Ok(text);
                }
            }
            match self.0.read(&mut piece)? {
                0 => return Ok(text),
                len => all.extend_from_slice(&piece[..len]),
            }
        }
    }
}

/// A guarded request.
pub(crate) fn keyed(key: &str) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nhost: localhost\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}
