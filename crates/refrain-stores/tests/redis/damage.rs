//! Another program, or a bug, overwrites keys of the store. A damaged record is not absent: nothing is granted and
//! nothing is replayed.

use refrain::{ErrorKind, Settled, Settlement, Store, record::Reason, store::Query};
use refrain_stores::redis::Options;
use refrain_testkit::servers::redis_url;

use crate::support::{
    Prefix, RETENTION, ask, claim, complete, completion, granted, id, replayed, verdict,
};

fn get(key: &str) -> Vec<u8> {
    ask(&redis_url(), redis::cmd("GET").arg(key))
}

fn set(key: &str, value: &[u8]) {
    let _: redis::Value = ask(
        &redis_url(),
        redis::cmd("SET").arg(key).arg(value).arg("KEEPTTL"),
    );
}

async fn check(what: &str, store: &impl Store, number: u64, kind: ErrorKind) {
    let verdict = verdict(store, &claim(number)).await;
    let error = verdict.expect_err(what);
    assert_eq!(error.kind(), kind, "{what}: {error}");
    let error = store.read(id(number)).await.expect_err(what);
    assert_eq!(error.kind(), kind, "{what}, read: {error}");
    let page = store.list(&Query::default()).await.unwrap();
    assert!(
        page.readings.iter().all(|reading| reading.id != id(number)),
        "{what}, listed"
    );
}

#[tokio::test]
async fn every_changed_byte_of_a_record_is_noticed() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    granted(&store, &claim(1)).await;
    complete(&store, 2, "done").await;
    for number in [1, 2] {
        let key = prefix.key(id(number), "");
        let whole = get(&key);
        // Starts after the version byte: a record of a later version is not damaged. No decision depends on the trace.
        let trace_begins = if number == 1 { 124 } else { 132 };
        assert!(whole.len() > trace_begins);
        for at in 1..trace_begins {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            set(&key, &changed);
            let error = verdict(&store, &claim(number))
                .await
                .expect_err("a changed record");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        }
        set(&key, &whole);
        let _whole = verdict(&store, &claim(number)).await.unwrap();
    }
}

#[tokio::test]
async fn foreign_bytes_are_never_read_as_a_record() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    for number in 1..=9 {
        complete(&store, number, &format!("done {number}")).await;
    }
    let record = |number| prefix.key(id(number), "");
    let outcome = |number| prefix.outcome_key(id(number));
    let _: redis::Value = ask(&redis_url(), redis::cmd("DEL").arg(outcome(1)));
    set(&outcome(2), &get(&outcome(9)));
    set(&record(3), &get(&record(9)));
    set(&record(4), b"");
    set(&record(5), b"something else altogether");
    let mut cut = get(&outcome(6));
    cut.pop();
    set(&outcome(6), &cut);
    for (number, what) in [
        (1, "no outcome"),
        (2, "another's outcome"),
        (3, "another's record"),
        (4, "nothing in it"),
        (5, "something else"),
        (6, "an outcome that was cut"),
    ] {
        check(what, &store, number, ErrorKind::Corrupt).await;
    }
    let _: redis::Value = ask(&redis_url(), redis::cmd("DEL").arg(record(7)));
    let _: redis::Value = ask(&redis_url(), redis::cmd("LPUSH").arg(record(7)).arg("x"));
    check("a list", &store, 7, ErrorKind::Corrupt).await;
    let mut newer = get(&record(8));
    newer[0] = 5;
    set(&record(8), &newer);
    check("a newer format version", &store, 8, ErrorKind::Unsupported).await;
    // `MGET` returns nil for the list, so it is not counted.
    assert_eq!(store.census().await.unwrap().unreadable, 4);
}

#[tokio::test]
async fn damaged_trace_decides_nothing() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    for number in 1..=30 {
        let key = prefix.key(id(number), "");
        let fence = granted(&store, &claim(number)).await.fence;
        let mut changed = get(&key);
        let at = 123 + number as usize;
        assert!(at < changed.len(), "the trace of a claim has fewer bytes");
        changed[at] ^= 0xff;
        if number > 1 {
            set(&key, &changed);
        }
        let renewed = store.renew(id(number), fence, RETENTION).await.unwrap();
        assert_eq!(renewed, Settled::Applied, "byte {at}");
        let doubt = Settlement::Doubt {
            reason: Reason::Reset,
        };
        let doubted = store.settle(id(number), fence, doubt).await.unwrap();
        assert_eq!(doubted, Settled::Applied, "byte {at}");
        let settled = store.settle(id(number), fence, completion("done")).await;
        assert_eq!(settled.unwrap(), Settled::Applied, "byte {at}");
        assert_eq!(replayed(&store, number).await, "done", "byte {at}");
        assert!(store.read(id(number)).await.unwrap().is_some());
    }
}

/// The record as releases before traces wrote it.
fn without_trace(key: &str) {
    let mut record = get(key);
    record[0] = 3;
    record.truncate(if record[1] == b'C' { 132 } else { 124 });
    set(key, &record);
}

#[tokio::test]
async fn records_of_earlier_releases_go_on_without_a_trace() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    complete(&store, 1, "done").await;
    without_trace(&prefix.key(id(1), ""));
    assert_eq!(replayed(&store, 1).await, "done");
    let grant = granted(&store, &claim(2)).await;
    without_trace(&prefix.key(id(2), ""));
    let renewed = store.renew(id(2), grant.fence, RETENTION).await.unwrap();
    assert_eq!(renewed, Settled::Applied);
    let settled = store.settle(id(2), grant.fence, completion("late")).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
    assert_eq!(replayed(&store, 2).await, "late");
    let page = store.list(&Query::default()).await.unwrap();
    let traces = page.readings.iter().map(|it| it.record.trace.read());
    assert_eq!(traces.collect::<Vec<_>>(), [None, None]);
    let census = store.census().await.unwrap();
    assert_eq!((census.completed, census.unreadable), (2, 0));
}

/// The key was released and claimed again, and the outcome of the first life was restored from a backup.
#[tokio::test]
async fn an_outcome_of_another_life_is_not_replayed() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    complete(&store, 1, "first life").await;
    let old = get(&prefix.outcome_key(id(1)));
    let erased = store.erase(id(1)).await.unwrap();
    assert_eq!(erased, refrain::record::Erased::Gone);
    complete(&store, 1, "second life").await;
    set(&prefix.outcome_key(id(1)), &old);
    check("another life's outcome", &store, 1, ErrorKind::Corrupt).await;
}
