//! One connection to the upstream, and its read buffer.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::BytesMut;
use rustix::net::RecvFlags;
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::UpstreamHeadParser;
use crate::{
    connect::Io,
    http1::{Input, Sending},
    outgoing::Outgoing,
};

/// A connection that carries one request at a time.
pub(crate) struct UpstreamConnection {
    pub(super) io: Io,
    pub(crate) input: Input,
    pub(super) heads: UpstreamHeadParser,
    /// Created once, and reset only after it fires: most responses arrive long before that.
    timer: Option<Pin<Box<Sleep>>>,
    /// Counts the connection towards the limit.
    permit: OwnedSemaphorePermit,
}

impl UpstreamConnection {
    pub(crate) fn new(io: Io, permit: OwnedSemaphorePermit) -> Self {
        Self {
            io,
            permit,
            input: Input::default(),
            heads: UpstreamHeadParser::default(),
            timer: None,
        }
    }

    /// Reads into the buffer; returns the number of bytes, 0 at the end of the stream.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.poll_read(&mut self.io, context)
    }

    /// Ready at this moment or shortly after it.
    pub(super) fn poll_moment(&mut self, moment: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(moment)));
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= moment {
                return Poll::Ready(());
            }
            timer.as_mut().reset(moment);
        }
    }

    /// Whether an idle connection is usable: the upstream has neither closed it nor sent bytes without a request.
    ///
    /// Asks the kernel, because the runtime may not have seen newly arrived bytes yet.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match &mut self.io {
            Io::Plain(stream) => is_empty(stream),
            Io::Tls(stream) => {
                // Encrypted bytes may already have been read from the socket.
                let mut byte = [0];
                let (mut byte, context) = (ReadBuf::new(&mut byte), Waker::noop());
                let mut context = Context::from_waker(context);
                is_empty(stream.get_ref().0)
                    && Pin::new(&mut **stream)
                        .poll_read(&mut context, &mut byte)
                        .is_pending()
            }
            Io::Read(_) => false,
        }
    }

    /// Whether the end of the stream is authenticated: TLS tells an intended close from a broken connection.
    pub(crate) fn is_authenticated(&self) -> bool {
        matches!(self.io, Io::Tls(_))
    }

    /// Sends the rest of a request in a task of its own, while its response is already read.
    ///
    /// The task ends with the client's body, when sending fails, or when the body makes no progress for `patience`.
    pub(super) fn send_rest_in_background(
        self,
        mut sending: Sending<Outgoing>,
        patience: Duration,
    ) -> Self {
        let (read, mut write) = tokio::io::split(Box::new(self.io));
        tokio::spawn(async move {
            let mut has_moved = true;
            while has_moved {
                let sent = poll_fn(|context| sending.poll(&mut write, context));
                has_moved = timeout(patience, sent).await.is_err() && sending.take_moved();
            }
        });
        Self {
            io: Io::Read(read),
            ..self
        }
    }

    /// The connection itself, the bytes that were read from it and not consumed, and its permit.
    pub(crate) fn into_parts(self) -> (Io, BytesMut, OwnedSemaphorePermit) {
        (self.io, self.input.bytes, self.permit)
    }
}

fn is_empty(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = rustix::net::recv(stream, &mut [0_u8; 1], flags);
    matches!(peeked, Err(rustix::io::Errno::AGAIN))
}
