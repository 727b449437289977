//! What was read from a connection and not taken yet.

use std::{
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The least room that is read into.
const READ_MIN: usize = 1 << 10;
const READ_USUAL: usize = 8 << 10;
/// Grown to while more and more comes.
const READ_MAX: usize = 256 << 10;

/// What was read from a connection and not taken yet.
#[derive(Debug)]
pub struct Input {
    /// What may be taken off the front.
    pub bytes: BytesMut,
    /// How much room is made for what comes next.
    room: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            bytes: BytesMut::new(),
            room: READ_USUAL,
        }
    }
}

impl Input {
    /// Reads what has come; 0 at the end.
    pub fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            // Back to the front, where the processor's cache is warm, if nobody holds a piece any more.
            let _ = self.bytes.try_reclaim(self.room);
        }
        if self.bytes.capacity() - self.bytes.len() < READ_MIN {
            self.bytes.reserve(self.room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(io.read_buf(&mut self.bytes)).poll(context))?;
        if read == room {
            self.room = (self.room * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Whether nothing was read yet, so that there is no room either.
    pub fn is_fresh(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// Makes it as it was before a long message: what that one needed is not held while idle.
    pub fn rest(&mut self) {
        if self.room > READ_USUAL {
            self.room = READ_USUAL;
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }
}
