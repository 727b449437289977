//! Read buffer of a connection.

use std::{
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Least free space to read into.
const READ_MIN: usize = 1 << 10;
const READ_USUAL: usize = 8 << 10;
/// Largest read size; it grows up to this while reads fill the buffer.
const READ_MAX: usize = 256 << 10;

/// Read buffer of a connection.
#[derive(Debug)]
pub struct Input {
    /// Bytes that were read and not consumed yet; consumed from the front.
    pub bytes: BytesMut,
    /// Space that is reserved for the next read.
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
    /// Reads into the buffer; returns the number of bytes, 0 at the end of the stream.
    pub fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            // Reuse the front of the allocation, which is warm in the processor's cache, unless a piece of it is still held.
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

    /// Shrinks a buffer that grew for a long message, so that an idle connection does not hold its memory.
    pub fn rest(&mut self) {
        if self.room > READ_USUAL {
            self.room = READ_USUAL;
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }
}
