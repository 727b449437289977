//! The database server is killed with kill -9 under load and restarted: acknowledged claims and completions must still
//! exist, and unacknowledged ones must not belong to another caller.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use refrain::{ErrorKind, Fence, Outcome, Settled, Settlement, Store as _, Verdict};
use refrain_stores::postgres::Postgres;
use refrain_testkit::wait;

use crate::{
    server::{Server, Setup},
    support::{claim, id},
};

const CRASHES: usize = 2;
const TASKS: u64 = 8;
/// Number of claims granted before each crash, and after the last one.
const GRANTS: u64 = 60;

/// State shared by all callers.
#[derive(Default)]
struct Load {
    numbers: AtomicU64,
    granted: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// Waits until `GRANTS` more claims were granted.
    async fn goes_on(&self) {
        let enough = self.granted.load(Ordering::SeqCst) + GRANTS;
        let is_enough = async || self.granted.load(Ordering::SeqCst) >= enough;
        wait::until("claims are granted", is_enough).await;
    }
}

/// Responses that one caller got.
#[derive(Default)]
struct Book {
    granted: Vec<(u64, Fence)>,
    completed: Vec<u64>,
}

fn body(number: u64) -> String {
    format!("outcome {number}")
}

/// Claims one record after the other, and completes every second one.
async fn work(store: &Postgres, load: &Load) -> Book {
    let mut book = Book::default();
    while !load.is_over.load(Ordering::SeqCst) {
        // Frequent enough that a crash interrupts a call; few enough to read all records at the end.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let number = load.numbers.fetch_add(1, Ordering::SeqCst);
        let grant = match store.claim(claim(number)).await {
            Ok(Verdict::Granted(grant)) => grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        book.granted.push((number, grant.fence));
        load.granted.fetch_add(1, Ordering::SeqCst);
        if number.is_multiple_of(2) {
            continue;
        }
        let end = Settlement::Complete {
            outcome: Outcome::new(200, body(number)),
            retention: Duration::from_secs(3_600),
            remember: Duration::ZERO,
        };
        match store.settle(id(number), grant.fence, end).await {
            Ok(settled) => {
                assert_eq!(settled, Settled::Applied);
                book.completed.push(number);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
    book
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9_of_the_server() {
    let mut server = Server::start(Setup::default()).await;
    let store = Arc::new(Postgres::open(&server.url("refrain", "")).await.unwrap());
    let load = Arc::<Load>::default();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (store, load) = (store.clone(), load.clone());
            tokio::spawn(async move { work(&store, &load).await })
        })
        .collect();
    for _ in 0..CRASHES {
        load.goes_on().await;
        server.crash();
        server.restart().await;
    }
    load.goes_on().await;
    load.is_over.store(true, Ordering::SeqCst);
    let (mut granted, mut completed) = (0, 0);
    let other = Postgres::open(&server.url("refrain", "")).await.unwrap();
    for task in tasks {
        let book = task.await.unwrap();
        for (number, fence) in &book.granted {
            granted += 1;
            let reading = other.read(id(*number)).await.unwrap();
            let reading = reading.unwrap_or_else(|| panic!("claim {number} is lost"));
            assert_eq!(reading.record.fence(), Some(*fence), "claim {number}");
        }
        for number in &book.completed {
            completed += 1;
            match other.claim(claim(*number)).await.unwrap() {
                Verdict::Replay(outcome) => {
                    assert_eq!(&outcome.body()[..], body(*number).as_bytes());
                }
                verdict => panic!("outcome {number} is lost: {verdict:?}"),
            }
        }
    }
    assert!(
        granted > 100 && completed > 50,
        "{granted} claims and {completed} completions are too few for a valid test"
    );
}
