//! Traces: a span for each request and for each call of the upstream, exported over OTLP/HTTP as protobuf.
//!
//! A request only pushes its spans into a bounded queue; a task of the main thread exports them. When the queue is full,
//! spans are dropped and counted, so a collector that is slow, wrong or gone costs requests nothing.
//!
//! The identity of a call's span is derived from the record and the fence of its claim. So a replay, even after a restart
//! and on another node, can link to the span of the execution: the record has all that the link needs.

use std::{
    cell::Cell,
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, StatusCode, request::Parts};
use refrain::{
    Fence, RecordId,
    clock::wall_time,
    http::{DecidedRequest, TraceContext},
    store::AnyStore,
};
use tokio::time::timeout;

mod encode;

mod export;
use export::Exporter;

mod links;

mod queue;
use queue::SpanQueue;

mod send;
use send::Sender;

mod span;
use span::{Span, SpanKind, execution_span_id};

use super::{RequestOutcome, TelemetryCounts};

/// Maximum time that [`Tracer::close`] waits for the collector.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Where spans are exported to, and of which requests.
#[derive(Debug)]
#[non_exhaustive]
pub struct TraceOptions {
    /// URL of the collector, with the path for traces.
    pub endpoint: String,
    /// Headers of each export, such as credentials.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes of the process, such as `service.name`.
    pub resource: Vec<(String, String)>,
    /// Part of the requests without a `traceparent` that are traced, from 0 to 1.
    pub sample_ratio: f64,
    /// Host and port of the upstream.
    pub upstream: String,
}

impl TraceOptions {
    /// All requests, exported to this URL.
    #[must_use]
    pub fn new(endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            resource: Vec::new(),
            sample_ratio: 1.0,
            upstream: String::new(),
        }
    }
}

/// Records spans, and has them exported.
#[derive(Debug)]
pub(crate) struct Tracer {
    queue: Arc<SpanQueue>,
    /// New traces whose id ends with a number below this are recorded.
    sample_below: u64,
}

impl Tracer {
    /// Starts the task that exports spans. `store` has the records that replays link to.
    pub(super) fn start(
        options: TraceOptions,
        store: AnyStore,
        counts: TelemetryCounts,
    ) -> io::Result<Self> {
        let queue = Arc::new(SpanQueue::new(counts));
        // The product fits: a ratio of 1 saturates.
        let sample_below = (options.sample_ratio * u64::MAX as f64) as u64;
        let sender = Sender::new(&options)?;
        let exporter = Exporter::new(queue.clone(), sender, options, store);
        tokio::spawn(exporter.run());
        Ok(Self {
            queue,
            sample_below,
        })
    }

    /// Begins the span of a request, whose head then has its `traceparent`.
    /// Changes nothing if the caller decided not to record the trace.
    pub(crate) fn begin(&self, head: &mut Parts) {
        let context = match TraceContext::of_caller(&head.headers) {
            Some(caller) if !caller.is_sampled => return,
            Some(caller) => TraceContext {
                span_id: span_id(),
                parent_id: Some(caller.span_id),
                ..caller
            },
            None => self.new_trace(),
        };
        context.set_header(&mut head.headers);
        if context.is_sampled {
            head.extensions.insert(context);
        }
    }

    fn new_trace(&self) -> TraceContext {
        let low = random();
        let trace_id = u128::from(random()) << 64 | u128::from(low);
        TraceContext {
            trace_id: trace_id.max(1).to_be_bytes(),
            span_id: span_id(),
            parent_id: None,
            is_sampled: low <= self.sample_below && self.sample_below > 0,
        }
    }

    /// Ends the span of a request.
    pub(crate) fn decided(&self, request: &DecidedRequest<'_>) {
        let Some(context) = request.trace else {
            return;
        };
        self.queue.push(|| server_span(context, request));
    }

    /// Starts the span of a call of the upstream, whose head then has its `traceparent`; `None` if the request has no span.
    pub(crate) fn start_client_span(&self, head: &mut Parts) -> Option<Box<ClientSpan>> {
        let of_request = head.extensions.get::<TraceContext>()?;
        let record = head.extensions.get::<RecordId>().copied();
        let claim = record.zip(head.extensions.get::<Fence>().copied());
        let context = TraceContext {
            span_id: claim.map_or_else(span_id, |(record, fence)| execution_span_id(record, fence)),
            parent_id: Some(of_request.span_id),
            ..*of_request
        };
        context.set_header(&mut head.headers);
        Some(Box::new(ClientSpan {
            queue: self.queue.clone(),
            context,
            record,
            method: head.method.clone(),
            start: wall_time(),
            is_over: false,
        }))
    }

    /// Exports the queued spans, for a few seconds at most. Later ones are dropped.
    pub(crate) async fn close(&self) {
        let _ = timeout(CLOSE_MAX, self.queue.close()).await;
    }
}

/// The span of a call of the upstream. Dropping it records a call that was cancelled.
#[derive(Debug)]
pub(crate) struct ClientSpan {
    queue: Arc<SpanQueue>,
    context: TraceContext,
    record: Option<RecordId>,
    method: Method,
    start: Duration,
    is_over: bool,
}

impl ClientSpan {
    /// The upstream responded.
    pub(crate) fn responded(mut self, status: StatusCode) {
        self.end(Some(status), None);
    }

    /// The upstream did not respond.
    pub(crate) fn failed(mut self, reason: &'static str) {
        self.end(None, Some(reason));
    }

    fn end(&mut self, status: Option<StatusCode>, error: Option<&'static str>) {
        self.is_over = true;
        self.queue.push(|| Span {
            context: self.context,
            kind: SpanKind::Client,
            start: self.start,
            end: wall_time(),
            method: self.method.clone(),
            operation: None,
            outcome: None,
            code: None,
            status,
            error,
            record: self.record,
            executes: true,
            link: None,
        });
    }
}

impl Drop for ClientSpan {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(None, Some("cancelled"));
        }
    }
}

/// The span of a request that has its response.
fn server_span(context: TraceContext, request: &DecidedRequest<'_>) -> Span {
    // The clock is read before the elapsed time: a pause between the two makes the span begin too early, never after
    // the call of the upstream that it contains.
    let end = wall_time();
    let start = end.saturating_sub(request.since.elapsed());
    let outcome = RequestOutcome::of(request);
    Span {
        context,
        kind: SpanKind::Server,
        start,
        end,
        method: request.method.clone(),
        operation: request.operation.map(|it| it.name.clone()),
        outcome: Some(outcome),
        code: (outcome == RequestOutcome::Refused).then(|| request.decision.label()),
        status: request.response.map(|(status, _)| status),
        error: None,
        record: request.record().and_then(|id| id.parse().ok()),
        executes: request.served.is_some(),
        link: None,
    }
}

thread_local! {
    static RANDOM: (RandomState, Cell<u64>) = (RandomState::new(), Cell::new(0));
}

/// A number that is unique with high probability; it need not be secret.
fn random() -> u64 {
    RANDOM.with(|(keys, count)| {
        count.set(count.get().wrapping_add(1));
        keys.hash_one(count.get())
    })
}

fn span_id() -> [u8; 8] {
    random().max(1).to_be_bytes()
}
