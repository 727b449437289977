//! The body of a request to the upstream.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Empty;
use refrain::http::{Body, BodyError};

use crate::{clients::ClientBody, headers};

/// The body of a request to the upstream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: OutgoingBody,
    /// Progress of a body that a client still sends; `None` if it is in memory.
    state: Option<Arc<SendState>>,
}

#[derive(Debug)]
enum OutgoingBody {
    Client(Body<ClientBody>),
    /// Of a request that no client sent: a probe, or a delivered message.
    Own(Body<Empty<Bytes>>),
}

/// Progress of a body that is being sent.
#[derive(Debug, Default)]
pub(crate) struct SendState {
    is_over: AtomicBool,
    has_moved: AtomicBool,
    /// Why the body failed.
    failed: Mutex<Option<BodyError>>,
}

impl SendState {
    /// Whether the whole body was taken from the client.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Whether the body has made progress since the last call.
    pub(crate) fn take_moved(&self) -> bool {
        self.has_moved.swap(false, Relaxed)
    }

    pub(crate) fn take_failure(&self) -> Option<BodyError> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take()
    }

    fn fail(&self, error: BodyError) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl Outgoing {
    /// Progress of the body, unless it is in memory.
    pub(crate) fn state(&self) -> Option<Arc<SendState>> {
        self.state.clone()
    }
}

impl From<Body<ClientBody>> for Outgoing {
    fn from(body: Body<ClientBody>) -> Self {
        let is_in_memory = body.is_granted() || body.is_end_stream();
        Self {
            state: (!is_in_memory).then(Arc::default),
            body: OutgoingBody::Client(body),
        }
    }
}

impl From<Body<Empty<Bytes>>> for Outgoing {
    fn from(body: Body<Empty<Bytes>>) -> Self {
        Self {
            state: None,
            body: OutgoingBody::Own(body),
        }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.body {
            OutgoingBody::Client(body) => Pin::new(body).poll_frame(context),
            OutgoingBody::Own(body) => Pin::new(body).poll_frame(context),
        };
        let mut frame = ready!(polled);
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::strip_trailers(trailers);
        }
        let Some(state) = &self.state else {
            return Poll::Ready(frame);
        };
        state.has_moved.store(true, Relaxed);
        let frame = frame.map(|frame| {
            frame.map_err(|error| {
                let text = error.to_string();
                state.fail(error);
                text.into()
            })
        });
        let is_over = frame.is_none() || self.is_end_stream();
        state.is_over.store(is_over, Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            OutgoingBody::Client(body) => body.is_end_stream(),
            OutgoingBody::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            OutgoingBody::Client(body) => body.size_hint(),
            OutgoingBody::Own(body) => body.size_hint(),
        }
    }
}
