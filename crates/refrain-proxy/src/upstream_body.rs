//! The body of a response: the upstream's, or the proxy's own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use refrain::http::BodyError;
use tokio::time::Sleep;

use crate::{
    http1::{Framing, Step},
    pool::UpstreamPool,
    upstream::UpstreamConnection,
};

/// The body of a response: the upstream's, or the proxy's own.
pub struct UpstreamBody(UpstreamBodyKind);

enum UpstreamBodyKind {
    Own(Option<Bytes>),
    Upstream(Box<UpstreamFlow>),
}

/// A body that is being received, and its connection.
struct UpstreamFlow {
    framing: Framing,
    /// `None` once the body has ended or failed.
    line: Option<Box<UpstreamConnection>>,
    /// Where the connection is returned to at the end, if it can be reused.
    pool: Option<Arc<UpstreamPool>>,
    stall: Option<Stall>,
    /// Whether the close of the connection completes a body that has no other end.
    trusts_close: bool,
    /// Why the body failed; reported one poll later, so that the data before it can leave.
    broken: Option<BodyError>,
}

/// Timeout of a body that stalls.
struct Stall {
    after: Duration,
    /// Created when the body first stalls.
    sleep: Option<Pin<Box<Sleep>>>,
    has_moved: bool,
}

impl UpstreamBody {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self(UpstreamBodyKind::Own(Some(text.into())))
    }

    pub(crate) fn empty() -> Self {
        Self(UpstreamBodyKind::Own(None))
    }

    /// The upstream's body; its connection returns to `pool` when the body has ended.
    /// `stall` is how long it may stall; `None` if the layer applies the timeouts.
    pub(crate) fn of(
        mut framing: Framing,
        mut line: Box<UpstreamConnection>,
        pool: Option<&Arc<UpstreamPool>>,
        stall: Option<Duration>,
    ) -> Self {
        // Most bodies have already been read completely.
        let mut whole = None;
        if let Framing::Length(length @ 1..) = framing
            && length <= line.input.bytes.len() as u64
            && let Ok(Step::Data(data)) = framing.next(&mut line.input.bytes)
        {
            whole = Some(data);
        }
        if framing.is_over() {
            if let Some(pool) = pool {
                pool.give_back(line);
            }
            return Self(UpstreamBodyKind::Own(whole));
        }
        Self(UpstreamBodyKind::Upstream(Box::new(UpstreamFlow {
            framing,
            line: Some(line),
            pool: pool.cloned(),
            stall: stall.map(|after| Stall {
                after,
                sleep: None,
                has_moved: false,
            }),
            trusts_close: true,
            broken: None,
        })))
    }

    /// Sets whether the close of the connection completes a body that has no other end; if not, such a body counts as truncated.
    pub(crate) fn trusting(mut self, trusts_close: bool) -> Self {
        if let UpstreamBodyKind::Upstream(flow) = &mut self.0 {
            flow.trusts_close = trusts_close;
        }
        self
    }
}

impl UpstreamFlow {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        let Poll::Ready(step) = self.poll_step(context) else {
            return self.poll_stall(context);
        };
        if let Some(stall) = &mut self.stall {
            stall.has_moved = true;
        }
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                (self.line, self.broken) = (None, Some(error));
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        };
        let frame = match step {
            Step::Data(data) => Some(Ok(Frame::data(data))),
            Step::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Step::More | Step::End => None,
        };
        if frame.is_none() || self.framing.is_over() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn end(&mut self) {
        self.framing = Framing::Length(0);
        if let (Some(line), Some(pool)) = (self.line.take(), self.pool.take()) {
            pool.give_back(line);
        }
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Step, BodyError>> {
        let Some(line) = &mut self.line else {
            return Poll::Ready(match self.framing.is_over() {
                true => Ok(Step::End),
                false => Err("the upstream's response failed before".into()),
            });
        };
        loop {
            match self.framing.next(&mut line.input.bytes)? {
                Step::More => {}
                step => return Poll::Ready(Ok(step)),
            }
            if ready!(line.poll_read(context))? == 0 {
                let is_whole = self.framing.ends_with_connection() && self.trusts_close;
                return Poll::Ready(match is_whole {
                    true => Ok(Step::End),
                    false => Err(
                        "the upstream closed the connection before the end of its response".into(),
                    ),
                });
            }
        }
    }

    fn poll_stall(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(stall) = &mut self.stall else {
            return Poll::Pending;
        };
        let after = stall.after;
        let sleep = stall
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(after)));
        while sleep.as_mut().poll(context).is_ready() {
            if !std::mem::take(&mut stall.has_moved) {
                self.line = None;
                return Poll::Ready(Some(
                    Err("the upstream stopped sending its response".into()),
                ));
            }
            sleep
                .as_mut()
                .reset(tokio::time::Instant::now() + stall.after);
        }
        Poll::Pending
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            UpstreamBodyKind::Own(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            UpstreamBodyKind::Upstream(flow) => flow.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            UpstreamBodyKind::Own(bytes) => bytes.is_none(),
            UpstreamBodyKind::Upstream(flow) => flow.framing.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            UpstreamBodyKind::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            UpstreamBodyKind::Upstream(flow) => flow.framing.size_hint(),
        }
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}
