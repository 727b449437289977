//! A TCP connection, with or without TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use rustix::net::RecvFlags;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;

/// A connection to a client or to the upstream.
pub(crate) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Ready if bytes may be read. Over TLS always, because only a read shows whether a whole piece has arrived.
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(context),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    /// Whether an idle connection is open, and no bytes have arrived. Asks the kernel.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(stream) => is_empty(stream),
            Self::Tls(stream) => {
                // Encrypted bytes may already have been read from the socket.
                let mut byte = [0];
                let (mut byte, context) = (ReadBuf::new(&mut byte), Waker::noop());
                let mut context = Context::from_waker(context);
                is_empty(stream.get_ref().0)
                    && Pin::new(&mut **stream)
                        .poll_read(&mut context, &mut byte)
                        .is_pending()
            }
        }
    }
}

fn is_empty(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = rustix::net::recv(stream, &mut [0_u8; 1], flags);
    matches!(peeked, Err(rustix::io::Errno::AGAIN))
}

/// Applies the same operation to either kind of writable connection.
macro_rules! either {
    ($it:expr, $inner:ident => $do:expr) => {
        match $it.get_mut() {
            Io::Plain($inner) => {
                let $inner = Pin::new($inner);
                $do
            }
            Io::Tls($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $do
            }
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(inner) => Pin::new(inner).poll_read(context, buffer),
            Self::Tls(inner) => Pin::new(&mut **inner).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => inner.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => inner.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => inner.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => inner.poll_shutdown(context))
    }
}
