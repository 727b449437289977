//! Two nodes, one key: a duplicate that waits on the other node is notified of the settlement, and does not poll.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{Engine, Intent, Key, Outcome, Scope, Settled, Verdict, engine::ClaimReply};
use refrain_testkit::wait;

use crate::support::{Schema, connect, url};

/// Time limit for a notified waiter on an idle machine; a polling waiter asks once per second.
///
/// On a busy machine it takes longer, so one of many tries has to succeed.
const TOLD: Duration = Duration::from_millis(400);

fn intent(key: &str) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    intent.terms.wait = wait::PATIENCE;
    intent
}

/// Holds the key on one node while three callers wait on the other; returns the time from settlement to response.
async fn waited(here: &Engine, there: &Engine, key: &'static str) -> Duration {
    let Verdict::Granted(guard) = here.claim(&intent(key)).await.unwrap() else {
        panic!("not granted");
    };
    let running = guard.start();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let there = there.clone();
            tokio::spawn(async move { there.attend(&intent(key)).await.unwrap() })
        })
        .collect();
    let is_waiting = async || there.tally().waiting_now() == 3;
    wait::until("three wait", is_waiting).await;
    // All have polled twice by now, and poll again in about a second.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let settled = running.complete(Outcome::new(200, key)).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
    let ended = tokio::time::Instant::now();
    for waiter in waiters {
        match waiter.await.unwrap() {
            ClaimReply::Verdict(Verdict::Replay(outcome)) => {
                assert_eq!(&outcome.body()[..], key.as_bytes());
            }
            other => panic!("{other:?}"),
        }
    }
    ended.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_waiting_on_another_node_is_notified() {
    let schema = Schema::new();
    let (here, there) = (
        Engine::new(schema.open().await),
        Engine::new(schema.open().await),
    );
    check_told(&here, &there).await;
}

/// Retries, because listening starts only after the store is opened or its connection is restored.
async fn check_told(here: &Engine, there: &Engine) {
    wait::until("who waits is told", async || {
        let key = format!("told-{:x}", rand::random::<u32>()).leak();
        waited(here, there, key).await < TOLD
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_resumes_after_a_broken_connection() {
    let schema = Schema::new();
    let name = format!("listens{:x}", rand::random::<u32>());
    let named = format!("{}&application_name={name}", schema.url());
    let open = || async {
        refrain_stores::postgres::Postgres::open(&named)
            .await
            .unwrap()
    };
    let (here, there) = (Engine::new(open().await), Engine::new(open().await));
    check_told(&here, &there).await;
    let admin = connect(&url()).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    assert!(admin.query(end, &[&name]).await.unwrap().len() >= 2);
    check_told(&here, &there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_duplicates_on_two_nodes_are_one_effect() {
    let schema = Schema::new();
    let nodes = [
        Engine::new(schema.open().await),
        Engine::new(schema.open().await),
    ];
    let effects = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let (engine, effects) = (nodes[number % 2].clone(), effects.clone());
            tokio::spawn(async move {
                let work = async |_| {
                    effects.fetch_add(1, Ordering::SeqCst);
                    // The other node's mark that it waits is committed by then, so that the completion does not wait
                    // long for its lock.
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    Outcome::new(201, "once")
                };
                match engine.run(&intent("hundred"), work).await.unwrap() {
                    Verdict::Granted(outcome) | Verdict::Replay(outcome) => {
                        assert_eq!(&outcome.body()[..], b"once");
                    }
                    other => panic!("{other:?}"),
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}
