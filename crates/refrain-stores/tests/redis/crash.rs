//! The server crashes under load, hangs, or restarts without its records.
//! Acknowledged writes must exist, and a server that lost its records must not make every key new.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use refrain::{ErrorKind, Fence, Store, record::State};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::{servers::PrivateRedis, wait};

use crate::support::{
    ask, claim, complete, completion, granted, id, replayed, verdict, verdicts, words,
};

/// Acknowledged claims and completions.
#[derive(Default)]
struct Book {
    claimed: Vec<(u64, Fence)>,
    completed: Vec<u64>,
}

fn body(number: u64) -> String {
    format!("the outcome of {number}, {}", "x".repeat(200))
}

async fn work(store: Redis, book: Arc<Mutex<Book>>, next: Arc<AtomicU64>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let fence = match verdict(&store, &claim(number)).await {
            Ok(refrain::Verdict::Granted(grant)) => grant.fence,
            Ok(other) => panic!("a new key was answered with {other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        book.lock().unwrap().claimed.push((number, fence));
        let end = completion(&body(number));
        if store.settle(id(number), fence, end).await.is_ok() {
            book.lock().unwrap().completed.push(number);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_death_of_the_server() {
    let mut server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    assert!(store.guarantees().survives_power);
    let (book, next) = (Arc::<Mutex<Book>>::default(), Arc::<AtomicU64>::default());
    let over = Arc::<AtomicBool>::default();
    let spawn = || {
        tokio::spawn(work(
            store.clone(),
            book.clone(),
            next.clone(),
            over.clone(),
        ))
    };
    let workers: Vec<_> = (0..16).map(|_| spawn()).collect();
    let goes_on = async || {
        let completed = || book.lock().unwrap().completed.len();
        let enough = completed() + 50;
        wait::until("claims are completed", async || completed() >= enough).await;
    };
    for _ in 0..3 {
        goes_on().await;
        server.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        server.restart().unwrap();
    }
    goes_on().await;
    over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let book = std::mem::take(&mut *book.lock().unwrap());
    assert!(
        book.completed.len() > 100,
        "{} completed",
        book.completed.len()
    );
    for number in &book.completed {
        assert_eq!(replayed(&store, *number).await, body(*number));
    }
    for (number, fence) in &book.claimed {
        let record = store.read(id(*number)).await.unwrap();
        let record = record.expect("a granted claim was lost").record;
        assert_eq!(record.fence(), Some(*fence), "{number}");
        let completed = matches!(record.state, State::Completed { .. });
        assert!(completed || !book.completed.contains(number));
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_in_time_and_taken_back_when_it_answers() {
    let server = PrivateRedis::start().unwrap();
    let mut options = Options::default();
    options.connect_timeout = Duration::from_secs(2);
    let store = Redis::open_with(&server.url(), options).await.unwrap();
    complete(&store, 1, "done").await;
    server.pause().unwrap();
    // Each call fails while the server hangs.
    for number in 2..4 {
        let error = verdict(&store, &claim(number)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    server.resume().unwrap();
    wait::until("it answers again", async || {
        verdict(&store, &claim(9)).await.is_ok()
    })
    .await;
    assert_eq!(replayed(&store, 1).await, "done");
}

async fn reached_again(store: &Redis) {
    wait::until("the server is reached again", async || {
        store.read(id(77)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_server_that_promised_to_keep_everything_and_forgot_grants_nothing() {
    let mut server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 1, "done").await;
    // During a connection, and across a restart.
    let _: redis::Value = ask(&server.url(), &words("FLUSHALL"));
    let error = verdict(&store, &claim(1)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("completed requests would execute again"),
        "{error}"
    );
    let claims = [claim(1), claim(2)];
    for verdict in verdicts(&store, &claims).await {
        assert_eq!(verdict.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    server.restart().unwrap();
    let error = verdict(&store, &claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn volatile_server_is_used_again_after_losing_its_records() {
    let mut server = PrivateRedis::start_with(&[("appendonly", "no")]).unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 1, "done").await;
    server.kill().unwrap();
    server.restart().unwrap();
    reached_again(&store).await;
    granted(&store, &claim(1)).await;
    let _: redis::Value = ask(&server.url(), &words("FLUSHALL"));
    granted(&store, &claim(1)).await;
    let claims = [claim(2), claim(3)];
    let _: redis::Value = ask(&server.url(), &words("FLUSHALL"));
    for verdict in verdicts(&store, &claims).await {
        assert!(matches!(verdict.unwrap(), refrain::Verdict::Granted(_)));
    }
}

#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_loaded_again() {
    let server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    for number in 0..3 {
        let _: redis::Value = ask(&server.url(), &words("SCRIPT FLUSH"));
        complete(&store, number, "done").await;
    }
    let _: redis::Value = ask(&server.url(), &words("SCRIPT FLUSH"));
    let claims: Vec<_> = (10..20).map(claim).collect();
    for verdict in verdicts(&store, &claims).await {
        assert!(matches!(verdict.unwrap(), refrain::Verdict::Granted(_)));
    }
}

#[tokio::test]
async fn a_server_that_evicts_since_its_restart_is_no_longer_used() {
    let mut server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 1, "done").await;
    server
        .restart_with(&[("maxmemory-policy", "allkeys-lru")])
        .unwrap();
    wait::until("it is told why", async || {
        let error = verdict(&store, &claim(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("noeviction")
    })
    .await;
}
