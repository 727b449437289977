//! The queue between requests and the task that exports spans.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::span::Span;
use crate::telemetry::TelemetryCounts;

/// Maximum number of queued spans: about 4 MiB.
pub(super) const SPANS_MAX: usize = 8_192;
/// Maximum number of spans in one export.
const BATCH_MAX: usize = 512;
/// Maximum time that a span waits for others.
const COLLECT: Duration = Duration::from_secs(1);

/// Spans that wait to be exported.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: Mutex<VecDeque<Span>>,
    /// Whether there is no room. Changes only while `spans` is locked.
    is_full: AtomicBool,
    /// Notified when there are enough spans for an export.
    has_batch: Notify,
    progress: watch::Sender<Progress>,
    pub(super) counts: TelemetryCounts,
}

/// How far the exporter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Running,
    /// It exports what is queued, without retries.
    Closing,
    Ended,
}

impl SpanQueue {
    pub(super) fn new(counts: TelemetryCounts) -> Self {
        Self {
            spans: Mutex::default(),
            is_full: AtomicBool::new(false),
            has_batch: Notify::new(),
            progress: watch::Sender::new(Progress::Running),
            counts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the span that `build` returns. If the queue is full, counts it as dropped, and builds nothing:
    /// while the collector is stopped, requests pay for no span.
    pub(super) fn push(&self, build: impl FnOnce() -> Span) {
        if self.is_full.load(Relaxed) {
            self.counts.spans_dropped.inc();
            return;
        }
        let span = build();
        let mut spans = self.lock();
        if spans.len() >= SPANS_MAX {
            drop(spans);
            self.counts.spans_dropped.inc();
            return;
        }
        spans.push_back(span);
        let len = spans.len();
        self.is_full.store(len >= SPANS_MAX, Relaxed);
        drop(spans);
        if len == BATCH_MAX {
            self.has_batch.notify_one();
        }
    }

    /// The next spans to export, after at most [`COLLECT`]; `None` if the queue is closed and empty.
    pub(super) async fn take(&self) -> Option<Vec<Span>> {
        if self.lock().len() < BATCH_MAX && !self.is_closing() {
            tokio::select! {
                () = self.has_batch.notified() => {}
                () = sleep(COLLECT) => {}
                () = self.closing() => {}
            }
        }
        let mut spans = self.lock();
        let count = spans.len().min(BATCH_MAX);
        let batch: Vec<_> = spans.drain(..count).collect();
        self.is_full.store(spans.len() >= SPANS_MAX, Relaxed);
        (count > 0 || !self.is_closing()).then_some(batch)
    }

    fn is_closing(&self) -> bool {
        *self.progress.borrow() >= Progress::Closing
    }

    /// Completes when the queue is closed.
    pub(super) async fn closing(&self) {
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|it| *it >= Progress::Closing).await;
    }

    /// Notes that the exporter has ended.
    pub(super) fn end(&self) {
        self.progress.send_replace(Progress::Ended);
    }

    /// Closes the queue, and waits until the exporter has ended.
    pub(super) async fn close(&self) {
        self.progress.send_if_modified(|it| {
            let is_running = *it == Progress::Running;
            *it = (*it).max(Progress::Closing);
            is_running
        });
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|it| *it == Progress::Ended).await;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use http::Method;
    use prometheus_client::registry::Registry;
    use refrain::http::TraceContext;

    use super::*;
    use crate::telemetry::traces::span::SpanKind;

    pub(in super::super) fn span() -> Span {
        Span {
            context: TraceContext {
                trace_id: [1; 16],
                span_id: [2; 8],
                parent_id: None,
                is_sampled: true,
            },
            kind: SpanKind::Server,
            start: Duration::ZERO,
            end: Duration::ZERO,
            method: Method::POST,
            operation: None,
            outcome: None,
            code: None,
            status: None,
            error: None,
            record: None,
            executes: true,
            link: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_span_is_built_while_the_queue_is_full() {
        let queue = SpanQueue::new(TelemetryCounts::registered(&mut Registry::default()));
        for _ in 0..SPANS_MAX {
            queue.push(span);
        }
        let mut built = 0;
        let mut push = || {
            queue.push(|| {
                built += 1;
                span()
            });
        };
        push();
        push();
        assert_eq!(queue.counts.spans_dropped.get(), 2);
        assert_eq!(queue.take().await.map(|batch| batch.len()), Some(BATCH_MAX));
        push();
        assert_eq!(queue.counts.spans_dropped.get(), 2);
        assert_eq!(built, 1, "a span for a full queue");
    }
}
