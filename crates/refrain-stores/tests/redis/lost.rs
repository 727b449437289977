//! The server is flushed, or restarts without its data. Running nodes noticed the loss, but a node that started later
//! found an empty server, and every key was new to it.

use refrain::{ErrorKind, RecordId, Store};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::{servers::PrivateRedis, wait::until};

use crate::support::{Prefix, ask, claim, complete, granted, id, replayed, verdict, words};

/// Number of processes that have the store open, as the server sees it.
fn listening(server: &PrivateRedis) -> u64 {
    let (_, count): (String, u64) = ask(&server.url(), &words("PUBSUB NUMSUB refrain:store"));
    count
}

pub(crate) async fn check_refused(address: &str, what: &str) {
    let error = match Redis::open(address).await {
        Ok(store) => panic!("{store:?} opened: {what}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    for words in [what, "has lost", "?accept_lost_records=true"] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
}

fn accepting(server: &PrivateRedis) -> String {
    format!("{}/?accept_lost_records=true", server.url())
}

#[tokio::test]
async fn reading_tells_a_lost_store_from_an_absent_record() {
    let server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    assert_eq!(store.read(RecordId::default()).await.unwrap(), None);
    server.flush().unwrap();
    for _ in 0..2 {
        let error = store.read(RecordId::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("has lost"), "{error}");
    }
}

#[tokio::test]
async fn volatile_server_is_readable_after_its_loss_is_reported() {
    let server = PrivateRedis::start_with(&[("appendonly", "no")]).unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 2, "done").await;
    server.flush().unwrap();
    let error = store.read(RecordId::default()).await.unwrap_err();
    assert!(error.to_string().contains("has lost"), "{error}");
    assert_eq!(store.read(RecordId::default()).await.unwrap(), None);
    granted(&store, &claim(1)).await;
}

#[tokio::test]
async fn a_node_does_not_start_on_a_flushed_server_while_another_runs() {
    let server = PrivateRedis::start().unwrap();
    let running = Redis::open(&server.url()).await.unwrap();
    complete(&running, 1, "done").await;
    until("the node is seen", async || listening(&server) == 1).await;
    server.flush().unwrap();
    // The running node is idle, and has not noticed.
    check_refused(&server.url(), "running processes").await;
    let error = verdict(&running, &claim(1)).await.unwrap_err();
    assert!(error.to_string().contains("has lost"), "{error}");
    drop(running);
    until("the node is gone", async || listening(&server) == 0).await;
    // Its note remains after it ends, until an operator accepts the loss.
    check_refused(&server.url(), "detected the loss").await;
    let reopened = Redis::open(&accepting(&server)).await.unwrap();
    complete(&reopened, 1, "again").await;
    drop(reopened);
    assert_eq!(
        replayed(&Redis::open(&server.url()).await.unwrap(), 1).await,
        "again"
    );
}

#[tokio::test]
async fn a_node_does_not_start_on_a_server_that_came_back_empty() {
    let mut server = PrivateRedis::start().unwrap();
    let running = Redis::open(&server.url()).await.unwrap();
    complete(&running, 1, "done").await;
    server.stop().unwrap();
    let files = std::fs::read_dir(server.data_folder()).unwrap().flatten();
    for file in files.filter(|file| file.path().is_dir()) {
        std::fs::remove_dir_all(file.path()).unwrap();
    }
    server.restart().unwrap();
    // The running node gets no requests: it checks the server by itself.
    until("the node has seen the loss", async || {
        let noted: bool = ask(&server.url(), &words("EXISTS refrain:store-lost"));
        noted
    })
    .await;
    drop(running);
    check_refused(&server.url(), "detected the loss").await;
}

#[tokio::test]
async fn records_without_the_mark_are_a_loss() {
    let server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 1, "done").await;
    drop(store);
    until("the node is gone", async || listening(&server) == 0).await;
    let _: i64 = ask(&server.url(), &words("DEL refrain:store"));
    check_refused(&server.url(), &format!("record {} is still there", id(1))).await;
}

/// An empty server does not show that it had records; an operator can state it.
#[tokio::test]
async fn a_node_that_expects_records_does_not_start_without_them() {
    let server = PrivateRedis::start().unwrap();
    let expecting = format!("{}/?expect_records=true", server.url());
    check_refused(&expecting, "expect_records=true").await;
    let first = Redis::open(&server.url()).await.unwrap();
    complete(&first, 1, "done").await;
    drop(first);
    assert_eq!(
        replayed(&Redis::open(&expecting).await.unwrap(), 1).await,
        "done"
    );
    until("the nodes are gone", async || listening(&server) == 0).await;
    server.flush().unwrap();
    check_refused(&expecting, "expect_records=true").await;
    // Without that setting, and without other evidence, it is a new server.
    Redis::open(&server.url()).await.unwrap();
}

/// The new store has another secret, so the same key has another identity there: both stores would run it.
#[tokio::test]
async fn a_node_of_a_lost_store_grants_nothing_beside_a_new_one() {
    let server = PrivateRedis::start().unwrap();
    let old = Redis::open(&server.url()).await.unwrap();
    complete(&old, 1, "done").await;
    server.flush().unwrap();
    let new = Redis::open(&accepting(&server)).await.unwrap();
    granted(&new, &claim(1)).await;
    for error in [
        verdict(&old, &claim(2)).await.unwrap_err(),
        old.read(id(2)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error.to_string().contains("a different store than before"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_together_on_a_new_server_all_start() {
    for _ in 0..10 {
        let prefix = Prefix::new();
        let opening = (0..8).map(|_| prefix.open(Options::default()));
        let opened = futures_util::future::join_all(opening).await;
        let stores: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
        complete(&stores[0], 1, "done").await;
        for store in &stores {
            assert_eq!(replayed(store, 1).await, "done");
        }
    }
}
