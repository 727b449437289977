//! The body of a client's request, with its timeout.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use refrain::http::BodyError;
use tokio::{
    runtime::Handle,
    time::{Sleep, sleep},
};

use super::{inlet::Inlet, linger::linger};
use crate::{http1::Step, watch::Client};

/// The body of a client's request.
pub(crate) struct ClientBody(ClientBodyKind);

enum ClientBodyKind {
    /// The complete body, which is the usual case; `None` once it was returned.
    Whole(Option<Bytes>),
    /// Body of an HTTP/1 request.
    Inlet(HeldInlet, Watched),
    /// Body of an HTTP/2 request.
    Stream(StreamedBody),
}

/// An HTTP/2 body. On drop the rest of it is read, because otherwise the stream would be reset.
struct StreamedBody {
    body: Option<Incoming>,
    /// Longest wait for the next piece.
    timeout: Duration,
    /// Runs while the next piece is awaited.
    late: Option<Pin<Box<Sleep>>>,
}

impl StreamedBody {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            self.late = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.timeout;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(late.as_mut().poll(context));
        self.late = None;
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        let left = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(mut body), Ok(runtime)) = (left, Handle::try_current()) {
            runtime.spawn(linger(move |context| {
                let polled = Pin::new(&mut body).poll_frame(context);
                polled.map(|frame| match frame {
                    Some(Ok(frame)) => frame.data_ref().map_or(1, |data| data.len().max(1)),
                    Some(Err(_)) | None => 0,
                })
            }));
        }
    }
}

/// Exclusive right to read the connection as this body, until this is dropped: at the latest when the body has ended.
struct HeldInlet(Inlet);

impl Drop for HeldInlet {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Reports the wait for an HTTP/1 body; dropping this ends the wait.
struct Watched(Arc<Client>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.note_body(false);
    }
}

impl ClientBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(ClientBodyKind::Whole(
            Some(bytes).filter(|bytes| !bytes.is_empty()),
        ))
    }

    pub(super) fn inlet(body: Inlet, client: &Arc<Client>) -> Self {
        Self(ClientBodyKind::Inlet(
            HeldInlet(body),
            Watched(client.clone()),
        ))
    }

    /// `timeout` is the longest wait for the next piece.
    pub(super) fn stream(body: Incoming, timeout: Duration) -> Self {
        Self(ClientBodyKind::Stream(StreamedBody {
            body: Some(body),
            timeout,
            late: None,
        }))
    }

    /// Converts the next step of an HTTP/1 body into a frame.
    fn frame(&mut self, step: io::Result<(Step, bool)>) -> Option<Result<Frame<Bytes>, BodyError>> {
        let (step, is_last) = match step {
            Ok(step) => step,
            Err(error) => return Some(Err(error.into())),
        };
        if is_last {
            // The bytes after it belong to the next request.
            self.0 = ClientBodyKind::Whole(None);
        }
        match step {
            Step::Data(data) => Some(Ok(Frame::data(data))),
            Step::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Step::More | Step::End => None,
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            ClientBodyKind::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            ClientBodyKind::Inlet(held, watched) => {
                let polled = held.0.poll_step(context);
                watched.0.note_body(polled.is_pending());
                if polled.is_pending() && watched.0.has_timed_out() {
                    held.0.give_up();
                    return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
                }
                polled.map(|step| self.frame(step))
            }
            ClientBodyKind::Stream(streamed) => streamed.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            ClientBodyKind::Whole(bytes) => bytes.is_none(),
            ClientBodyKind::Inlet(..) => false,
            ClientBodyKind::Stream(StreamedBody { body, .. }) => {
                body.as_ref().is_none_or(Incoming::is_end_stream)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            ClientBodyKind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            ClientBodyKind::Inlet(held, _) => held.0.lock().size_hint(),
            ClientBodyKind::Stream(StreamedBody { body, .. }) => body
                .as_ref()
                .map_or_else(SizeHint::default, Incoming::size_hint),
        }
    }
}

impl std::fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientBody")
    }
}
