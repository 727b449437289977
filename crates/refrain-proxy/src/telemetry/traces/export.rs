//! The task that exports spans.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use refrain::{Backoff, store::AnyStore};
use tokio::time::sleep;

use super::{
    TraceOptions,
    encode::Encoder,
    links::Links,
    queue::SpanQueue,
    send::{ExportError, Sender},
};

/// Attempts to send one export, before its spans are dropped.
const TRIES_MAX: u32 = 5;
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

pub(super) struct Exporter {
    queue: Arc<SpanQueue>,
    links: Links,
    encoder: Encoder,
    sender: Sender,
    endpoint: String,
    /// Whether the last attempt failed.
    is_failing: bool,
}

impl Exporter {
    pub(super) fn new(
        queue: Arc<SpanQueue>,
        sender: Sender,
        options: TraceOptions,
        store: AnyStore,
    ) -> Self {
        Self {
            queue,
            links: Links::new(store),
            encoder: Encoder::new(&options.resource, &options.upstream),
            sender,
            endpoint: options.endpoint,
            is_failing: false,
        }
    }

    /// Exports spans until the queue is closed.
    pub(super) async fn run(mut self) {
        while let Some(mut spans) = self.queue.take().await {
            if spans.is_empty() {
                continue;
            }
            self.links.add(&mut spans).await;
            let body = self.encoder.encode(&spans).into();
            let is_accepted = self.deliver(body).await;
            let counts = &self.queue.counts;
            let counter = match is_accepted {
                true => &counts.spans_exported,
                false => &counts.spans_dropped,
            };
            counter.inc_by(spans.len() as u64);
        }
        self.queue.end();
    }

    /// Sends an export, and again if it fails; returns whether it was accepted.
    async fn deliver(&mut self, body: Bytes) -> bool {
        let queue = self.queue.clone();
        for attempt in 1..=TRIES_MAX {
            let Err(error) = self.sender.send(body.clone()).await else {
                self.note_success();
                return true;
            };
            self.note_failure(&error);
            if !error.is_temporary || attempt == TRIES_MAX {
                return false;
            }
            let pause = BACKOFF.pause(attempt).max(error.retry_after);
            tokio::select! {
                () = sleep(pause.min(BACKOFF.max)) => {}
                () = queue.closing() => return false,
            }
        }
        false
    }

    fn note_failure(&mut self, error: &ExportError) {
        if !self.is_failing {
            let endpoint = &self.endpoint;
            tracing::warn!(
                endpoint, %error,
                "cannot export traces: retrying, and dropping spans once the queue is full; requests are not affected"
            );
        }
        self.is_failing = true;
    }

    fn note_success(&mut self) {
        if self.is_failing {
            let (endpoint, dropped) = (&self.endpoint, self.queue.counts.spans_dropped.get());
            tracing::warn!(endpoint, dropped, "traces are exported again");
        }
        self.is_failing = false;
    }
}
