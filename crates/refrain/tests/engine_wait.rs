//! Duplicates wait for the request in flight. In the same process they are woken instead of polling the store; they
//! get its outcome or its rejection, and never the outcome of another request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    Engine, Fingerprint, Intent, Key, Outcome, Scope, Verdict,
    engine::{ClaimReply, Count, Guard, Running},
    key::Credential,
    record::Reason,
};
use tokio::task::JoinHandle;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, complete, until};

fn intent() -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new("k").unwrap());
    intent.terms.wait = Duration::from_secs(30);
    intent
}

async fn run(engine: &Engine, intent: &Intent) -> Running {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Starts this many duplicates; returns once all of them wait.
async fn waiters(engine: &Engine, count: usize) -> Vec<JoinHandle<ClaimReply>> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            engine.attend(&intent()).await.unwrap()
        }));
    }
    until(|| engine.tally().waiting_now() == count).await;
    tasks
}

fn body(turn: ClaimReply) -> String {
    match turn {
        ClaimReply::Verdict(Verdict::Replay(outcome)) => {
            String::from_utf8(outcome.body().to_vec()).unwrap()
        }
        ClaimReply::Refused(outcome) => format!("refused {}", outcome.status()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_duplicates_are_one_effect_and_are_answered_without_asking_again() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let effects = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        let (engine, effects, gate) = (engine.clone(), effects.clone(), gate.clone());
        tasks.push(tokio::spawn(async move {
            let work = async |_| {
                gate.acquire().await.unwrap().forget();
                effects.fetch_add(1, Ordering::SeqCst);
                Outcome::new(200, "done")
            };
            let verdict = engine.run(&intent(), work).await.unwrap();
            let (Verdict::Granted(outcome) | Verdict::Replay(outcome)) = verdict else {
                panic!("{verdict:?}");
            };
            assert_eq!(&outcome.body()[..], b"done");
        }));
    }
    until(|| engine.tally().waiting_now() == 999).await;
    let asked = store.calls(Op::Claim);
    gate.add_permits(1);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(effects.load(Ordering::SeqCst), 1);
    assert_eq!(store.calls(Op::Claim), asked, "woken with the outcome");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_beyond_the_limit_does_not_wait() {
    let store = Scripted::on_runtime_clock();
    let (here, there) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let running = run(&there, &intent()).await;
    let mut limited = intent();
    limited.terms.waiting_max = 2;
    // With the holder in another process, and with the holder in this one.
    for (number, engine) in [&there, &here].into_iter().enumerate() {
        let waiting = waiters(engine, 2).await;
        let begun = tokio::time::Instant::now();
        let verdict = engine.claim(&limited).await.unwrap();
        assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(engine.tally().get(Count::WaitRefused), 1);
        let mut other = limited.clone();
        other.key = Key::new(format!("other-{number}")).unwrap();
        complete(run(engine, &other).await, "").await;
        waiting.iter().for_each(JoinHandle::abort);
        until(|| engine.tally().waiting_now() == 0).await;
    }
    let waiting = tokio::spawn(async move { there.attend(&limited).await.unwrap() });
    tokio::task::yield_now().await;
    complete(running, "done").await;
    assert_eq!(
        body(waiting.await.unwrap()),
        "done",
        "a waiting slot is free again"
    );
}

#[tokio::test]
async fn waiters_do_not_poll() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &intent()).await;
    let tasks = waiters(&engine, 100).await;
    let asked = store.calls(Op::Claim);
    assert!(asked <= 201, "{asked} claims for 100 duplicates");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(store.calls(Op::Claim), asked);
    complete(running, "done").await;
    for task in tasks {
        assert_eq!(body(task.await.unwrap()), "done");
    }
    assert_eq!(store.calls(Op::Claim), asked);
    assert_eq!(engine.tally().waiting_now(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_holder_in_another_process_is_polled_ever_more_slowly() {
    let store = Scripted::on_runtime_clock();
    let (here, there) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let running = run(&there, &intent()).await;
    let waiter = tokio::spawn({
        let here = here.clone();
        async move { here.attend(&intent()).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(4)).await;
    let asked = store.calls(Op::Claim);
    assert!((15..40).contains(&asked), "{asked} times in 4 s");
    complete(running, "there").await;
    let done = tokio::time::Instant::now();
    assert_eq!(body(waiter.await.unwrap()), "there");
    assert!(done.elapsed() <= Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn settlement_notification_wakes_a_waiter_in_another_process() {
    let store = Scripted::on_runtime_clock().with_watches();
    let (here, there) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let running = run(&there, &intent()).await;
    let waiter = tokio::spawn({
        let here = here.clone();
        async move { here.attend(&intent()).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let asked = store.calls(Op::Claim);
    assert!((3..10).contains(&asked), "{asked} times in 4.5 s");
    let done = tokio::time::Instant::now();
    complete(running, "there").await;
    assert_eq!(body(waiter.await.unwrap()), "there");
    assert!(done.elapsed() <= Duration::from_millis(2), "woken at once");
    assert_eq!(store.calls(Op::Claim), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn claim_without_wait_returns_in_flight_at_once() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &intent()).await;
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        let mut hasty = intent();
        hasty.terms.wait = wait;
        let start = tokio::time::Instant::now();
        let verdict = engine.claim(&hasty).await.unwrap();
        assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
        assert!((wait..=wait + Duration::from_millis(5)).contains(&start.elapsed()));
    }
    // One more duplicate, which gives up by disconnecting.
    let gone = tokio::time::timeout(Duration::from_millis(20), engine.attend(&intent())).await;
    assert!(gone.is_err());
    assert_eq!(store.calls(Op::Settle), 0);
    complete(running, "mine").await;
    assert_eq!(engine.tally().get(Count::InFlight), 2);
}

#[tokio::test]
async fn a_refusal_serves_all_who_wait_and_the_next_one_runs() {
    let engine = Engine::new(Scripted::new());
    let running = run(&engine, &intent()).await;
    let tasks = waiters(&engine, 20).await;
    let answer = Outcome::new(429, "slow down");
    let _ = running.release(Some(answer)).await.unwrap();
    for task in tasks {
        assert_eq!(body(task.await.unwrap()), "refused 429");
    }
    assert_eq!(engine.tally().get(Count::Refused), 20);
    complete(run(&engine, &intent()).await, "").await;
}

#[tokio::test]
async fn a_release_without_an_answer_gives_the_turn_to_exactly_one() {
    let engine = Engine::new(Scripted::new());
    let running = run(&engine, &intent()).await;
    let tasks = waiters(&engine, 20).await;
    let _ = running.release(None).await.unwrap();
    until(|| engine.tally().waiting_now() == 19).await;
    let mut turns: Vec<Guard> = Vec::new();
    let mut waiting = Vec::new();
    for task in tasks {
        match task.is_finished() {
            false => waiting.push(task),
            true => match task.await.unwrap() {
                ClaimReply::Verdict(Verdict::Granted(guard)) => turns.push(guard),
                other => panic!("{other:?}"),
            },
        }
    }
    assert_eq!((turns.len(), waiting.len()), (1, 19));
    let second = turns.remove(0).start();
    complete(second, "second").await;
    for task in waiting {
        assert_eq!(body(task.await.unwrap()), "second");
    }
}

#[tokio::test(start_paused = true)]
async fn claiming_again_behind_refusals_does_not_stretch_the_wait() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let first = run(&engine, &intent()).await;
    let start = tokio::time::Instant::now();
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move { engine.claim(&intent()).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(20)).await;
    // The next holder is faster than the waiter: it claims immediately.
    let answer = Outcome::new(429, "");
    let _ = first.release(Some(answer)).await.unwrap();
    let _second = run(&engine, &intent()).await;
    let verdict = waiter.await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
    assert!(
        start.elapsed() <= Duration::from_secs(31),
        "waited a second time"
    );
}

#[tokio::test]
async fn unknown_outcome_wakes_waiters() {
    let engine = Engine::new(Scripted::new());
    let mut running = run(&engine, &intent()).await;
    let tasks = waiters(&engine, 5).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    for task in tasks {
        let turn = task.await.unwrap();
        let ClaimReply::Verdict(Verdict::Indeterminate(doubt)) = turn else {
            panic!("{turn:?}");
        };
        assert_eq!(doubt.reason, Reason::Timeout);
    }
    // The outcome arrives late, and all later duplicates get it.
    complete(running, "late").await;
    assert_eq!(body(engine.attend(&intent()).await.unwrap()), "late");
}

/// The store responds "in flight"; before that response arrives, the key is released and claimed for another request
/// or by another caller. The outcome of that one must not go to this caller.
#[tokio::test(start_paused = true)]
async fn waiters_get_only_the_outcome_of_their_own_request() {
    type Change = fn(&mut Intent);
    let others: [(Change, Change); 2] = [
        (
            |it| it.fingerprint = Fingerprint([9; 16]),
            |it| it.fingerprint = Fingerprint([1; 16]),
        ),
        (
            |it| it.credential = Some(Credential([9; 8])),
            |it| it.credential = Some(Credential([1; 8])),
        ),
    ];
    for (theirs, ours) in others {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        let (mut own, mut other) = (intent(), intent());
        theirs(&mut other);
        ours(&mut own);
        let first = run(&engine, &own).await;
        store.set(Op::Claim, 1, Fault::AnswersLate(Duration::from_millis(100)));
        let asker = tokio::spawn({
            let engine = engine.clone();
            async move { engine.attend(&own).await.unwrap() }
        });
        until(|| store.calls(Op::Claim) == 2).await;
        let _ = first.release(None).await.unwrap();
        let second = run(&engine, &other).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        complete(second, "theirs").await;
        let turn = asker.await.unwrap();
        assert!(
            matches!(
                turn,
                ClaimReply::Verdict(Verdict::Mismatch | Verdict::OtherCredential)
            ),
            "{turn:?}"
        );
    }
}
