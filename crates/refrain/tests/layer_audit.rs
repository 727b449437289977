//! What of HTTP requests goes into the audit log, and what happens to them when that cannot be written.

use std::path::Path;

use refrain::{
    AuditLog, Engine, ErrorKind, Policy,
    policy::{Mode, OnStoreFailure},
    store::Memory,
};
use refrain_testkit::disk::{Fault as DiskFault, Operation as Disk, Rule};

#[path = "support/audited.rs"]
mod audited;
#[path = "support/scripted.rs"]
mod scripted;
#[path = "support/shop.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod shop;
use audited::{entries, failing};
use scripted::{Fault, Op, Scripted};
use shop::{KEY, operation, shop_on};

fn audited(change: impl FnOnce(&mut refrain::Operation)) -> Policy {
    operation(|it| {
        it.audit = true;
        change(it);
    })
}

fn events(folder: &Path) -> Vec<String> {
    let all = entries(folder).into_iter();
    all.map(|it| it.event).collect()
}

#[tokio::test]
async fn attempts_are_written_down_and_replays_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Memory::new()).with_audit(AuditLog::open(folder.path()).unwrap());
    let shop = shop_on(audited(|_| {}), engine);
    let first = shop.post("/pay", &[KEY], "x").await;
    assert_eq!(first.status, 201);
    assert!(shop.post("/pay", &[KEY], "x").await.is_replay());
    // Without a key there is nothing to guard.
    shop.post("/pay", &[], "x").await;
    assert_eq!(events(folder.path()), ["began", "granted", "completed"]);
    let all = entries(folder.path());
    assert_eq!(all[2].operation, all[1].operation);
    assert!(all[2].operation.is_some());
    assert_eq!(all[2].status, Some(201));
}

#[tokio::test]
async fn what_is_only_observed_is_not_audited() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Memory::new()).with_audit(AuditLog::open(folder.path()).unwrap());
    let shop = shop_on(audited(|it| it.mode = Mode::Observe), engine);
    assert_eq!(shop.post("/pay", &[KEY], "x").await.status, 201);
    assert_eq!(events(folder.path()), ["began"]);
}

/// `pass` is about the store: without its log an audited operation never runs.
#[tokio::test]
async fn without_the_log_nothing_runs_whatever_the_policy_says_of_the_store() {
    for on_store_failure in [OnStoreFailure::Refuse, OnStoreFailure::Pass] {
        let folder = tempfile::tempdir().unwrap();
        let (disk, log) = failing(folder.path());
        let engine = Engine::new(Memory::new()).with_audit(log);
        let shop = shop_on(audited(|it| it.on_store_failure = on_store_failure), engine);
        disk.fail(Rule::always(Disk::Sync, ".jsonl", DiskFault::EIO));
        let first = shop.post("/pay", &[KEY], "x").await;
        first.check_problem(503, "outcome-unknown");
        assert_eq!(shop.effects(), 1);
        for key in ["k-1", "k-2"] {
            let refused = shop.post("/pay", &[("idempotency-key", key)], "x").await;
            refused.check_problem(503, "store-unavailable");
            assert!(String::from_utf8_lossy(&refused.body).contains("audit log"));
        }
        assert_eq!(shop.effects(), 1);
    }
}

#[tokio::test]
async fn what_passes_without_a_claim_is_written_down_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = Scripted::new();
    let log = AuditLog::open(folder.path()).unwrap();
    let engine = Engine::new(store.clone()).with_audit(log);
    let pass = audited(|it| it.on_store_failure = OnStoreFailure::Pass);
    let shop = shop_on(pass, engine);
    store.set(Op::Claim, 10, Fault::Fails(ErrorKind::Full));
    assert_eq!(shop.post("/pay", &[KEY], "x").await.status, 201);
    assert_eq!(events(folder.path()), ["began", "unguarded"]);
    assert!(entries(folder.path())[1].operation.is_some());
}
