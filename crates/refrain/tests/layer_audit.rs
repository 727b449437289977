//! HTTP requests in the audit log: an audited operation must not run while the log is not writable.

use std::{
    path::Path,
    sync::{Arc, LazyLock, Mutex},
};

use refrain::{
    AuditLog, Engine, ErrorKind, Operation, Policy,
    http::RefrainLayer,
    policy::{Class, Mode, OnStoreFailure},
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
    // Without a key the request is not guarded.
    shop.post("/pay", &[], "x").await;
    assert_eq!(events(folder.path()), ["began", "granted", "completed"]);
    let all = entries(folder.path());
    assert_eq!(all[2].operation, all[1].operation);
    assert!(all[2].operation.is_some());
    assert_eq!(all[2].status, Some(201));
}

#[tokio::test]
async fn observed_requests_are_not_audited() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Memory::new()).with_audit(AuditLog::open(folder.path()).unwrap());
    let shop = shop_on(audited(|it| it.mode = Mode::Observe), engine);
    assert_eq!(shop.post("/pay", &[KEY], "x").await.status, 201);
    assert_eq!(events(folder.path()), ["began"]);
}

/// `pass` applies to the store only: an audited operation never runs without its log.
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
async fn unclaimed_pass_through_is_audited_first() {
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

fn monetary(change: impl FnOnce(&mut Operation)) -> Policy {
    let payments = Operation::new("POST /pay").unwrap();
    let mut payments = payments.with_class(Class::Monetary);
    change(&mut payments);
    Policy::default().with(payments).unwrap()
}

fn required() -> Policy {
    monetary(|it| it.audit_required = true)
}

/// The warnings so far about this operation.
///
/// Other tests log at the same time and the subscriber is global, so the operation needs a unique name.
fn warnings(operation: &str) -> Vec<String> {
    static HEARD: LazyLock<Warnings> = LazyLock::new(|| {
        let heard = Warnings::default();
        tracing::subscriber::set_global_default(heard.clone()).unwrap();
        heard
    });
    let heard = HEARD.0.lock().unwrap();
    let is_meant = |it: &&String| it.contains(&format!("`{operation}`"));
    heard.iter().filter(is_meant).cloned().collect()
}

#[test]
fn a_layer_without_an_audit_log_says_once_which_operations_run_unaudited() {
    let named = |name: &str| {
        let name = name.to_owned();
        monetary(move |it| it.name = name)
    };
    assert_eq!(warnings("logless"), [""; 0]);
    // The shop has six routes, and the layer wraps each of them.
    drop(shop_on(named("logless"), Engine::new(Memory::new())));
    let said = warnings("logless");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("Engine::with_audit"), "{said:?}");
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::open(folder.path()).unwrap();
    let engine = Engine::new(Memory::new()).with_audit(log);
    drop(shop_on(named("audited"), engine.clone()));
    assert_eq!(warnings("audited"), [""; 0]);
    let off = monetary(|it| {
        it.name = "turned off".into();
        it.audit = false;
    });
    drop(shop_on(off, engine));
    let said = warnings("turned off");
    assert!(said[0].contains("audit = true"), "{said:?}");
}

#[tokio::test]
async fn a_required_audit_log_is_required() {
    let engine = Engine::new(Memory::new());
    let layer = RefrainLayer::new(engine.clone(), required());
    let refused = layer.check().unwrap_err().to_string();
    for word in ["POST /pay", "required", "Engine::with_audit"] {
        assert!(refused.contains(word), "{refused}");
    }
    // A service that skips the check runs nothing either.
    let shop = shop_on(required(), engine.clone());
    let answer = shop.post("/pay", &[KEY], "x").await;
    answer.check_problem(503, "store-unavailable");
    assert!(String::from_utf8_lossy(&answer.body).contains("audit log"));
    assert_eq!(shop.effects(), 0);
    assert_eq!(
        shop.post("/fence", &[KEY], "x").await.status,
        200,
        "other operations run"
    );
    assert!(
        RefrainLayer::new(engine.clone(), monetary(|_| {}))
            .check()
            .is_ok()
    );
    let folder = tempfile::tempdir().unwrap();
    let engine = engine.with_audit(AuditLog::open(folder.path()).unwrap());
    assert!(
        RefrainLayer::new(engine.clone(), required())
            .check()
            .is_ok()
    );
    let shop = shop_on(required(), engine);
    assert_eq!(
        shop.post("/pay", &[("idempotency-key", "k-2")], "x")
            .await
            .status,
        201
    );
    assert_eq!(events(folder.path()), ["began", "granted", "completed"]);
}

/// Collects the messages of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 = format!("{}{value:?}", self.0);
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
