//! Finds the execution that a replay links to.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use refrain::{
    RecordId, Store as _,
    record::{End, History},
    store::AnyStore,
};
use tokio::time::{Instant, timeout};

use super::span::{Span, SpanLink, execution_span_id};

/// Maximum number of links that are kept.
const KEPT_MAX: usize = 4_096;
/// A link that is older is read again: the record may have been erased since, and its key used again.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of records that are read in a second.
const READS_MAX: u32 = 500;
/// Maximum number of records that are read at a time.
const READS_AT_ONCE: usize = 16;
/// Maximum time for a read.
const READ_MAX: Duration = Duration::from_secs(1);

/// Reads records, not in the path of a request, and not too many.
#[derive(Debug)]
pub(super) struct Links {
    store: AnyStore,
    /// Links to executions that completed, and when they were read.
    kept: HashMap<RecordId, (Instant, Option<SpanLink>)>,
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
        self.kept.retain(|_, (since, _)| since.elapsed() < AGE_MAX);
        let found = self.read(self.missing(spans)).await;
        for span in spans.iter_mut().filter(|span| !span.executes) {
            let Some(record) = span.record else { continue };
            let kept = self.kept.get(&record).map(|(_, link)| *link);
            let link = kept.or_else(|| found.get(&record).copied());
            span.link = link.flatten();
        }
    }

    /// The records whose links are not known, each once.
    fn missing(&self, spans: &[Span]) -> HashSet<RecordId> {
        let linked = spans.iter().filter(|span| !span.executes);
        let records = linked.filter_map(|span| span.record);
        records.filter(|it| !self.kept.contains_key(it)).collect()
    }

    /// Reads the links of these records, a few at a time. If the store does not respond, the rest have none.
    async fn read(
        &mut self,
        mut records: HashSet<RecordId>,
    ) -> HashMap<RecordId, Option<SpanLink>> {
        records.retain(|_| self.may_read());
        let store = self.store.clone();
        let read = |record| {
            let reading = timeout(READ_MAX, read(&store, record));
            async move { (record, reading.await) }
        };
        let mut reads = stream::iter(records)
            .map(read)
            .buffer_unordered(READS_AT_ONCE);
        let mut found = HashMap::new();
        while let Some((record, Ok(Ok(history)))) = reads.next().await {
            let link = history.as_ref().and_then(|it| link(record, it));
            found.insert(record, link);
            if history.is_some_and(|it| is_completed(&it)) {
                if self.kept.len() >= KEPT_MAX {
                    self.kept.clear();
                }
                self.kept.insert(record, (Instant::now(), link));
            }
        }
        found
    }

    fn may_read(&mut self) -> bool {
        let (since, count) = &mut self.reads;
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= READS_MAX
    }
}

async fn read(store: &AnyStore, record: RecordId) -> refrain::Result<Option<History>> {
    let found = store.read(record).await?;
    Ok(found.and_then(|found| found.record.trace.read()))
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

#[cfg(test)]
mod tests {
    //! A replay must not link to the execution of an earlier use of its key.

    use refrain::{
        Engine, Intent, Key, Outcome, Scope, Verdict,
        record::{Origin, OriginFields},
        store::Memory,
    };

    use super::*;
    use crate::telemetry::traces::queue::tests::span;

    /// Executes the operation of a key in a trace.
    async fn execute(engine: &Engine, trace_id: [u8; 16]) -> RecordId {
        let key = Key::new("order-7").unwrap();
        let mut intent = Intent::new(Scope::none(), key.clone());
        intent.origin = Some(Origin::new(&OriginFields {
            trace_id,
            ..OriginFields::default()
        }));
        match engine.claim(&intent).await.unwrap() {
            Verdict::Granted(guard) => {
                let _ = guard.start().complete(Outcome::new(200, "")).await.unwrap();
            }
            other => panic!("not granted: {other:?}"),
        }
        RecordId::derive(engine.secret(), &Scope::none(), &key)
    }

    async fn linked(links: &mut Links, record: RecordId) -> Option<[u8; 16]> {
        let mut spans: Vec<_> = (0..40).map(|_| span()).collect();
        for span in &mut spans {
            (span.record, span.executes) = (Some(record), false);
        }
        links.add(&mut spans).await;
        assert!(spans.iter().all(|it| it.link == spans[0].link));
        spans[0].link.map(|it| it.trace_id)
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_read_again_after_a_while() {
        let engine = Engine::new(AnyStore::new(Memory::new()));
        let mut links = Links::new(engine.store().clone());
        let record = execute(&engine, [1; 16]).await;
        assert_eq!(linked(&mut links, record).await, Some([1; 16]));
        assert_eq!(links.reads.1, 1, "each record is read once");
        let _ = engine.erase(record, "a test").await.unwrap();
        execute(&engine, [2; 16]).await;
        tokio::time::advance(AGE_MAX).await;
        assert_eq!(linked(&mut links, record).await, Some([2; 16]));
    }
}
