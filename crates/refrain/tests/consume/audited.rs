//! An auditor must find every handled message in the audit log: each attempt and its end under the consumer's name,
//! and each redrive.

use std::{sync::Arc, time::Duration};

use refrain::{
    AuditLog, Guarantee,
    audit::{Check, Visit, verify},
    consume::{Broker, Redrive},
};

use crate::stage::{Act, DEAD, NAME, Stage};

// No paused clock: the log's writer is a thread, and paused time does not wait for threads.
#[tokio::test]
async fn attempts_and_redrives_are_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::new();
    let log = AuditLog::open(folder.path()).unwrap();
    // Clones of an engine share its log.
    let engine = stage.engine.clone().with_audit(log);
    stage.handler.script(&[Act::Panic]);
    stage.publish_text("m").await;
    let consumer = || stage.consumer_of(Guarantee::AtMostOnce).with_audit();
    stage.run_out(consumer()).await;
    let dead: Arc<dyn Broker> = Arc::new(stage.broker.subscribe(DEAD, "undertaker"));
    let redrive = Redrive::new(dead, Arc::new(stage.broker.clone()), engine)
        .with_idle(Duration::from_millis(100));
    assert_eq!(redrive.run().await.unwrap().sent, 1);
    stage.handler.script(&[]);
    stage.run_out(consumer()).await;
    assert_eq!(stage.handler.done(), ["m"]);
    let mut all = Vec::new();
    let mut visit = |visit: Visit<'_>| {
        if let Visit::Entry(entry, _) = visit {
            all.push(entry.clone());
        }
    };
    let found = verify(folder.path(), &Check::default(), &mut visit).unwrap();
    assert_eq!(found.damage, []);
    let events: Vec<_> = all.iter().map(|it| it.event.as_str()).collect();
    let expected = [
        "began",
        "granted",
        "doubted",
        "redriven",
        "granted",
        "completed",
    ];
    assert_eq!(events, expected);
    let is_named = |at: usize| all[at].operation.as_deref() == Some(NAME);
    assert!((1..all.len()).all(is_named), "{all:?}");
    assert_eq!(all[3].record, all[1].record);
    assert_ne!(all[4].record, all[1].record);
}
