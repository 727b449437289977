//! A run ends with an unknown outcome and no client retries: the engine calls the probe by itself. It must not do so
//! before the old attempt can no longer act, nor twice at once, nor for ever, nor after the engine is dropped.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    Engine, ErrorKind, Guarantee, Intent, Key, Outcome, Scope, Verdict,
    engine::{Count, Finding, Probe, Running},
    record::{Doubt, Reason},
    store::{Embedded, Memory, StateName, embedded::Options},
};
use tokio::time::{Instant, sleep};

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, complete, states, until};

const SECOND: Duration = Duration::from_secs(1);

/// A probe that returns the configured finding, and records the times of its calls.
#[derive(Debug, Clone)]
struct Script {
    finding: Arc<Mutex<Finding>>,
    /// How long a call takes.
    takes: Duration,
    asked: Arc<Mutex<Vec<Instant>>>,
    now: Arc<AtomicUsize>,
    at_once_max: Arc<AtomicUsize>,
}

impl Script {
    fn new(finding: Finding) -> Self {
        Self {
            finding: Arc::new(Mutex::new(finding)),
            takes: Duration::from_millis(50),
            asked: Arc::default(),
            now: Arc::default(),
            at_once_max: Arc::default(),
        }
    }

    fn asked(&self) -> Vec<Instant> {
        self.asked.lock().unwrap().clone()
    }

    fn intent(&self) -> Intent {
        let mut intent = Intent::new(Scope::none(), Key::new("k").unwrap());
        intent.terms.wait = Duration::ZERO;
        intent.probe = Some(Arc::new(self.clone()));
        intent
    }
}

impl Probe for Script {
    fn probe<'a>(
        &'a self,
        _intent: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        assert!(doubt.settle_left.is_zero());
        self.asked.lock().unwrap().push(tokio::time::Instant::now());
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.at_once_max.fetch_max(now, Ordering::SeqCst);
        Box::pin(async {
            sleep(self.takes).await;
            self.now.fetch_sub(1, Ordering::SeqCst);
            self.finding.lock().unwrap().clone()
        })
    }
}

fn happened() -> Finding {
    Finding::Happened(Outcome::new(200, "probed"))
}

async fn run(engine: &Engine, intent: &Intent) -> Running {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

async fn doubt(engine: &Engine, intent: &Intent) {
    let mut running = run(engine, intent).await;
    let _ = running.doubt(Reason::Reset).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_probe_settles_without_a_retry_and_not_too_early() {
    for (finding, expected) in [
        (happened(), vec![StateName::Completed]),
        (Finding::NeverHappened, vec![]),
    ] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        let probe = Script::new(finding);
        let (intent, begun) = (probe.intent(), tokio::time::Instant::now());
        let running = run(&engine, &intent).await;
        sleep(SECOND * 20).await;
        // Dropped while it runs, which leaves an unknown outcome.
        drop(running);
        // Its lease was renewed until just now, so the attempt may have acted until then.
        let settled = begun + SECOND * 15 + intent.terms.settle_after;
        tokio::time::sleep_until(settled).await;
        assert_eq!(probe.asked(), []);
        assert_eq!(states(&store).await, [StateName::Indeterminate]);
        assert_eq!(engine.tally().background_probes_now(), 1);
        sleep(SECOND * 7).await;
        assert_eq!(states(&store).await, expected);
        sleep(SECOND * 1_000).await;
        assert_eq!(
            (probe.asked().len(), engine.tally().background_probes_now()),
            (1, 0)
        );
        let tally = engine.tally();
        assert_eq!(
            (tally.get(Count::Probed), tally.get(Count::Resolved)),
            (1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_learns_nothing_is_asked_less_and_less_and_then_not_any_more() {
    for (retention, care) in [
        (SECOND * 86_400, SECOND * 3_600),
        (SECOND * 60, SECOND * 60),
    ] {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let probe = Script::new(Finding::Unknown);
        let mut intent = probe.intent();
        intent.terms.retention = retention;
        doubt(&engine, &intent).await;
        sleep(SECOND * 4_500).await;
        let asked = probe.asked();
        let pauses: Vec<_> = asked.windows(2).map(|two| two[1] - two[0]).collect();
        let mut expected = SECOND;
        for pause in &pauses {
            let range = expected / 2..=expected + SECOND;
            assert!(range.contains(pause), "{pause:?} for {expected:?}");
            expected = (expected * 2).min(SECOND * 300);
        }
        assert!(pauses.len() >= 5);
        let lasted = asked[pauses.len()] - asked[0];
        assert!(lasted <= care + intent.terms.lease, "{lasted:?}");
        assert!(lasted >= care / 2, "{lasted:?}");
        assert_eq!(engine.tally().background_probes_now(), 0);
        // A retry still calls the probe.
        *probe.finding.lock().unwrap() = happened();
        let verdict = engine.claim(&intent).await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_and_the_background_never_ask_at_once() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let mut probe = Script::new(Finding::Unknown);
    probe.takes = SECOND * 3;
    let intent = probe.intent();
    doubt(&engine, &intent).await;
    sleep(intent.terms.settle_after - SECOND).await;
    let mut tasks = Vec::new();
    for number in 0..2_000_u32 {
        let (engine, intent) = (engine.clone(), intent.clone());
        tasks.push(tokio::spawn(async move {
            sleep(Duration::from_millis(10) * number).await;
            drop(engine.claim(&intent).await.unwrap());
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    sleep(SECOND * 1_000).await;
    assert!(probe.asked().len() >= 5, "{:?}", probe.asked().len());
    assert_eq!(probe.at_once_max.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn record_settled_elsewhere_is_not_probed() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let probe = Script::new(Finding::NeverHappened);
    let mut running = run(&engine, &probe.intent()).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    sleep(SECOND * 10).await;
    complete(running, "late truth").await;
    sleep(SECOND * 1_000).await;
    assert_eq!(
        (probe.asked(), engine.tally().background_probes_now()),
        (vec![], 0)
    );
    // A run with a known outcome is not probed at all.
    let mut intent = probe.intent();
    intent.key = Key::new("well").unwrap();
    complete(run(&engine, &intent).await, "").await;
    intent.key = Key::new("refused").unwrap();
    let _ = run(&engine, &intent).await.release(None).await.unwrap();
    assert_eq!(engine.tally().background_probes_now(), 0);
}

/// Under at-least-once a lapsed lease leaves no unknown outcome: the next retry takes over.
#[tokio::test(start_paused = true)]
async fn record_open_for_takeover_is_not_probed() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let probe = Script::new(Finding::NeverHappened);
    let mut intent = probe.intent();
    intent.terms.guarantee = Guarantee::AtLeastOnce;
    doubt(&engine, &intent).await;
    sleep(SECOND * 1_000).await;
    assert_eq!(
        (probe.asked(), engine.tally().background_probes_now()),
        (vec![], 0)
    );
    complete(run(&engine, &intent).await, "taken over").await;
}

/// The engine keeps trying if the doubt could not be stored, if the record could not be read, or if the finding could
/// not be stored.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_while_ends_no_care() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let probe = Script::new(happened());
    let down = Fault::Fails(ErrorKind::Unavailable);
    let mut running = run(&engine, &probe.intent()).await;
    store.set(Op::Settle, 2, down);
    store.set(Op::Read, 4, down);
    running.doubt(Reason::Reset).await.unwrap_err();
    drop(running);
    sleep(SECOND * 200).await;
    assert_eq!(states(&store).await, [StateName::Completed]);
    assert_eq!(probe.asked().len(), 2);
    assert_eq!(store.calls(Op::Settle), 3);
}

#[tokio::test(start_paused = true)]
async fn more_than_can_be_probed_are_left_to_retries() {
    let engine = Engine::new(Memory::new());
    let probe = Script::new(happened());
    let mut intent = probe.intent();
    for number in 0..10_005 {
        intent.key = Key::new(format!("k-{number}")).unwrap();
        drop(run(&engine, &intent).await);
    }
    until(|| engine.tally().background_probes_now() == 10_000).await;
    assert_eq!(engine.tally().get(Count::Doubted), 10_005);
}

#[tokio::test(start_paused = true)]
async fn background_probes_end_with_their_engine() {
    let probe = Script::new(happened());
    let engine = Engine::new(Scripted::on_runtime_clock());
    doubt(&engine, &probe.intent()).await;
    drop(engine);
    sleep(SECOND * 1_000).await;
    assert_eq!(probe.asked(), []);
    assert_eq!(
        Arc::strong_count(&probe.asked),
        1,
        "the probe is still referenced"
    );
}

/// The folder is unlocked as soon as the engine is dropped, although a probe hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_hangs_keeps_no_store_open() {
    let folder = tempfile::tempdir().unwrap();
    let mut probe = Script::new(happened());
    probe.takes = SECOND * 3_600;
    let mut intent = probe.intent();
    intent.terms.settle_after = Duration::from_millis(20);
    let engine = Engine::new(Embedded::open(folder.path(), Options::default()).unwrap());
    doubt(&engine, &intent).await;
    until(|| probe.asked().len() == 1).await;
    drop(engine);
    Embedded::open(folder.path(), Options::default()).unwrap();
}
