//! The body of a request to the upstream.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Empty;
use refrain::http::{Body, BodyError};

use crate::clients::ClientBody;

/// The body of a request to the upstream.
pub(crate) enum Outgoing {
    Client(Body<ClientBody>),
    /// Of a request that no client sent: a probe, or a delivered message.
    Own(Body<Empty<Bytes>>),
}

impl From<Body<ClientBody>> for Outgoing {
    fn from(body: Body<ClientBody>) -> Self {
        Self::Client(body)
    }
}

impl From<Body<Empty<Bytes>>> for Outgoing {
    fn from(body: Body<Empty<Bytes>>) -> Self {
        Self::Own(body)
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
            Self::Own(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
