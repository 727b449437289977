//! The verified certificate of a client, as a request extension.

use std::sync::Arc;

/// Request extension: who the client is, by its certificate, which the server of this connection has verified.
///
/// The server sets it, never a header: `scope = "tls:subject"` and `credential = ["tls:subject"]` of the policy read it,
/// and reject requests without it. `refrain proxy` sets it for clients with a certificate of `client_ca`.
///
/// ```
/// use refrain::http::ClientCertificate;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(ClientCertificate::new(b"CN=billing"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate(Arc<[u8]>);

impl ClientCertificate {
    /// A certificate with this subject. Certificates of the same client must have equal bytes, and of others different ones.
    #[must_use]
    pub fn new(subject: impl AsRef<[u8]>) -> Self {
        Self(subject.as_ref().into())
    }

    /// The bytes of the subject.
    #[must_use]
    pub fn subject(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientCertificate({})", self.0.escape_ascii())
    }
}
