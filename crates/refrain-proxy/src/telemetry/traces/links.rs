//! Finds the execution that a replay links to.

use std::{collections::HashMap, time::Duration};

use refrain::{
    RecordId, Store as _,
    record::{End, History},
    store::AnyStore,
};
use tokio::time::{Instant, timeout};

use super::span::{Span, SpanLink, execution_span_id};

/// Maximum number of links that are kept.
const KEPT_MAX: usize = 4_096;
/// Maximum number of records that are read in a second.
const READS_MAX: u32 = 500;
/// Maximum time for a read.
const READ_MAX: Duration = Duration::from_secs(1);

/// Reads records, not in the path of a request, and not too many.
#[derive(Debug)]
pub(super) struct Links {
    store: AnyStore,
    /// Links to executions that completed: they stay as they are.
    kept: HashMap<RecordId, Option<SpanLink>>,
    /// The start of the current second, and the reads in it.
    reads: (Instant, u32),
}

impl Links {
    pub(super) fn new(store: AnyStore) -> Self {
        Self {
            store,
            kept: HashMap::new(),
            reads: (Instant::now(), 0),
        }
    }

    /// Adds the links of requests that were answered from the execution of another one.
    pub(super) async fn add(&mut self, spans: &mut [Span]) {
        for span in spans.iter_mut().filter(|span| !span.executes) {
            let Some(record) = span.record else { continue };
            if let Some(link) = self.kept.get(&record) {
                span.link = *link;
            } else if self.may_read() {
                match timeout(READ_MAX, self.read(record)).await {
                    Ok(Ok(link)) => span.link = link,
                    // The store does not respond: the spans of this batch are exported without links.
                    Ok(Err(_)) | Err(_) => return,
                }
            }
        }
    }

    fn may_read(&mut self) -> bool {
        let (since, count) = &mut self.reads;
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= READS_MAX
    }

    async fn read(&mut self, record: RecordId) -> refrain::Result<Option<SpanLink>> {
        let found = self.store.read(record).await?;
        let Some(history) = found.and_then(|found| found.record.trace.read()) else {
            return Ok(None);
        };
        let link = link(record, &history);
        if is_completed(&history) {
            if self.kept.len() >= KEPT_MAX {
                self.kept.clear();
            }
            self.kept.insert(record, link);
        }
        Ok(link)
    }
}

/// The span of the latest execution; `None` if it was not traced.
fn link(record: RecordId, history: &History) -> Option<SpanLink> {
    let last = history.attempts.last()?;
    Some(SpanLink {
        trace_id: last.trace_id?,
        span_id: execution_span_id(record, last.fence),
    })
}

fn is_completed(history: &History) -> bool {
    let last = history.attempts.last();
    let end = last.and_then(|last| last.ends.last());
    end.is_some_and(|(_, end)| *end == End::Completed)
}
