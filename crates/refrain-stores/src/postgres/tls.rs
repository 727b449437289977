//! TLS to the server, with rustls.

use std::{fmt, io, pin::Pin, sync::Arc, task};

use refrain::{Error, ErrorKind, Result};
use refrain_tls::{Authorities, Identity, PemFile, Verification};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    config::SslMode,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect},
};
use tokio_rustls::{
    TlsConnector, client,
    rustls::{ClientConfig, pki_types::ServerName},
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
        let uses_tls = address.config.get_ssl_mode() != SslMode::Disable;
        let authorities = || {
            let setting = "sslrootcert";
            let file = address.roots.as_deref();
            let file = file.map(|path| PemFile { setting, path });
            Authorities::read(file)?.at_least_one("sslrootcert=FILE")
        };
        let verification = match address.trust {
            _ if !uses_tls => Ok(Verification::None),
            Trust::Anybody => Ok(Verification::None),
            Trust::Authority => authorities().map(Verification::Authority),
            Trust::Full => authorities().map(Verification::Full),
        };
        let identity = address.client.as_ref().map(|client| Identity {
            certificates: PemFile {
                setting: "sslcert",
                path: &client.certificate,
            },
            key: PemFile {
                setting: "sslkey",
                path: &client.key,
            },
        });
        let config = verification.and_then(|it| refrain_tls::client(it, identity));
        match config {
            Ok(config) => Ok(Self(Arc::new(config))),
            Err(error) => Err(Error::new(ErrorKind::Invalid, error.to_string())),
        }
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
