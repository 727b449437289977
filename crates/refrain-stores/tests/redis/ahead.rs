//! Outcomes are written before the call that completes the records, in the same transaction. For every result of that
//! call, no record may point to a missing or foreign outcome, and no unused outcome may stay.

use std::time::Duration;

use refrain::{Fence, Outcome, Settled, Settlement, Store, record::Erased};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::servers::PrivateRedis;

use crate::support::{Prefix, ask, claim, complete, completion, granted, id, replayed, words};

async fn server() -> (PrivateRedis, Prefix, Redis) {
    server_with("everysec").await
}

async fn server_with(sync: &str) -> (PrivateRedis, Prefix, Redis) {
    let server = PrivateRedis::start_with(&[("appendfsync", sync)]).unwrap();
    let prefix = Prefix::on(&server.url());
    let store = prefix.open(Options::default()).await.unwrap();
    (server, prefix, store)
}

/// Number of commands of this name that the server has run.
fn calls(url: &str, name: &str) -> u64 {
    let info: String = ask(url, &words("INFO commandstats"));
    let start = format!("cmdstat_{name}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn an_outcome_goes_ahead_and_lies_where_the_record_points() {
    for sync in ["everysec", "always"] {
        lies_where_the_record_points(sync).await;
    }
}

async fn lies_where_the_record_points(sync: &str) {
    let (server, prefix, store) = server_with(sync).await;
    let before = calls(&server.url(), "psetex");
    complete(&store, 1, "done").await;
    assert_eq!(calls(&server.url(), "psetex"), before + 1);
    let record: Vec<u8> = ask(
        &server.url(),
        &words(&format!("GET {}", prefix.key(id(1), ""))),
    );
    let place = String::from_utf8(record[124..132].to_vec()).unwrap();
    assert_eq!(
        prefix.outcome_key(id(1)),
        prefix.key(id(1), &format!("o{place}"))
    );
    assert_eq!(replayed(&store, 1).await, "done");
}

#[tokio::test]
async fn unused_prewritten_outcome_is_deleted() {
    let (_server, prefix, store) = server().await;
    let fence = granted(&store, &claim(1)).await.fence;
    let stale = Fence {
        nonce: fence.nonce ^ 1,
        ..fence
    };
    let settle = async |fence, body| store.settle(id(1), fence, completion(body)).await.unwrap();
    assert_eq!(settle(stale, "another's").await, Settled::Fenced);
    assert_eq!(prefix.outcome_keys(id(1)), [""; 0]);
    assert_eq!(settle(fence, "first").await, Settled::Applied);
    let key = prefix.outcome_key(id(1));
    // A completed outcome never changes, and neither does its key.
    assert_eq!(settle(fence, "second").await, Settled::Applied);
    assert_eq!(settle(stale, "another's").await, Settled::Fenced);
    assert_eq!(prefix.outcome_key(id(1)), key);
    assert_eq!(replayed(&store, 1).await, "first");
    assert_eq!(store.erase(id(1)).await.unwrap(), Erased::Gone);
    assert_eq!(prefix.outcome_keys(id(1)), [""; 0]);
}

/// A server that is out of memory rejects `SET`: the outcome is then sent as an argument of the script.
#[tokio::test]
async fn outcome_rejected_ahead_is_sent_with_the_call() {
    let (server, prefix, store) = server().await;
    let fences = [
        granted(&store, &claim(1)).await.fence,
        granted(&store, &claim(2)).await.fence,
    ];
    let _: redis::Value = ask(&server.url(), &words("CONFIG SET maxmemory 1"));
    let (one, two) = tokio::join!(
        store.settle(id(1), fences[0], completion("one")),
        store.settle(id(2), fences[1], completion("two")),
    );
    assert_eq!([one.unwrap(), two.unwrap()], [Settled::Applied; 2]);
    assert_eq!(replayed(&store, 1).await, "one");
    assert_eq!(replayed(&store, 2).await, "two");
    assert_eq!(prefix.outcome_keys(id(1)).len(), 1);
}

/// A server rejects an expiry that is too far in the future, without undoing the rest of the transaction. A record must
/// not be completed without its outcome.
#[tokio::test]
async fn an_outcome_that_is_kept_for_ever_is_there() {
    let (_server, _prefix, store) = server().await;
    let fence = granted(&store, &claim(1)).await.fence;
    let end = Settlement::Complete {
        outcome: Outcome::new(200, "done"),
        retention: Duration::MAX,
        remember: Duration::MAX,
    };
    let settled = store.settle(id(1), fence, end).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
    assert_eq!(replayed(&store, 1).await, "done");
}

/// The script of a transaction is missing on the server: it is loaded, and everything runs once.
#[tokio::test]
async fn a_script_that_was_forgotten_is_loaded_within() {
    let (server, prefix, store) = server().await;
    let fence = granted(&store, &claim(1)).await.fence;
    let _: redis::Value = ask(&server.url(), &words("SCRIPT FLUSH"));
    let settled = store.settle(id(1), fence, completion("done")).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
    assert_eq!(replayed(&store, 1).await, "done");
    assert_eq!(prefix.outcome_keys(id(1)).len(), 1);
}

/// An outcome to which no record points has no effect.
#[tokio::test]
async fn an_outcome_that_no_call_followed_means_nothing() {
    let (server, prefix, store) = server().await;
    let fence = granted(&store, &claim(1)).await.fence;
    let orphan = prefix.key(id(1), "oABCDEFGH");
    let _: redis::Value = ask(
        &server.url(),
        &words(&format!("PSETEX {orphan} 60000 Rorphan")),
    );
    let settled = store.settle(id(1), fence, completion("done")).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
    assert_eq!(replayed(&store, 1).await, "done");
    assert_eq!(store.census().await.unwrap().unreadable, 0);
}
