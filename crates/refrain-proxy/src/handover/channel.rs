//! One connection to a control socket: frames with a length, and file descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use refrain::store::embedded::wire;
use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest},
    net::UnixStream,
};

/// Version of the messages.
pub const VERSION: u32 = 1;
/// Largest frame: the largest outcome, with room for the rest of its call.
const FRAME_BYTES_MAX: u32 = (1 << 30) + (1 << 20);
/// Sockets that are passed at once.
const SOCKETS: usize = 2;

/// What two proxies say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Message {
    /// The new process asks to replace the old one.
    Replace {
        /// Version of the messages.
        version: u32,
        /// Version of the calls to a store.
        calls: u32,
        /// Folder of the embedded store; `None` for a store that several processes share.
        folder: Option<PathBuf>,
    },
    /// A process whose connection broke makes its calls to the store over this one.
    Call {
        /// Version of the calls.
        calls: u32,
    },
    /// The old process agrees; its listening sockets follow: for clients, and for operators.
    Sockets {
        /// Its process ID.
        pid: u32,
        /// Address for clients.
        listen: SocketAddr,
        /// Address of the admin listener.
        admin: SocketAddr,
    },
    /// The new process is ready to open the store.
    Ready {
        /// Its process ID.
        pid: u32,
    },
    /// The old process accepts no more connections and has closed the store; the frame after it has the leases.
    Closed,
    /// The new process serves.
    Serving,
    /// The sender gives up.
    Refused {
        /// Why.
        why: String,
    },
}

/// A connection between two proxies.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// Connects to a control socket.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self)
    }

    /// A connection that was accepted.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn send(&mut self, message: &Message) -> io::Result<()> {
        self.send_bytes(&serde_json::to_vec(message)?).await
    }

    /// Receives a message.
    ///
    /// # Errors
    /// When the connection is broken, or the message is unknown.
    pub async fn receive(&mut self) -> io::Result<Message> {
        Ok(serde_json::from_slice(&self.receive_bytes().await?)?)
    }

    /// Sends bytes as one frame.
    ///
    /// # Errors
    /// When the connection is broken, or there are too many bytes.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        write_frame(&mut self.0, bytes).await
    }

    /// Receives one frame.
    ///
    /// # Errors
    /// When the connection is broken, or the frame is too large.
    pub async fn receive_bytes(&mut self) -> io::Result<Bytes> {
        read_frame(&mut self.0).await
    }

    /// Passes sockets to the other process.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn send_sockets(&mut self, sockets: [BorrowedFd<'_>; SOCKETS]) -> io::Result<()> {
        let send = || {
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
            let mut buffer = SendAncillaryBuffer::new(&mut space);
            buffer.push(SendAncillaryMessage::ScmRights(&sockets));
            let bytes = [IoSlice::new(b"s")];
            sendmsg(self.0.as_fd(), &bytes, &mut buffer, SendFlags::NOSIGNAL).map_err(would_block)
        };
        self.0.async_io(Interest::WRITABLE, send).await.map(drop)
    }

    /// Receives the sockets that the other process passes.
    ///
    /// # Errors
    /// When the connection is broken, or the other process passed no sockets.
    pub async fn receive_sockets(&mut self) -> io::Result<[OwnedFd; SOCKETS]> {
        let receive = || {
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
            let mut buffer = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let mut bytes = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            recvmsg(self.0.as_fd(), &mut bytes, &mut buffer, flags).map_err(would_block)?;
            let mut sockets = Vec::new();
            for message in buffer.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    sockets.extend(passed);
                }
            }
            Ok(sockets)
        };
        let sockets: Vec<OwnedFd> = self.0.async_io(Interest::READABLE, receive).await?;
        let missing = |_| io::Error::new(io::ErrorKind::InvalidData, "no sockets were passed");
        sockets.try_into().map_err(missing)
    }

    /// Both directions of the connection.
    pub(super) fn split(
        self,
    ) -> (
        tokio::net::unix::OwnedReadHalf,
        tokio::net::unix::OwnedWriteHalf,
    ) {
        self.0.into_split()
    }
}

impl Message {
    /// The request of a process that wants to replace this one.
    #[must_use]
    pub fn replace(folder: Option<PathBuf>) -> Self {
        Self::Replace {
            version: VERSION,
            calls: wire::VERSION,
            folder,
        }
    }
}

fn would_block(error: Errno) -> io::Error {
    error.into()
}

pub(super) async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> io::Result<()> {
    let len = u32::try_from(bytes.len())
        .ok()
        .filter(|len| *len <= FRAME_BYTES_MAX);
    let len =
        len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too large"))?;
    stream.write_all(&len.to_le_bytes()).await?;
    stream.write_all(bytes).await
}

pub(super) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let len = stream.read_u32_le().await?;
    if len > FRAME_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is too large",
        ));
    }
    // Grows with the bytes that arrive, not with the length that is announced.
    let mut bytes = Vec::new();
    stream.take(len.into()).read_to_end(&mut bytes).await?;
    match bytes.len() == len as usize {
        true => Ok(bytes.into()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
