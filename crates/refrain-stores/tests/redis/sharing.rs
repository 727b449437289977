//! Many processes, one store. They share no clock and no memory, and do not know each other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use refrain::{Engine, Intent, Key, Outcome, Scope, Store, Verdict};
use refrain_stores::redis::Options;
use refrain_testkit::wait;
use tokio::time::Instant;

use crate::support::{Prefix, claim, complete, granted, id, replayed, verdicts};

fn intent(key: &str, wait: Duration) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    intent.terms.wait = wait;
    intent
}

#[tokio::test]
async fn outcome_stored_by_one_handle_is_replayed_by_another() {
    let prefix = Prefix::new();
    let one = prefix.open(Options::default()).await.unwrap();
    let two = prefix.open(Options::default()).await.unwrap();
    assert_eq!(one.secret().as_bytes(), two.secret().as_bytes());
    complete(&one, 1, "done").await;
    assert_eq!(replayed(&two, 1).await, "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_duplicates_on_two_nodes_one_runs_and_all_get_its_outcome() {
    let prefix = Prefix::new();
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(Engine::new(prefix.open(Options::default()).await.unwrap()));
    }
    let effects = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..100 {
        let (engine, effects) = (engines[number % 2].clone(), effects.clone());
        tasks.push(tokio::spawn(async move {
            let intent = intent("order-7", wait::PATIENCE);
            let run = engine.run(&intent, async |_| {
                effects.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                Outcome::new(201, format!("by {number}"))
            });
            match run.await.unwrap() {
                Verdict::Granted(outcome) | Verdict::Replay(outcome) => outcome.body(),
                other => panic!("{other:?}"),
            }
        }));
    }
    let mut bodies = Vec::new();
    for task in tasks {
        bodies.push(task.await.unwrap());
    }
    assert_eq!(effects.load(Ordering::SeqCst), 1);
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
}

/// A polling waiter would poll again a second after its last poll.
///
/// On a busy machine everything takes longer, so one of many tries has to be notified in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_on_another_node_is_woken() {
    let prefix = Prefix::new();
    let one = Engine::new(prefix.open(Options::default()).await.unwrap());
    let two = Engine::new(prefix.open(Options::default()).await.unwrap());
    let mut round = 0;
    wait::until("who waits is woken", async || {
        round += 1;
        let intent = intent(&format!("order-{round}"), wait::PATIENCE);
        let Verdict::Granted(guard) = one.claim(&intent).await.unwrap() else {
            panic!("a new key is granted");
        };
        let running = guard.start();
        let (there, theirs) = (two.clone(), intent.clone());
        let waiting = tokio::spawn(async move {
            let verdict = there.claim(&theirs).await.unwrap();
            (Instant::now(), verdict)
        });
        let is_waiting = async || two.tally().waiting_now() == 1;
        wait::until("the other waits", is_waiting).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        let settled = Instant::now();
        let _ = running.complete(Outcome::new(200, "done")).await.unwrap();
        let (woken, verdict) = waiting.await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
        woken - settled < Duration::from_millis(300)
    })
    .await;
}

#[tokio::test]
async fn many_concurrent_claims_get_their_own_verdicts() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    complete(&store, 700, "done").await;
    granted(&store, &claim(701)).await;
    let claims: Vec<_> = (0..1_200).map(claim).collect();
    for (number, verdict) in (0..).zip(verdicts(&store, &claims).await) {
        let fits = match (number, verdict.unwrap()) {
            (700, verdict) => matches!(verdict, Verdict::Replay(_)),
            (701, verdict) => matches!(verdict, Verdict::InFlight { .. }),
            (_, verdict) => matches!(verdict, Verdict::Granted(_)),
        };
        assert!(fits, "{number}");
    }
    assert!(store.read(id(1_199)).await.unwrap().is_some());
}
