//! A request's body on its way to the upstream.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Empty;
use refrain::http::{Body, BodyError};
use tokio::time::timeout;

use crate::watch::ClientBody;

/// A request's body on its way to the upstream.
pub(crate) struct Outgoing {
    kind: Kind,
    /// Told whenever a piece has gone out, where somebody asks.
    moved: Option<Arc<AtomicBool>>,
}

enum Kind {
    Client(Body<ClientBody>),
    /// Of our own making: a probe's, or a message.
    Own(Body<Empty<Bytes>>),
}

/// Tells whether a body goes on.
pub(crate) struct Movement(Option<Arc<AtomicBool>>);

impl Outgoing {
    /// Has its movement told, if there is anything to move.
    pub(crate) fn watch(&mut self) -> Movement {
        if !self.is_end_stream() {
            self.moved = Some(Arc::default());
        }
        Movement(self.moved.clone())
    }
}

impl Movement {
    /// Waits for `work`; `None` once it has not ended in this time, nor has the body moved.
    pub(crate) async fn or_still<T>(
        self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        loop {
            if let Ok(done) = timeout(patience, &mut work).await {
                return Some(done);
            }
            let moved = self.0.as_ref().map(|moved| moved.swap(false, Relaxed));
            if moved != Some(true) {
                return None;
            }
        }
    }
}

impl From<Body<ClientBody>> for Outgoing {
    fn from(body: Body<ClientBody>) -> Self {
        Self {
            kind: Kind::Client(body),
            moved: None,
        }
    }
}

impl From<Body<Empty<Bytes>>> for Outgoing {
    fn from(body: Body<Empty<Bytes>>) -> Self {
        Self {
            kind: Kind::Own(body),
            moved: None,
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
        let polled = match &mut self.kind {
            Kind::Client(body) => Pin::new(body).poll_frame(context),
            Kind::Own(body) => Pin::new(body).poll_frame(context),
        };
        if let (Poll::Ready(_), Some(moved)) = (&polled, &self.moved) {
            moved.store(true, Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Client(body) => body.is_end_stream(),
            Kind::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Client(body) => body.size_hint(),
            Kind::Own(body) => body.size_hint(),
        }
    }
}
