//! `Running` and `Replied`, with `reply = "streamed"`: a response is sent while it is produced, recorded at the same time,
//! and followed by its duplicates.
//!
//! A task of its own reads the body, independent of its readers.
//! A clean end of the body means that the outcome is stored; a body that could not be read or stored is cut off.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header, response};
use http_body::Frame;
use tokio::{task::coop::consume_budget, time::timeout_at};

use super::{
    Decision,
    body::{Body, Carried, Share, add_record, marked},
    capture,
    layer::LayerState,
    live::{LiveBody, Recorder},
    reply::{self, RETRY_AFTER_MAX, to_verdict},
    settle::{BoxedResponse, Execution, doubt},
};
use crate::{
    Outcome, RecordId, Verdict,
    engine::{Live, Running},
    policy::Operation,
    record::Reason,
};

/// A streamed response as its duplicates see it.
pub(super) struct Streamed {
    status: StatusCode,
    /// The replayable headers, and `Trailer`.
    headers: HeaderMap,
    body: Arc<LiveBody>,
}

impl Streamed {
    fn new(operation: &Operation, head: &response::Parts, body: &Arc<LiveBody>) -> Self {
        // Servers send only trailers that were announced.
        let shown = |name: &str| operation.replays_header(name) || name == header::TRAILER;
        let mut headers = head.headers.clone();
        for name in head.headers.keys().filter(|name| !shown(name.as_str())) {
            headers.remove(name);
        }
        Self {
            status: head.status,
            headers,
            body: body.clone(),
        }
    }

    /// The response from its beginning; `None` if that was dropped, or if it has too many readers.
    fn follow<R>(&self) -> Option<Response<Body<R>>> {
        let follower = self.body.follow()?;
        Some(reply::follow(self.status, self.headers.clone(), follower))
    }
}

/// The streamed response of the request in flight, for a duplicate.
pub(super) fn follow<R>(shared: &LayerState, record: RecordId, live: &Live) -> Response<Body<R>> {
    let response = live.get::<Streamed>().and_then(|it| it.follow());
    match response {
        Some(mut response) => {
            add_record(response.headers_mut(), record);
            marked(Decision::Replayed, response)
        }
        // The body has just gone over the cap, or it has too many readers.
        None => {
            let lease_left = RETRY_AFTER_MAX;
            to_verdict(shared, record, &Verdict::<()>::InFlight { lease_left })
        }
    }
}

impl Execution {
    /// Returns the response at once, and records its body in a task of its own.
    pub(super) fn stream<R: Carried>(
        self,
        running: Running,
        response: Response<Body<R>>,
        body: R,
    ) -> BoxedResponse<R> {
        let (head, _) = response.into_parts();
        let bytes_max = self.operation.outcome_bytes_max;
        let share = Share::counted(&self.shared.budget);
        let (live, first) = LiveBody::begin(body.size_hint(), bytes_max, share);
        if !live.is_over() {
            let shown = Streamed::new(&self.operation, &head, live.body());
            running.show(&Live::new(Arc::new(shown)));
        }
        let mut fresh = Response::from_parts(head.clone(), Body::live(first));
        add_record(fresh.headers_mut(), self.record);
        let fresh = Box::new(marked(Decision::FreshKept, fresh));
        let recording = Recording {
            execution: self,
            running,
            head,
            live,
        };
        tokio::spawn(recording.record(body));
        fresh
    }
}

/// A response that is recorded while it is sent.
///
/// If it is dropped before the end, the record becomes indeterminate and the body is cut.
struct Recording {
    execution: Execution,
    running: Running,
    head: response::Parts,
    live: Recorder,
}

type Trailers = Option<Box<HeaderMap>>;

impl Recording {
    async fn record<R: Carried>(mut self, body: R) {
        let taken = self.take(body).await;
        // From here on duplicates wait for the settlement, which may differ from the stream.
        self.running.hide();
        let trailers = match taken {
            Ok(trailers) => trailers,
            // The doubt is stored before the body is cut, so that an immediate retry learns of it.
            Err(reason) => return doubt(&mut self.running, reason).await,
        };
        let outcome = self.outcome(trailers.as_deref());
        let kept = self.execution.keep::<()>(self.running, outcome).await;
        if kept.is_ok() {
            self.live.end(trailers);
        }
    }

    fn outcome(&self, trailers: Option<&HeaderMap>) -> Outcome {
        self.live.whole(|body| {
            let trailers = trailers.filter(|_| body.is_some());
            capture::outcome(&self.execution.operation, &self.head, body, trailers)
        })
    }

    /// Reads the body to its end.
    async fn take<R: Carried>(&self, mut body: R) -> Result<Trailers, Reason> {
        let mut trailers = None;
        loop {
            // A body that is always ready must not starve other tasks.
            consume_budget().await;
            let next = self.in_time(next(&mut body)).await;
            let Some(frame) = next.ok_or(Reason::Timeout)?? else {
                return Ok(trailers);
            };
            match frame.into_data() {
                Ok(piece) => self.pass(piece).await?,
                Err(frame) => trailers = frame.into_trailers().ok().map(Box::new),
            }
        }
    }

    async fn pass(&self, piece: Bytes) -> Result<(), Reason> {
        if piece.is_empty() {
            return Ok(());
        }
        let len = piece.len();
        if self.live.goes_over(len) {
            self.running.hide();
            let room = || poll_fn(|context| self.live.poll_room(len, context));
            while self.in_time(room()).await.is_none() {
                if tokio::time::Instant::now() >= self.running.deadline() {
                    return Err(Reason::Timeout);
                }
                // A client that does not read must not keep the operation from ending.
                self.live.cut_pacer();
            }
        }
        self.live.push(piece);
        Ok(())
    }

    /// Awaits `work` for at most the operation's timeout, and no longer than the attempt may act.
    /// The latter deadline moves with every renewal of the lease.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let silent = tokio::time::Instant::now() + self.execution.operation.terms.timeout;
        loop {
            let until = silent.min(self.running.deadline());
            if tokio::time::Instant::now() >= until {
                return None;
            }
            if let Ok(done) = timeout_at(until, work.as_mut()).await {
                return Some(done);
            }
        }
    }
}

/// The next frame of a body; `None` at its end. Catches panics of the body.
async fn next<R: Carried>(body: &mut R) -> Result<Option<Frame<Bytes>>, Reason> {
    poll_fn(|context| {
        // After a panic, the body is dropped and never polled again.
        let polling = AssertUnwindSafe(|| Pin::new(&mut *body).poll_frame(context));
        let Ok(polled) = catch_unwind(polling) else {
            return Poll::Ready(Err(Reason::Panicked));
        };
        polled.map(|frame| frame.transpose().map_err(|_| Reason::Truncated))
    })
    .await
}
