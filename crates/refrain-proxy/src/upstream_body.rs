//! The body of an answer: the upstream's, or our own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use refrain::http::BodyError;
use tokio::time::Sleep;

use crate::pool::{Line, Pool};

/// The body of an answer.
pub struct UpstreamBody(Kind);

enum Kind {
    Own(Option<Bytes>),
    Upstream(Box<Flow>),
}

/// A body that comes in, and the line that it comes over.
struct Flow {
    incoming: Incoming,
    line: Option<(Arc<Pool>, Line)>,
    stall: Option<Stall>,
}

/// Ends a body that stands still.
struct Stall {
    after: Duration,
    /// Set up when it first stands still.
    sleep: Option<Pin<Box<Sleep>>>,
    has_moved: bool,
}

impl UpstreamBody {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self(Kind::Own(Some(text.into())))
    }

    /// An answer of our own, for what has no problem page.
    pub(crate) fn problem(status: StatusCode, detail: &str) -> Response<Self> {
        let problem = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": detail,
        });
        let mut response = Response::new(Self::own(problem.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }

    pub(crate) fn empty() -> Self {
        Self(Kind::Own(None))
    }

    /// The upstream's body; its line goes back to the pool when it has ended.
    /// `stall` is how long it may stand still; `None` where somebody else sees to that.
    pub(crate) fn of(
        incoming: Incoming,
        pool: &Arc<Pool>,
        line: Line,
        stall: Option<Duration>,
    ) -> Self {
        let mut flow = Box::new(Flow {
            incoming,
            line: Some((pool.clone(), line)),
            stall: stall.map(|after| Stall {
                after,
                sleep: None,
                has_moved: false,
            }),
        });
        flow.end_if_over();
        Self(Kind::Upstream(flow))
    }
}

impl Flow {
    fn end_if_over(&mut self) {
        if self.incoming.is_end_stream()
            && let Some((pool, line)) = self.line.take()
        {
            pool.give_back(line);
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        match &polled {
            Poll::Pending => return self.poll_stall(context),
            Poll::Ready(Some(Ok(_))) => self.end_if_over(),
            Poll::Ready(Some(Err(_))) => self.line = None,
            Poll::Ready(None) => {
                if let Some((pool, line)) = self.line.take() {
                    pool.give_back(line);
                }
            }
        }
        if let Some(stall) = &mut self.stall {
            stall.has_moved = true;
        }
        polled.map_err(Into::into)
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
                return Poll::Ready(Some(Err("the upstream's answer stood still".into())));
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
            Kind::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Upstream(flow) => flow.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Own(bytes) => bytes.is_none(),
            Kind::Upstream(flow) => flow.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Upstream(flow) => flow.incoming.size_hint(),
        }
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}
