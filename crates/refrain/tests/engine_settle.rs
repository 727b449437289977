//! A run ends while the store is unavailable, or its outcome is unknown and there is a probe. A known outcome is kept
//! in memory and stored as soon as possible; for an unknown one the probe is called once, by one caller, and never
//! too early.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    Engine, ErrorKind, Intent, Key, Outcome, Scope, Settlement, Store, Verdict,
    engine::{ClaimReply, Count, Finding, Probe, Running},
    record::{Doubt, Reason},
    store::{Embedded, StateName, embedded::Options},
};

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, complete, states, until};

fn intent() -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new("k").unwrap());
    intent.terms.wait = Duration::from_secs(600);
    intent
}

fn hasty() -> Intent {
    let mut intent = intent();
    intent.terms.wait = Duration::ZERO;
    intent
}

async fn run(engine: &Engine, intent: &Intent) -> Running {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_could_not_be_stored_is_held_until_it_is() {
    for fault in [
        Fault::Fails(ErrorKind::Unavailable),
        Fault::Fails(ErrorKind::Full),
        Fault::LosesAnswer(Duration::ZERO),
    ] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        let running = run(&engine, &intent()).await;
        let waiter = tokio::spawn({
            let engine = engine.clone();
            async move { engine.claim(&intent()).await.unwrap() }
        });
        until(|| engine.tally().waiting_now() == 1).await;
        store.set(Op::Settle, 20, fault);
        let error = running.complete(Outcome::new(200, "held")).await;
        assert!(error.unwrap_err().is_retryable());
        // The store is unavailable for longer than a lease; the holder's process lives, so its claim stays.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(engine.tally().held_now(), 1);
        let is_lost = matches!(fault, Fault::LosesAnswer(_));
        let expected = match is_lost {
            true => StateName::Completed,
            false => StateName::InFlight,
        };
        assert_eq!(states(&store).await, [expected]);
        store.mend(Op::Settle);
        let verdict = waiter.await.unwrap();
        let Verdict::Replay(outcome) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(&outcome.body()[..], b"held");
        until(|| engine.tally().held_now() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_could_not_be_stored_is_held_too() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &intent()).await;
    store.set(Op::Settle, 3, Fault::Fails(ErrorKind::Unavailable));
    running.release(None).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        (states(&store).await, engine.tally().held_now()),
        (vec![], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_that_will_not_pass_is_not_tried_again() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &intent()).await;
    store.set(Op::Settle, 99, Fault::Fails(ErrorKind::Corrupt));
    running.complete(Outcome::new(200, "")).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((store.calls(Op::Settle), engine.tally().held_now()), (1, 0));
    assert_eq!(states(&store).await, [StateName::Indeterminate]);
}

#[tokio::test(start_paused = true)]
async fn more_than_can_be_held_are_given_up_as_doubt() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Settle, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    for number in 0..1_030 {
        let mut intent = intent();
        intent.key = Key::new(format!("k-{number}")).unwrap();
        let running = run(&engine, &intent).await;
        running.complete(Outcome::new(200, "")).await.unwrap_err();
    }
    assert_eq!(engine.tally().held_now(), 1_024);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let query = |state| refrain::store::Query {
        state: Some(state),
        limit: 1_000,
        ..Default::default()
    };
    let given_up = store.list(&query(StateName::Indeterminate)).await.unwrap();
    assert_eq!(given_up.readings.len(), 6);
    store.mend(Op::Settle);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(engine.tally().held_now(), 0);
    let open = store.list(&query(StateName::InFlight)).await.unwrap();
    assert_eq!(open.readings, []);
}

/// A probe that the test controls.
#[derive(Debug, Clone)]
struct Script {
    finding: Finding,
    asked: Arc<AtomicUsize>,
    mood: Mood,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Answers,
    Panics,
    Hangs,
}

impl Script {
    fn new(finding: Finding, mood: Mood) -> Self {
        let asked = Arc::default();
        Self {
            finding,
            asked,
            mood,
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn on(&self, intent: Intent) -> Intent {
        let probe: Option<Arc<dyn Probe>> = Some(Arc::new(self.clone()));
        Intent { probe, ..intent }
    }
}

impl Probe for Script {
    fn probe<'a>(
        &'a self,
        _intent: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        assert!(doubt.settle_left.is_zero());
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            match self.mood {
                Mood::Panics => panic!("a probe that fails"),
                Mood::Hangs => std::future::pending().await,
                Mood::Answers => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            self.finding.clone()
        })
    }
}

fn happened() -> Finding {
    Finding::Happened(Outcome::new(200, "probed"))
}

/// An engine whose record `k` is indeterminate, and whose attempt can no longer act.
async fn doubtful() -> (Scripted, Engine) {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut running = run(&engine, &intent()).await;
    let _ = running.doubt(Reason::Reset).await.unwrap();
    drop(running);
    tokio::time::sleep(intent().terms.settle_after).await;
    (store, engine)
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_not_asked_before_the_old_attempt_can_no_longer_act() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let probe = Script::new(Finding::NeverHappened, Mood::Answers);
    let mut running = run(&engine, &intent()).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(11)).await;
        let verdict = engine.claim(&probe.on(intent())).await.unwrap();
        assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
        assert_eq!(probe.asked(), 0);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    complete(run(&engine, &probe.on(intent())).await, "again").await;
    assert_eq!(probe.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn probe_result_decides() {
    let cases = [
        (happened(), "replayed"),
        (Finding::NeverHappened, "granted"),
        (Finding::Unknown, "unknown"),
    ];
    for (finding, expected) in cases {
        let (_, engine) = doubtful().await;
        let probe = Script::new(finding, Mood::Answers);
        for round in 1..=2 {
            let seen = match engine.claim(&probe.on(hasty())).await.unwrap() {
                Verdict::Replay(outcome) => {
                    assert_eq!(&outcome.body()[..], b"probed");
                    "replayed"
                }
                Verdict::Granted(guard) => {
                    // Left running, so that the second round finds it in flight.
                    std::mem::forget(guard.start());
                    "granted"
                }
                Verdict::InFlight { .. } if round == 2 => "granted",
                Verdict::Indeterminate(_) => "unknown",
                other => panic!("{other:?}"),
            };
            assert_eq!(seen, expected);
        }
        let is_asked_again = expected == "unknown";
        assert_eq!(probe.asked(), if is_asked_again { 2 } else { 1 });
        let resolved = engine.tally().get(Count::Resolved);
        assert_eq!(resolved, u64::from(!is_asked_again));
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_at_once_cause_one_probe() {
    let (_, engine) = doubtful().await;
    let probe = Script::new(happened(), Mood::Answers);
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (engine, intent) = (engine.clone(), probe.on(intent()));
        tasks.push(tokio::spawn(async move {
            engine.attend(&intent).await.unwrap()
        }));
    }
    let mut replays = 0;
    for task in tasks {
        match task.await.unwrap() {
            ClaimReply::Verdict(Verdict::Replay(_)) => replays += 1,
            ClaimReply::Verdict(Verdict::Indeterminate(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((probe.asked(), replays), (1, 1));
    let verdict = engine.claim(&probe.on(intent())).await.unwrap();
    assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
}

/// The client whose request triggered the probe disconnects while the probe runs.
#[tokio::test(start_paused = true)]
async fn a_prober_that_goes_away_does_not_end_probing() {
    let (_, engine) = doubtful().await;
    let probe = Script::new(happened(), Mood::Answers);
    let asking = probe.on(intent());
    let gone = tokio::time::timeout(Duration::from_millis(20), engine.attend(&asking)).await;
    assert!(gone.is_err());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let verdict = engine.claim(&asking).await.unwrap();
    assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    assert_eq!(probe.asked(), 1, "the finding of the probe still counts");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_or_hangs_does_not_end_probing() {
    for mood in [Mood::Panics, Mood::Hangs] {
        let (_, engine) = doubtful().await;
        let bad = Script::new(Finding::Unknown, mood);
        let verdict = engine.claim(&bad.on(intent())).await.unwrap();
        assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
        let good = Script::new(happened(), Mood::Answers);
        let verdict = engine.claim(&good.on(intent())).await.unwrap();
        assert!(
            matches!(verdict, Verdict::Replay(_)),
            "{mood:?} {verdict:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_finding_that_could_not_be_stored_is_not_told_as_one() {
    let (store, engine) = doubtful().await;
    let probe = Script::new(Finding::NeverHappened, Mood::Answers);
    store.set(Op::Settle, 1, Fault::Fails(ErrorKind::Unavailable));
    let verdict = engine.claim(&probe.on(intent())).await.unwrap();
    assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
    assert_eq!(engine.tally().get(Count::Resolved), 0);
    complete(run(&engine, &probe.on(intent())).await, "").await;
}

/// While the probe runs, the holder itself completes: its outcome counts.
#[tokio::test(start_paused = true)]
async fn late_outcome_takes_precedence_over_the_probe() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut running = run(&engine, &intent()).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    tokio::time::sleep(intent().terms.settle_after).await;
    let probe = Script::new(Finding::NeverHappened, Mood::Answers);
    let asker = tokio::spawn({
        let (engine, asking) = (engine.clone(), probe.on(intent()));
        async move { engine.claim(&asking).await.unwrap() }
    });
    until(|| probe.asked() == 1).await;
    complete(running, "truth").await;
    let verdict = asker.await.unwrap();
    let Verdict::Replay(outcome) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(&outcome.body()[..], b"truth");
    assert_eq!(engine.tally().get(Count::Resolved), 0);
}

#[tokio::test]
async fn only_the_holder_of_the_fence_settles() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &intent()).await;
    let mut fence = running.fence();
    fence.nonce ^= 1;
    for end in [
        Settlement::Release,
        Settlement::NeverHappened,
        Settlement::Doubt {
            reason: Reason::Failed,
        },
    ] {
        let settled = store.settle(running.id(), fence, end).await.unwrap();
        assert_eq!(settled, refrain::Settled::Fenced);
    }
    complete(running, "").await;
}

/// The folder is unlocked as soon as the engine and its grants are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_closes_with_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let store = Embedded::open(folder.path(), Options::default()).unwrap();
        let engine = Engine::new(store);
        let work = async |_| Outcome::new(200, "once");
        let verdict = engine.run(&hasty(), work).await.unwrap();
        assert_eq!(matches!(verdict, Verdict::Granted(_)), round == 0);
        assert_eq!(matches!(verdict, Verdict::Replay(_)), round > 0);
    }
}

/// A claim is cancelled while the writer makes it durable: the real store, the real race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_cancelled_on_the_embedded_store_leave_nothing_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Options::default()).unwrap();
    let engine = Engine::new(store);
    for number in 0..200_u64 {
        let mut intent = hasty();
        intent.key = Key::new(format!("k-{number}")).unwrap();
        let asker = tokio::spawn({
            let engine = engine.clone();
            async move { engine.attend(&intent).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_micros(number % 40 * 5)).await;
        asker.abort();
    }
    for _ in 0..12_000 {
        if states(engine.store()).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("left behind: {:?}", states(engine.store()).await);
}
