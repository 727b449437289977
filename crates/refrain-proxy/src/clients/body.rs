//! The body of a client's request, watched while it comes.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use refrain::http::BodyError;
use tokio::runtime::Handle;

use super::{inlet::Inlet, linger::linger};
use crate::{http1::Step, watch::Client};

/// The body of a client's request.
pub(crate) struct ClientBody(Kind);

enum Kind {
    /// All of it, as most are; `None` once it was told.
    Whole(Option<Bytes>),
    /// Of HTTP/1.
    Inlet(Held, Watched),
    /// Of HTTP/2.
    Stream(Streamed, Watched),
}

/// A body of HTTP/2. What is left of it when it is dropped is read to its end, or its stream would be reset.
struct Streamed(Option<Incoming>);

impl Streamed {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        let left = self.0.take().filter(|body| !body.is_end_stream());
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

/// A connection whose next bytes are this body's, until this is dropped: at the latest when the body has ended.
struct Held(Inlet);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Tells that a body is waited for.
struct Watched {
    /// `None` where the connection's own time does.
    since: Option<Arc<AtomicU64>>,
    client: Arc<Client>,
}

impl Watched {
    fn note(&self, is_waited_for: bool) {
        let since = self.since.as_deref();
        self.client.note_body(since, is_waited_for);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.note(false);
    }
}

impl ClientBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    pub(super) fn inlet(body: Inlet, client: &Arc<Client>) -> Self {
        let watched = Watched {
            since: None,
            client: client.clone(),
        };
        Self(Kind::Inlet(Held(body), watched))
    }

    pub(super) fn stream(body: Incoming, client: &Arc<Client>) -> Self {
        let watched = Watched {
            since: client.flow(),
            client: client.clone(),
        };
        Self(Kind::Stream(Streamed(Some(body)), watched))
    }

    /// What comes next of a body of HTTP/1.
    fn frame(&mut self, step: io::Result<(Step, bool)>) -> Option<Result<Frame<Bytes>, BodyError>> {
        let (step, is_last) = match step {
            Ok(step) => step,
            Err(error) => return Some(Err(error.into())),
        };
        if is_last {
            // What comes behind it is the next request's.
            self.0 = Kind::Whole(None);
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
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Inlet(held, watched) => {
                let polled = held.0.poll_step(context);
                watched.note(polled.is_pending());
                if polled.is_pending() && watched.client.has_timed_out() {
                    held.0.give_up();
                    return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
                }
                polled.map(|step| self.frame(step))
            }
            Kind::Stream(body, watched) => {
                let polled = body.poll_frame(context);
                watched.note(polled.is_pending());
                polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Inlet(..) => false,
            Kind::Stream(body, _) => body.0.as_ref().is_none_or(Incoming::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Inlet(held, _) => held.0.lock().size_hint(),
            Kind::Stream(body, _) => body
                .0
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
