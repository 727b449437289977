//! The holder of a claim can vanish at any point: before it starts, while it runs, in a panic, or before the store
//! has responded. Before the start nothing has run, so the key must be free at once; left to its lease, the record
//! would end as indeterminate and a first request would be lost. After the start the operation may have taken effect,
//! so the claim must never be released.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use refrain::{
    Engine, ErrorKind, Guarantee, Intent, Key, Outcome, Scope, Store, Terms, Verdict,
    engine::{Count, Guard, Running},
    record::{Reason, State},
    store::{
        Query, StateName,
        embedded::{Embedded, Options},
    },
};

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, complete, until};

fn intent() -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new("k").unwrap());
    intent.terms.wait = Duration::ZERO;
    intent
}

async fn granted(engine: &Engine, intent: &Intent) -> Guard {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard,
        other => panic!("not granted: {other:?}"),
    }
}

/// The state of the only record, and the reason if it is indeterminate.
async fn state(store: &Scripted) -> Option<(StateName, Option<Reason>)> {
    let page = store.records.list(&Query::default()).await.unwrap();
    page.readings.first().map(|reading| {
        let reason = match &reading.record.state {
            State::Indeterminate { reason, .. } => Some(*reason),
            _ => None,
        };
        (reading.record.state.name(), reason)
    })
}

async fn settled(store: &Scripted) -> Option<(StateName, Option<Reason>)> {
    for _ in 0..60_000 {
        match state(store).await {
            Some((StateName::InFlight, _)) => tokio::time::sleep(Duration::from_millis(1)).await,
            other => return other,
        }
    }
    panic!("still in flight");
}

#[tokio::test]
async fn a_dropped_guard_frees_the_key() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    drop(granted(&engine, &intent()).await);
    assert_eq!(settled(&store).await, None);
    drop(granted(&engine, &intent()).await);
    assert_eq!(engine.tally().get(Count::PossibleDuplicate), 0);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_is_dropped_keeps_count_of_the_attempts_before() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut intent = intent();
    intent.terms.guarantee = Guarantee::AtLeastOnce;
    let lapsed = || tokio::time::sleep(intent.terms.lease + Duration::from_secs(1));
    drop(granted(&engine, &intent).await.start());
    for attempt in 2..4 {
        lapsed().await;
        let guard = granted(&engine, &intent).await;
        assert_eq!(guard.attempt(), attempt);
        drop(guard);
    }
    lapsed().await;
    assert_eq!(
        state(&store).await,
        Some((StateName::InFlight, None)),
        "a run that may have taken effect is forgotten"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_given_up_is_taken_over_before_its_lease_would_have_lapsed() {
    let pause = Duration::from_secs(5);
    let lapsed = Some((StateName::Indeterminate, Some(Reason::Failed)));
    // Guarantee, attempts, the state that is left, and the attempt that is granted after the pause.
    let cases = [
        (
            Guarantee::AtLeastOnce,
            3,
            Some((StateName::InFlight, None)),
            Some(2),
        ),
        (Guarantee::AtLeastOnce, 1, lapsed, None),
        (Guarantee::AtMostOnce, 3, lapsed, None),
    ];
    for (guarantee, attempts_max, left, next) in cases {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        let mut intent = intent();
        intent.terms.guarantee = guarantee;
        intent.terms.attempts_max = attempts_max;
        let running = granted(&engine, &intent).await.start();
        let given_up = running.give_up(Reason::Failed, pause).await;
        assert_eq!(given_up.unwrap(), refrain::Settled::Applied);
        assert_eq!(state(&store).await, left);
        tokio::time::sleep(pause - Duration::from_secs(1)).await;
        let early = engine.claim(&intent).await.unwrap();
        assert!(!matches!(early, Verdict::Granted(_)), "{early:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let attempt = match engine.claim(&intent).await.unwrap() {
            Verdict::Granted(guard) => Some(guard.attempt()),
            _ => None,
        };
        assert_eq!(attempt, next, "{guarantee:?}");
    }
}

#[tokio::test]
async fn a_dropped_run_leaves_doubt_and_its_reason() {
    type Drops = fn(Running);
    let cases: [(Drops, Reason); 2] = [
        (drop, Reason::Dropped),
        (
            |running| {
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _running = running;
                    panic!("a handler that fails");
                }));
                assert!(panicked.is_err());
            },
            Reason::Panicked,
        ),
    ];
    for (drops, reason) in cases {
        let store = Scripted::new();
        let engine = Engine::new(store.clone());
        drops(granted(&engine, &intent()).await.start());
        let expected = Some((StateName::Indeterminate, Some(reason)));
        assert_eq!(settled(&store).await, expected);
        let verdict = engine.claim(&intent()).await.unwrap();
        assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
        assert_eq!(engine.tally().get(Count::Doubted), 1);
    }
}

#[test]
fn drops_on_a_thread_without_a_runtime_are_settled_on_the_engines() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let guard = runtime.block_on(granted(&engine, &intent()));
    drop(guard);
    assert_eq!(runtime.block_on(settled(&store)), None);
    let running = runtime.block_on(granted(&engine, &intent())).start();
    drop(running);
    let expected = Some((StateName::Indeterminate, Some(Reason::Dropped)));
    assert_eq!(runtime.block_on(settled(&store)), expected);
}

/// Engines live in statics, and runtimes come and go: each `#[tokio::test]` has its own runtime.
#[test]
fn an_engine_outlives_the_runtime_of_its_first_claim() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let guard = first.block_on(granted(&engine, &intent()));
    drop(first);
    // No runtime to settle it on: this claim is left to its lease.
    drop(guard);
    runtime().block_on(async {
        let mut other = intent();
        other.key = Key::new("other").unwrap();
        other.terms.lease = Duration::from_secs(8);
        let running = granted(&engine, &other).await.start();
        tokio::time::sleep(Duration::from_secs(12)).await;
        let verdict = engine.claim(&other).await.unwrap();
        assert!(
            matches!(verdict, Verdict::InFlight { .. }),
            "not renewed on the new runtime: {verdict:?}"
        );
        complete(running, "").await;
    });
}

/// The client disconnects while the store still processes its claim, so that the grant has no receiver.
#[tokio::test(start_paused = true)]
async fn a_claim_cancelled_on_its_way_does_not_block_the_key() {
    for fault in [
        Fault::DoneLate(Duration::from_millis(60)),
        Fault::AnswersLate(Duration::from_millis(60)),
    ] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        store.set(Op::Claim, 1, fault);
        let gone = tokio::time::timeout(Duration::from_millis(20), engine.attend(&intent())).await;
        assert!(gone.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(settled(&store).await, None, "{fault:?}");
        drop(granted(&engine, &intent()).await);
    }
}

/// The same during a write to a real disk.
#[tokio::test]
async fn a_claim_cancelled_during_a_sync_does_not_block_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Embedded::open(folder.path(), Options::default()).unwrap());
    let mut cancelled = 0;
    for number in 0..50 {
        let mut intent = intent();
        intent.key = Key::new(format!("k-{number}")).unwrap();
        let mut claiming = Box::pin(engine.claim(&intent));
        let polled = poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context))).await;
        cancelled += usize::from(polled.is_pending());
        drop((polled, claiming));
        let freed = async {
            loop {
                match engine.claim(&intent).await.unwrap() {
                    Verdict::Granted(guard) => return guard.attempt(),
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let freed = tokio::time::timeout(Duration::from_secs(60), freed).await;
        assert_eq!(freed, Ok(1), "of {number}");
    }
    assert!(cancelled > 25, "only {cancelled} claims were cancelled");
}

/// A lost claim lapses while the store is unavailable for `away`. A caller then gets an unknown outcome, but that
/// response arrives only after the background task has released the lost claim.
async fn reply_older_than_the_release(away: Duration) -> (Scripted, Engine, Claiming) {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
    store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    engine.claim(&intent()).await.unwrap_err();
    tokio::time::sleep(away).await;
    let lapsed = Some((StateName::Indeterminate, Some(Reason::Lapsed)));
    assert_eq!(state(&store).await, lapsed);
    store.set(Op::Claim, 1, Fault::AnswersLate(Duration::from_secs(10)));
    let claiming = tokio::spawn({
        let engine = engine.clone();
        async move { engine.claim(&intent()).await.unwrap() }
    });
    until(|| store.calls(Op::Claim) == 3).await;
    store.mend(Op::Read);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(state(&store).await, None, "the lost claim is released");
    (store, engine, claiming)
}

type Claiming = tokio::task::JoinHandle<Verdict<Guard>>;

#[tokio::test(start_paused = true)]
async fn a_lost_claim_released_meanwhile_is_no_unknown_outcome() {
    // After the longer time the engine has forgotten the lost claim.
    for away in [Duration::from_mins(1), Duration::from_mins(30)] {
        let (_store, _engine, claiming) = reply_older_than_the_release(away).await;
        let verdict = claiming.await.unwrap();
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_released_and_claimed_meanwhile_is_in_flight() {
    let (_store, engine, claiming) = reply_older_than_the_release(Duration::from_mins(1)).await;
    let running = granted(&engine, &intent()).await.start();
    let verdict = claiming.await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
    complete(running, "").await;
}

#[tokio::test]
async fn a_claim_that_was_never_asked_leaves_nothing_behind() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let intent = intent();
    drop(engine.attend(&intent));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.calls(Op::Claim), 0);
}

/// A claim is cancelled, and its response gets lost as well.
#[tokio::test(start_paused = true)]
async fn a_claim_cancelled_and_lost_is_found_and_released() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 1, Fault::LosesAnswer(Duration::from_secs(1)));
    let gone = tokio::time::timeout(Duration::from_millis(20), engine.attend(&intent())).await;
    assert!(gone.is_err());
    assert_eq!(state(&store).await.unwrap().0, StateName::InFlight);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(state(&store).await, None);
}

#[tokio::test]
async fn a_claim_whose_answer_got_lost_is_asked_again_and_granted_once() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 1, Fault::LosesAnswer(Duration::ZERO));
    let guard = granted(&engine, &intent()).await;
    assert_eq!((guard.attempt(), store.calls(Op::Claim)), (1, 2));
    let settled = guard.start().complete(Outcome::new(200, "")).await.unwrap();
    assert_eq!(settled, refrain::Settled::Applied);
    assert_eq!(engine.tally().get(Count::PossibleDuplicate), 0);
}

/// Both responses are lost: the caller gets an error that says that nothing ran, so the claim must not block its
/// retry.
#[tokio::test(start_paused = true)]
async fn a_claim_that_stands_unknown_to_its_caller_is_released() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
    // The store is down for longer than the lease.
    store.set(Op::Read, 9, Fault::Fails(ErrorKind::Unavailable));
    let error = engine.claim(&intent()).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(state(&store).await.unwrap().0, StateName::InFlight);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(state(&store).await, None, "released although it had lapsed");
    drop(granted(&engine, &intent()).await);
}

/// The claim is released however long the store is unavailable.
#[tokio::test(start_paused = true)]
async fn lost_claim_is_released_after_hours_without_a_store() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
    store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    engine.claim(&intent()).await.unwrap_err();
    tokio::time::sleep(Duration::from_hours(6)).await;
    store.mend(Op::Read);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(state(&store).await, None);
}

/// A retry that comes before the background task has read the record is not refused as a duplicate.
#[tokio::test(start_paused = true)]
async fn retry_after_a_lost_claim_runs_at_once() {
    for lapses in [false, true] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
        store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
        engine.claim(&intent()).await.unwrap_err();
        if lapses {
            tokio::time::sleep(Duration::from_hours(1)).await;
        }
        store.mend(Op::Read);
        let guard = granted(&engine, &intent()).await;
        assert_eq!(guard.attempt(), 1, "lapsed: {lapses}");
    }
}

/// The engine cannot find out now whether the record belongs to the lost claim, so it must not treat it as another
/// caller's.
#[tokio::test(start_paused = true)]
async fn retry_is_not_refused_as_a_duplicate_while_the_lost_claim_cannot_be_read() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
    store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    engine.claim(&intent()).await.unwrap_err();
    let error = engine.claim(&intent()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// The claim was delayed on the network, and arrives after the store has reported that there is no record.
#[tokio::test(start_paused = true)]
async fn claim_that_arrives_late_is_released() {
    for late in [Duration::from_secs(1), Duration::from_mins(10)] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        store.set(Op::Claim, 2, Fault::ArrivesLate(late));
        engine.claim(&intent()).await.unwrap_err();
        tokio::time::sleep(late + Duration::from_millis(1)).await;
        assert_eq!(state(&store).await.unwrap().0, StateName::InFlight);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(state(&store).await, None, "after {late:?}");
        drop(granted(&engine, &intent()).await);
    }
}

/// A process that stops gracefully is the last one to know that nothing was dispatched for a lost claim.
#[tokio::test(start_paused = true)]
async fn settled_waits_until_a_lost_claim_is_released() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    engine.settled().await;
    store.set(Op::Claim, 2, Fault::LosesAnswer(Duration::ZERO));
    store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    engine.claim(&intent()).await.unwrap_err();
    let waited = tokio::time::timeout(Duration::from_secs(30), engine.settled());
    assert!(waited.await.is_err(), "the store has not responded yet");
    store.mend(Op::Read);
    engine.settled().await;
    assert_eq!(state(&store).await, None);
}

#[tokio::test(start_paused = true)]
async fn looking_for_lost_claims_ends_and_touches_nobody_elses() {
    let store = Scripted::on_runtime_clock();
    let (engine, other) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let _theirs = granted(&other, &intent()).await.start();
    store.set(Op::Claim, 2, Fault::Fails(ErrorKind::Unavailable));
    engine.claim(&intent()).await.unwrap_err();
    assert_eq!(engine.tally().lost_now(), 1);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(engine.tally().lost_now(), 0, "the store has responded");
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(state(&store).await.unwrap().0, StateName::InFlight);
    let looked = store.calls(Op::Read);
    assert!((1..300).contains(&looked), "{looked}");
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(store.calls(Op::Read), looked);
}

#[tokio::test(start_paused = true)]
async fn claim_that_was_refused_before_it_was_sent_is_not_looked_for() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 2, Fault::Refuses);
    engine.claim(&intent()).await.unwrap_err();
    assert_eq!(engine.tally().lost_now(), 0);
    // One of the two claims may have arrived.
    store.set(Op::Claim, 1, Fault::Fails(ErrorKind::Unavailable));
    drop(granted(&engine, &intent()).await);
    assert_eq!(engine.tally().lost_now(), 0, "granted, so not lost");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(store.calls(Op::Read), 0);
}

/// No lost claim is ever forgotten, so their number needs a limit.
#[tokio::test(start_paused = true)]
async fn nothing_more_is_sent_while_too_many_claims_are_lost() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Claim, 20_000, Fault::LosesAnswer(Duration::ZERO));
    store.set(Op::Read, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    let named = |number: u32| Intent {
        key: Key::new(format!("k-{number}")).unwrap(),
        ..intent()
    };
    for number in 0..10_000 {
        engine.claim(&named(number)).await.unwrap_err();
    }
    let sent = store.calls(Op::Claim);
    let error = engine.claim(&named(10_000)).await.unwrap_err();
    assert!(error.is_retryable() && error.is_unapplied(), "{error}");
    assert_eq!((store.calls(Op::Claim), sent), (20_000, 20_000));
    store.mend(Op::Read);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(store.records.census().await.unwrap().in_flight, 0);
    drop(granted(&engine, &named(10_000)).await);
}

#[tokio::test]
async fn errors_that_say_that_nothing_was_done_are_not_asked_again() {
    for kind in [ErrorKind::Full, ErrorKind::Corrupt, ErrorKind::Unsupported] {
        let store = Scripted::new();
        let engine = Engine::new(store.clone());
        store.set(Op::Claim, 9, Fault::Fails(kind));
        let error = engine.claim(&intent()).await.unwrap_err();
        assert_eq!((error.kind(), store.calls(Op::Claim)), (kind, 1));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(store.calls(Op::Read), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_is_cut_off_ends_stored_or_in_doubt_but_not_released() {
    for (fault, expected) in [
        (
            Fault::DoneLate(Duration::from_millis(50)),
            StateName::Completed,
        ),
        (
            Fault::AnswersLate(Duration::from_millis(50)),
            StateName::Completed,
        ),
        (Fault::Hangs, StateName::Indeterminate),
    ] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        let running = granted(&engine, &intent()).await.start();
        store.set(Op::Settle, 1, fault);
        let completing = running.complete(Outcome::new(200, "done"));
        let cut = tokio::time::timeout(Duration::from_millis(20), completing).await;
        assert!(cut.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(state(&store).await.unwrap().0, expected, "{fault:?}");
    }
}

#[tokio::test]
async fn cancelled_doubt_leaves_no_waiter() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let mut running = granted(&engine, &intent()).await.start();
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move {
            let mut patient = intent();
            patient.terms.wait = Duration::from_secs(30);
            engine.claim(&patient).await.unwrap()
        }
    });
    until(|| engine.tally().waiting_now() == 1).await;
    store.set(Op::Settle, 1, Fault::Hangs);
    let cut = tokio::time::timeout(Duration::from_millis(20), running.doubt(Reason::Timeout)).await;
    assert!(cut.is_err());
    let asked = store.calls(Op::Claim);
    drop(running);
    until(|| store.calls(Op::Claim) > asked).await;
    waiter.abort();
}

#[tokio::test]
async fn run_in_one_line_leaves_doubt_when_it_panics_or_is_dropped() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let running = tokio::spawn({
        let engine = engine.clone();
        async move {
            let work = async |_| panic!("work that fails");
            engine.run(&intent(), work).await
        }
    });
    assert!(running.await.unwrap_err().is_panic());
    let panicked = Some((StateName::Indeterminate, Some(Reason::Panicked)));
    assert_eq!(settled(&store).await, panicked);

    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let intent = intent();
    let run = engine.run(&intent, async |_| std::future::pending().await);
    let cut = tokio::time::timeout(Duration::from_millis(20), run).await;
    assert!(cut.is_err());
    let dropped = Some((StateName::Indeterminate, Some(Reason::Dropped)));
    assert_eq!(settled(&store).await, dropped);
}

#[tokio::test]
async fn the_longest_wait_that_can_be_written_is_no_panic() {
    let engine = Engine::new(Scripted::new());
    let mut intent = intent();
    intent.terms = Terms {
        wait: Duration::MAX,
        ..Terms::default()
    };
    drop(granted(&engine, &intent).await);
}

/// A resource records the highest fence that it saw and rejects lower ones, so later grants must have higher fences.
#[test]
fn fences_of_one_record_grow_under_contention() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    let engine = Engine::new(Scripted::new());
    let highest = Arc::new(std::sync::Mutex::new(None));
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (engine, highest) = (engine.clone(), highest.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..2_000 {
                    let Verdict::Granted(guard) = engine.claim(&intent()).await.unwrap() else {
                        continue;
                    };
                    let running = guard.start();
                    let before = highest.lock().unwrap().replace(running.fence());
                    assert!(before < Some(running.fence()));
                    let _ = running.release(None).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}
