//! The outcome of a message is unknown, but a receipt or a probe can tell it: the message must be neither handled
//! twice nor left for an operator.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Guarantee, Intent, Operation, Outcome, RecordId,
    consume::{Consumer, Count, DEAD_REASON, Failure, Job},
    engine::{Finding, Probe},
    receipts::{AnyReceipts, Receipt, Receipts, Witness},
    record::Doubt,
};

use crate::stage::{Act, Stage, header, said, until};

/// The handler's own database, with a receipt for each effect.
#[derive(Debug, Clone, Default)]
struct Database(Arc<Mutex<HashMap<RecordId, Receipt>>>);

impl Database {
    fn commit(&self, job: &Job) {
        let receipt = Receipt {
            fence: job.fence.to_string(),
            status: 200,
            content_type: None,
            location: None,
            body: Bytes::new(),
            age: Duration::ZERO,
        };
        let before = self.0.lock().unwrap().insert(job.record, receipt);
        assert!(before.is_none(), "committed twice");
    }
}

impl Receipts for Database {
    async fn find(&self, record: RecordId) -> refrain::Result<Option<Receipt>> {
        Ok(self.0.lock().unwrap().get(&record).cloned())
    }

    async fn seen(&self, records: &[RecordId]) -> refrain::Result<Vec<bool>> {
        let rows = self.0.lock().unwrap();
        Ok(records.iter().map(|it| rows.contains_key(it)).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_receipt_tells_what_became_of_a_failed_handler() {
    let stage = Stage::new();
    let database = Database::default();
    let operation = Operation::default();
    let receipts = AnyReceipts::new(database.clone());
    let witness = Arc::new(Witness::new(&operation, receipts));
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (database, calls) = (database.clone(), calls.clone());
        move |job: Job| {
            calls.fetch_add(1, Ordering::SeqCst);
            let text = said(&job.message);
            let is_retry = job.attempt > 1;
            if text != "fails" || is_retry {
                database.commit(&job);
            }
            std::future::ready(match text.as_str() {
                "first" => Ok(Outcome::new(200, "")),
                _ if is_retry => Ok(Outcome::new(200, "")),
                _ => Err(Failure::retry("no answer")),
            })
        }
    };
    let consumer = |stage: &Stage| -> Consumer {
        stage
            .consumer_of(Guarantee::ExactlyOnce)
            .with_receipts(witness.clone())
    };
    let mut tallies = Vec::new();
    for text in ["first", "answer-lost", "fails"] {
        stage.publish_text(text).await;
        let consumer = consumer(&stage);
        tallies.push(consumer.tally());
        let shutdown = async {
            until(|| stage.backlog() == 0).await;
            // The receipt of a success is looked up after it ended.
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        consumer.run(handler.clone(), shutdown).await.unwrap();
    }
    assert!(stage.letters().await.is_empty());
    assert_eq!(database.0.lock().unwrap().len(), 3);
    // Its receipt was found, so the handler did not run again.
    assert_eq!(tallies[1].get(Count::Duplicate), 1);
    assert_eq!(tallies[2].get(Count::Completed), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

/// No receipt was ever seen: a failed message waits until its attempt can no longer commit, then it is handled again.
#[tokio::test(start_paused = true)]
async fn before_the_first_receipt_a_failed_message_is_handled_again() {
    let stage = Stage::new();
    let database = Database::default();
    let receipts = AnyReceipts::new(database.clone());
    let witness = Arc::new(Witness::new(&Operation::default(), receipts));
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (database, calls) = (database.clone(), calls.clone());
        move |job: Job| {
            let is_retry = calls.fetch_add(1, Ordering::SeqCst) > 0;
            std::future::ready(match is_retry {
                true => {
                    database.commit(&job);
                    Ok(Outcome::new(200, ""))
                }
                false => Err(Failure::retry("no answer")),
            })
        }
    };
    stage.publish_text("m").await;
    let consumer = stage.consumer_of(Guarantee::ExactlyOnce);
    let consumer = consumer.with_receipts(witness);
    let tally = consumer.tally();
    let shutdown = until(|| stage.backlog() == 0);
    consumer.run(handler, shutdown).await.unwrap();
    assert!(stage.letters().await.is_empty());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(tally.get(Count::Completed), 1);
}

/// Answers as configured, and counts its calls.
#[derive(Debug)]
struct Knowing(Finding, AtomicUsize);

impl Probe for Knowing {
    fn probe<'a>(
        &'a self,
        _: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        assert_eq!(doubt.settle_left, Duration::ZERO);
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { self.0.clone() })
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_tells_what_became_of_a_message_in_doubt() {
    let happened = Finding::Happened(Outcome::new(0, "seen"));
    for (finding, calls, count, reasons) in [
        (happened, 1, Count::Duplicate, vec![]),
        (Finding::NeverHappened, 2, Count::Completed, vec![]),
        (
            Finding::Unknown,
            1,
            Count::DeadLettered,
            vec!["outcome-unknown"],
        ),
    ] {
        let stage = Stage::new();
        stage.handler.script(&[Act::Retry]);
        stage.publish_text("m").await;
        let probe = Arc::new(Knowing(finding, AtomicUsize::new(0)));
        let consumer = stage.consumer_of(Guarantee::AtMostOnce);
        let tally = stage.run_out(consumer.with_probe(probe.clone())).await;
        assert!(probe.1.load(Ordering::SeqCst) > 0);
        assert_eq!(stage.handler.calls(), calls);
        assert_eq!(tally.get(count), 1, "{}", count.name());
        let letters = stage.letters().await;
        let found: Vec<_> = letters.iter().map(|it| header(it, DEAD_REASON)).collect();
        assert_eq!(found, reasons);
    }
}
