//! A private CA and certificates that it signs.
#![allow(dead_code)]

use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Key and certificate files of a CA, of a server at 127.0.0.1 and of a client.
pub(crate) struct Pki {
    folder: tempfile::TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Distinct names: with one name for all, every certificate would look self-signed.
        params.distinguished_name = named("authority");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        write("ca.pem", ca.pem());
        for name in ["server", "client"] {
            let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name = named(name);
            let key = KeyPair::generate().unwrap();
            write(
                &format!("{name}.pem"),
                params.signed_by(&key, &ca).unwrap().pem(),
            );
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn show(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// TLS configuration for a server of the test.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(self.path("server.pem")).unwrap();
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        Arc::new(config.unwrap())
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
