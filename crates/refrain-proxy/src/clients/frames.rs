//! Counts the frames of HTTP/2 clients that carry no part of a request, so that a flood of them ends the connection.
//!
//! h2 limits the frames that cost memory. SETTINGS, PING and the like cost only processor time, and have no limit there.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http2::PREFACE;
use crate::watch::Client;

/// Most of these frames in [`WINDOW_MILLIS`]. A client needs a few for each request.
const FRAMES_MAX: u32 = 10_000;
const WINDOW_MILLIS: u64 = 1_000;
const HEAD_LEN: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Finds the frames in a stream of bytes.
#[derive(Debug)]
struct FrameMeter {
    head: [u8; HEAD_LEN],
    /// Length of the part of `head` that was read.
    head_len: usize,
    /// Bytes to skip: the preface, or the rest of a payload.
    skipped: usize,
    count: u32,
    /// When counting started, on the clock of the client.
    since: u64,
}

impl Default for FrameMeter {
    fn default() -> Self {
        Self {
            head: [0; HEAD_LEN],
            head_len: 0,
            skipped: PREFACE.len(),
            count: 0,
            since: 0,
        }
    }
}

impl FrameMeter {
    /// Reads the next bytes; returns whether there were too many frames at `now`.
    fn is_flooded(&mut self, mut bytes: &[u8], now: u64, is_idle: bool) -> bool {
        if now.saturating_sub(self.since) >= WINDOW_MILLIS {
            (self.since, self.count) = (now, 0);
        }
        while !bytes.is_empty() {
            if let Some(kind) = self.take(&mut bytes) {
                self.count += u32::from(carries_no_request(kind, is_idle));
            }
        }
        self.count > FRAMES_MAX
    }

    /// Takes bytes from the start; returns the type of the frame whose head they complete.
    fn take(&mut self, bytes: &mut &[u8]) -> Option<u8> {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        *bytes = &bytes[skipped..];
        let len = bytes.len().min(HEAD_LEN - self.head_len);
        self.head[self.head_len..][..len].copy_from_slice(&bytes[..len]);
        self.head_len += len;
        *bytes = &bytes[len..];
        if self.head_len < HEAD_LEN {
            return None;
        }
        let [high, middle, low, kind, ..] = self.head;
        self.skipped = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.head_len = 0;
        Some(kind)
    }
}

/// A client that receives a response sends window updates; an idle one needs none.
fn carries_no_request(kind: u8, is_idle: bool) -> bool {
    match kind {
        DATA | HEADERS | CONTINUATION => false,
        WINDOW_UPDATE => is_idle,
        _ => true,
    }
}

/// A client's stream that fails on a flood of frames.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    stream: S,
    client: Arc<Client>,
    meter: FrameMeter,
}

impl<S> MeteredStream<S> {
    pub(super) fn new(stream: S, client: &Arc<Client>) -> Self {
        Self {
            stream,
            client: client.clone(),
            meter: FrameMeter::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let (now, is_idle) = (self.client.now(), self.client.is_idle());
        let read = &buffer.filled()[start..];
        if self.meter.is_flooded(read, now, is_idle) {
            refrain::log_rarely!(
                warn,
                "a client sent too many HTTP/2 frames that carry no request; its connection is closed"
            );
            return Poll::Ready(Err(io::Error::other("a flood of HTTP/2 frames")));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, len: u8) -> Vec<u8> {
        let head = [0, 0, len, kind, 0, 0, 0, 0, 1];
        [&head[..], &vec![b'x'; len.into()]].concat()
    }

    #[test]
    fn frames_are_counted_however_their_bytes_arrive() {
        let mut bytes = PREFACE.to_vec();
        for kind in [4, 6, 0, 1, 9, 6, 8, 200] {
            bytes.extend(frame(kind, kind));
        }
        for (is_idle, expected) in [(false, 4), (true, 5)] {
            for step in 1..bytes.len() {
                let mut meter = FrameMeter::default();
                for piece in bytes.chunks(step) {
                    assert!(!meter.is_flooded(piece, 1, is_idle));
                }
                assert_eq!(meter.count, expected, "{step} bytes at a time");
            }
        }
    }

    #[test]
    fn only_the_frames_of_one_second_add_up() {
        let mut meter = FrameMeter::default();
        assert!(!meter.is_flooded(PREFACE, 1, true));
        let many = frame(6, 8).repeat(FRAMES_MAX as usize);
        for second in 1..4 {
            assert!(!meter.is_flooded(&many, second * WINDOW_MILLIS, true));
        }
        assert!(meter.is_flooded(&frame(6, 8), 3 * WINDOW_MILLIS + 1, true));
    }
}
