//! A request's body on its way to the upstream.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use refrain::http::{Body, BodyError};

use crate::watch::ClientBody;

/// A request's body on its way to the upstream.
pub(crate) enum Outgoing {
    Client(Body<ClientBody>),
    /// Of a probe.
    Nothing,
}

impl From<Body<ClientBody>> for Outgoing {
    fn from(body: Body<ClientBody>) -> Self {
        Self::Client(body)
    }
}

impl From<Body<http_body_util::Empty<Bytes>>> for Outgoing {
    fn from(_: Body<http_body_util::Empty<Bytes>>) -> Self {
        Self::Nothing
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Client(body) => Pin::new(body).poll_frame(context),
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Nothing => SizeHint::with_exact(0),
        }
    }
}
