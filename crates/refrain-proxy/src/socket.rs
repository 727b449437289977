//! A second hold on a connection to the upstream, to look at it while hyper has the first.

use std::{io, os::fd::OwnedFd};

use rustix::net::RecvFlags;
use tokio::net::TcpStream;

/// Looks whether a connection still stands.
#[derive(Debug)]
pub(crate) struct Peek(OwnedFd);

impl Peek {
    pub(crate) fn at(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self(rustix::io::fcntl_dupfd_cloexec(stream, 0)?))
    }

    /// Whether an idle connection can be used: the other side has neither closed it nor said anything unasked.
    ///
    /// The runtime may not have seen yet what has arrived, so the system is asked.
    pub(crate) fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.0, &mut [0_u8; 1], flags);
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }
}
