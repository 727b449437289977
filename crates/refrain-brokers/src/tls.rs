//! TLS for broker connections: rustls with the ring provider, also if the program installs another default provider.

use std::{path::Path, sync::Arc};

use refrain::{Error, ErrorKind, Result};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Builds a TLS configuration that trusts the CA file, or the system's root certificates without one. `own`
/// is the client certificate and its private key.
pub(crate) fn client(ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // An unencrypted connection needs no root certificates. If none load, a TLS connection fails with an
    // untrusted issuer.
    let certs = match ca {
        Some(file) => certificates("ca", file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(certs);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", error))?
        .with_root_certificates(roots);
    let Some((cert, key)) = own else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("cert", cert)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unusable(&format!("key={}", key.display()), error))?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| unusable(&format!("cert={}", cert.display()), error))
}

fn certificates(name: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certs) if !certs.is_empty() => Ok(certs),
        Ok(_) => Err(unusable(&format!("{name}={}", file.display()), "empty")),
        Err(error) => Err(unusable(&format!("{name}={}", file.display()), error)),
    }
}

fn unusable(what: &str, why: impl std::fmt::Display) -> Error {
    let message = format!(
        "cannot use {what}: {why}; use a PEM file that this process has permission to read"
    );
    Error::new(ErrorKind::Invalid, message)
}
