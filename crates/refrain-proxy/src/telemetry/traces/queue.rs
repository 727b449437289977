//! The queue between requests and the task that exports spans.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
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
            has_batch: Notify::new(),
            progress: watch::Sender::new(Progress::Running),
            counts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a span, or drops it if the queue is full.
    pub(super) fn push(&self, span: Span) {
        let mut spans = self.lock();
        if spans.len() >= SPANS_MAX {
            drop(spans);
            self.counts.spans_dropped.inc();
            return;
        }
        spans.push_back(span);
        let len = spans.len();
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
