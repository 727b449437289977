//! An audited operation must not run without a log entry: the engine writes each attempt and its end before a caller
//! sees the result, and every operator decision. While the log is not writable, audited operations are refused and
//! all others run.

use std::{path::Path, sync::Arc, time::Duration};

use refrain::{
    AuditLog, Engine, ErrorKind, Intent, Key, Outcome, RecordId, Scope, Settled, Verdict,
    audit::{Check, Written, verify},
    engine::{Finding, OperatorAction, Probe, Resolution, Resolved},
    record::{Doubt, Erased, Reason},
    store::{Embedded, Memory},
};
use refrain_testkit::disk::{Fault, Operation, Rule};

#[path = "support/audited.rs"]
mod audited;
use audited::{entries, failing};

const DAY: Duration = Duration::from_secs(86_400);

fn intent(key: &str) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    intent.audit = Some("POST /v1/payments".into());
    intent.terms.wait = Duration::ZERO;
    intent
}

fn engine(folder: &Path) -> Engine {
    Engine::new(Memory::new()).with_audit(AuditLog::open(folder).unwrap())
}

fn events(folder: &Path) -> Vec<String> {
    let event = |entry: Written| match entry.detail {
        Some(detail) => format!("{} {detail}", entry.event),
        None => entry.event,
    };
    entries(folder).into_iter().skip(1).map(event).collect()
}

fn id(engine: &Engine, key: &str) -> RecordId {
    RecordId::derive(engine.secret(), &Scope::none(), &Key::new(key).unwrap())
}

async fn granted(engine: &Engine, intent: &Intent) -> refrain::engine::Guard {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard,
        other => panic!("not granted: {other:?}"),
    }
}

#[tokio::test]
async fn every_way_to_end_is_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let running = granted(&engine, &intent("a")).await.start();
    let _ = running
        .complete(Outcome::new(201, "charged"))
        .await
        .unwrap();
    let running = granted(&engine, &intent("b")).await.start();
    let _ = running.release(None).await.unwrap();
    let mut running = granted(&engine, &intent("c")).await.start();
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    let _ = running.complete(Outcome::new(200, "late")).await.unwrap();
    // A duplicate does not count as an attempt.
    assert!(matches!(
        engine.claim(&intent("a")).await.unwrap(),
        Verdict::Replay(_)
    ));
    // Operations without `audit` are not logged.
    let mut other = intent("d");
    other.audit = None;
    let _ = engine
        .run(&other, async |_| Outcome::new(201, ""))
        .await
        .unwrap();
    let expected = [
        "granted",
        "completed",
        "granted",
        "released",
        "granted",
        "doubted timeout",
        "completed",
    ];
    assert_eq!(events(folder.path()), expected);
    let all = entries(folder.path());
    let (first, end) = (&all[1], &all[2]);
    assert_eq!(first.record, Some(id(&engine, "a").to_string()));
    assert_eq!((first.attempt, &first.fence), (Some(1), &end.fence));
    assert_eq!(end.operation.as_deref(), Some("POST /v1/payments"));
    assert_eq!(end.status, Some(201));
    let text = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    for file in text.filter(|it| it.extension().is_some()) {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(
            !text.contains("charged") && !text.contains("late"),
            "{text}"
        );
    }
}

/// A dropped run is settled, and logged, in the background.
#[tokio::test]
async fn dropped_guards_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    drop(granted(&engine, &intent("a")).await);
    drop(granted(&engine, &intent("b")).await.start());
    while engine.running() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut found = events(folder.path());
    found.sort();
    assert_eq!(found, ["doubted dropped", "granted", "granted", "released"]);
}

#[tokio::test]
async fn operator_decisions_are_audited_with_actor_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let mut running = granted(&engine, &intent("a")).await.start();
    let _ = running.doubt(Reason::Reset).await.unwrap();
    let record = id(&engine, "a");
    let action = OperatorAction {
        reason: "not in the ledger",
        actor: "token",
        by: Some("anna"),
    };
    let resolved = engine
        .resolve(record, Resolution::NeverHappened, action)
        .await;
    assert!(matches!(resolved.unwrap(), Resolved::TooEarly { .. }));
    assert_eq!(
        engine.erase(record, "test data").await.unwrap(),
        Erased::Indeterminate
    );
    let resolution = Resolution::Completed {
        outcome: Outcome::new(200, "by hand"),
        retention: DAY,
        remember: DAY,
    };
    assert_eq!(
        engine.resolve(record, resolution, action).await.unwrap(),
        Resolved::Applied
    );
    assert_eq!(
        engine.erase(record, "test data").await.unwrap(),
        Erased::Gone
    );
    let expected = [
        "granted",
        "doubted reset",
        "resolving never-happened",
        "refused too-early",
        "erasing",
        "refused indeterminate",
        "resolving completed",
        "resolved completed",
        "erasing",
        "erased",
    ];
    assert_eq!(events(folder.path()), expected);
    let all = entries(folder.path());
    let resolved = all.iter().find(|it| it.event == "resolved").unwrap();
    assert_eq!(resolved.reason.as_deref(), Some("not in the ledger"));
    assert_eq!(
        (resolved.actor.as_deref(), resolved.by.as_deref()),
        (Some("token"), Some("anna"))
    );
    assert_eq!(resolved.status, Some(200));
}

#[derive(Debug)]
struct Found;

impl Probe for Found {
    fn probe<'a>(
        &'a self,
        _: &'a Intent,
        _: Doubt,
    ) -> std::pin::Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async { Finding::Happened(Outcome::new(201, "found")) })
    }
}

#[tokio::test]
async fn probe_results_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let mut intent = intent("a");
    intent.probe = Some(Arc::new(Found));
    intent.terms.settle_after = Duration::ZERO;
    intent.terms.timeout = Duration::from_secs(5);
    let mut running = granted(&engine, &intent).await.start();
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    // The background task may be faster than this one.
    let answered = async {
        loop {
            if let Verdict::Replay(outcome) = engine.claim(&intent).await.unwrap() {
                return outcome;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(60), answered)
        .await
        .unwrap();
    assert_eq!(outcome.status(), 201);
    let all = entries(folder.path());
    let resolved = all.iter().find(|it| it.event == "resolved").unwrap();
    assert_eq!(
        (resolved.actor.as_deref(), resolved.status),
        (Some("probe"), Some(201))
    );
}

/// The log's disk is full: no audited operation starts, an operation that was running is stored but its outcome not
/// shown, and all other operations run.
#[tokio::test]
async fn without_its_log_nothing_audited_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, log) = failing(folder.path());
    let engine = Engine::new(Memory::new()).with_audit(log);
    let running = granted(&engine, &intent("a")).await.start();
    engine
        .audit()
        .unwrap()
        .write(refrain::audit::Entry::new(refrain::audit::Event::Granted))
        .await
        .unwrap();
    disk.fail(Rule::always(Operation::Write, ".jsonl", Fault::ENOSPC));
    let error = running
        .complete(Outcome::new(201, "charged"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unaudited);
    for key in ["a", "b"] {
        let error = engine.claim(&intent(key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unaudited, "{error}");
        assert!(error.to_string().contains("audit log"), "{error}");
    }
    assert_eq!(
        engine
            .erase(id(&engine, "a"), "why")
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Unaudited
    );
    let mut other = intent("b");
    other.audit = None;
    let ran = engine
        .run(&other, async |_| Outcome::new(201, ""))
        .await
        .unwrap();
    assert!(matches!(ran, Verdict::Granted(_)));
    // The outcome of the operation that was running is not lost.
    let mut asked = intent("a");
    asked.audit = None;
    assert!(matches!(
        engine.claim(&asked).await.unwrap(),
        Verdict::Replay(_)
    ));
    assert_eq!(engine.tally().get(refrain::engine::Count::Unaudited), 2);
}

/// Many at once, on a durable store: each has an entry for its start and one for its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_load_every_attempt_has_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("store"), Default::default()).unwrap();
    let audit = folder.path().join("store/audit");
    let engine = Engine::new(store).with_audit(AuditLog::open(&audit).unwrap());
    let running = (0..200).map(|number| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let intent = intent(&format!("order-{}", number / 2));
            let _ = engine
                .run(&intent, async |_| Outcome::new(201, "charged"))
                .await
                .unwrap();
        })
    });
    for running in running.collect::<Vec<_>>() {
        running.await.unwrap();
    }
    drop(engine);
    let found = verify(&audit, &Check::default(), &mut |_| ()).unwrap();
    assert_eq!(found.damage, []);
    assert_eq!((found.entries, found.loose.open.len()), (201, 0));
    // The store ignores the folder of the log inside its own folder.
    let again =
        Engine::new(Embedded::open(&folder.path().join("store"), Default::default()).unwrap());
    assert!(matches!(
        again.claim(&intent("order-7")).await.unwrap(),
        Verdict::Replay(_)
    ));
}

/// A run that was overtaken: the log has its end, and that it was fenced.
#[tokio::test]
async fn superseded_end_is_audited_as_not_counting() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    let mut running = granted(&engine, &intent("a")).await.start();
    let _ = running.doubt(Reason::Reset).await.unwrap();
    let resolution = Resolution::Completed {
        outcome: Outcome::new(200, "by hand"),
        retention: DAY,
        remember: DAY,
    };
    let _ = engine
        .resolve(id(&engine, "a"), resolution, "seen")
        .await
        .unwrap();
    assert_eq!(
        engine.erase(id(&engine, "a"), "again").await.unwrap(),
        Erased::Gone
    );
    let settled = running.complete(Outcome::new(201, "late")).await.unwrap();
    assert_eq!(settled, Settled::Fenced);
    engine
        .audit()
        .unwrap()
        .write(refrain::audit::Entry::new(refrain::audit::Event::Refused))
        .await
        .unwrap();
    let found = events(folder.path());
    assert_eq!(
        found[found.len() - 3..],
        ["completed", "overtaken", "refused"]
    );
}
