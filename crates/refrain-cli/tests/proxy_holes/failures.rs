//! Bugs of other implementations when the store fails.

#![cfg(target_os = "linux")]

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, prlimit};
use tokio::sync::Notify;

use crate::{
    Stand,
    proxy::Setup,
    upstream::{Act, Upstream, echo},
    wire::{ask, post},
};

/// From now on every write to a file fails, as on a full disk, also to the log. Sockets are not affected.
fn fill_disk(stand: &Stand) {
    let none = Rlimit {
        current: Some(0),
        maximum: None,
    };
    prlimit(Some(stand.proxy.pid()), Resource::Fsize, none).unwrap();
}

async fn stand(settings: &str, free: Arc<Notify>) -> Stand {
    let upstream = Upstream::start(move |arrived| match arrived.request.key() {
        "held" => [vec![Act::Wait(free.clone())], echo(arrived)].concat(),
        _ => echo(arrived),
    })
    .await;
    let setup = Setup::new(upstream.address, settings);
    let proxy = setup.start_limited();
    Stand {
        upstream,
        setup,
        proxy,
    }
}

/// Bug: the store fails, and the request is forwarded without a claim.
#[tokio::test]
async fn a_store_that_fails_refuses_and_nothing_is_sent() {
    let mut stand = stand("", Arc::default()).await;
    let kept = stand.post("before", "{}").await;
    fill_disk(&stand);
    for at in 0..5 {
        let answer = stand.post(&format!("full-{at}"), "{}").await;
        assert_eq!(answer.verdict(), "503 store-unavailable");
        assert!(answer.header("retry-after").is_some());
        assert!(answer.text().contains("reuse-key"), "{}", answer.text());
    }
    assert_eq!(stand.upstream.count(), 1);
    // With free space again, the rejected requests have left no trace.
    stand.kill_and_start();
    for at in 0..5 {
        let answer = stand.post(&format!("full-{at}"), "{}").await;
        assert_eq!((answer.status(), answer.is_replay()), (201, false));
    }
    assert_eq!(stand.post("before", "{}").await.body, kept.body);
    assert_eq!(stand.upstream.count(), 6);
}

/// Same behaviour, but chosen: with `on_store_failure = "pass"`, requests pass unguarded.
#[tokio::test]
async fn a_store_that_fails_lets_requests_pass_only_where_the_policy_says_so() {
    let stand = stand("[policy]\non_store_failure = \"pass\"\n", Arc::default()).await;
    fill_disk(&stand);
    for number in 1..=3 {
        let answer = stand.post("pass", "{}").await;
        assert_eq!((answer.status(), answer.is_replay()), (201, false));
        assert_eq!(stand.upstream.count(), number);
    }
}

/// Same bug at the end of a request: an outcome that cannot be stored is not a success, and does not run again.
#[tokio::test]
async fn an_outcome_that_cannot_be_stored_is_in_doubt_and_not_run_again() {
    let free = Arc::new(Notify::new());
    let mut stand = stand("", free.clone()).await;
    let address = stand.proxy.address;
    let first = tokio::spawn(async move { ask(address, &post("/orders", "held", b"{}")).await });
    stand.upstream.reached(1).await;
    fill_disk(&stand);
    free.notify_one();
    let first = first.await.unwrap();
    assert_eq!(first.verdict(), "503 outcome-unknown");
    stand.kill_and_start();
    let second = stand.post("held", "{}").await;
    assert_eq!(second.verdict(), "409 outcome-unknown");
    assert_eq!(stand.upstream.count(), 1);
}
