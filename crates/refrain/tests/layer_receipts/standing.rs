//! Whether receipts were seen is stored. If it were lost in a restart, an attempt without a receipt could be executed
//! twice.

use std::sync::atomic::Ordering;

use refrain::{ErrorKind, receipts::Standing, store::StateName};
use tokio::time::sleep;

use crate::{
    scripted::{Fault, Op, states},
    shop::{SECOND, Shop},
};

/// No receipt was ever seen: an attempt without one is released, but not before it can no longer commit.
#[tokio::test(start_paused = true)]
async fn before_the_first_receipt_a_failure_is_released_once_it_is_over() {
    for what in ["500", "503", "lost", "hang"] {
        let shop = Shop::new();
        let first = shop.pay("k", what).await;
        match what {
            "lost" => first.check_problem(502, "outcome-unknown", "wait"),
            "hang" => first.check_problem(504, "outcome-unknown", "wait"),
            _ => assert_eq!(
                (first.status, &first.body[..]),
                (what.parse().unwrap(), &b"refused"[..])
            ),
        }
        let retry = shop.pay("k", "commit").await;
        retry.check_problem(409, "outcome-unknown", "wait");
        assert_eq!(shop.calls(), 1, "{what}");
        sleep(SECOND * 8).await;
        let retry = shop.pay("k", "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, false), "{what}");
        assert_eq!(shop.attempt(), "1", "{what}");
        assert!(shop.pay("k", "commit").await.is_replay, "{what}");
        assert_eq!(shop.database.effects_of("k"), 1, "{what}");
    }
}

/// That needs no retry.
#[tokio::test(start_paused = true)]
async fn before_the_first_receipt_a_failure_is_released_without_a_retry() {
    let shop = Shop::new();
    assert_eq!(shop.pay("k", "500").await.status, 500);
    assert_eq!(states(&shop.store).await, [StateName::Indeterminate]);
    sleep(SECOND * 60).await;
    assert_eq!(states(&shop.store).await, []);
}

/// A receipt that appears late, but before the attempt is released, counts.
#[tokio::test(start_paused = true)]
async fn before_the_first_receipt_one_that_turns_up_is_the_outcome() {
    let shop = Shop::new();
    shop.database.is_down.store(true, Ordering::SeqCst);
    let lost = shop.pay("k", "commit-lost").await;
    lost.check_problem(502, "outcome-unknown", "wait");
    shop.database.is_down.store(false, Ordering::SeqCst);
    assert!(shop.pay("k", "commit").await.is_replay);
    assert_eq!(shop.database.effects_of("k"), 1);
}

/// The store remembers that a receipt was seen, so a restart changes nothing.
#[tokio::test(start_paused = true)]
async fn receipts_stay_proven_after_a_restart() {
    let shop = Shop::proven().await.restarted();
    for what in ["500", "lost"] {
        shop.pay(what, what).await;
        let retry = shop.pay(what, "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, false), "{what}");
        assert_eq!(shop.attempt(), "2", "{what}");
    }
    assert_eq!(shop.standing(), Standing::Proven);
    // Another process sees it as well, and the engine's own records are not listed.
    let other = shop.restarted();
    let witness = other.layer.witnesses().next().unwrap();
    other.engine.learn_standing(witness).await.unwrap();
    assert_eq!(other.standing(), Standing::Proven);
    let listed = states(other.engine.store()).await;
    assert_eq!(listed, [StateName::Completed; 3]);
}

/// The store also remembers that a receipt was missing, until one is seen again.
#[tokio::test(start_paused = true)]
async fn missing_receipts_stay_missing_after_a_restart() {
    let shop = Shop::proven().await;
    assert_eq!(shop.pay("k", "forget").await.status, 201);
    shop.until_standing(Standing::Missing).await;
    sleep(SECOND).await;
    let (shop, other) = (shop.restarted(), shop.restarted());
    assert_eq!(shop.pay("broken", "500").await.status, 500);
    assert_eq!(shop.standing(), Standing::Missing);
    assert!(shop.pay("broken", "commit").await.is_replay, "at-most-once");
    assert_eq!(other.pay("more", "500").await.status, 500);
    shop.pay("mended", "commit").await;
    shop.until_standing(Standing::Proven).await;
    // Other processes read it from the store.
    sleep(SECOND * 6).await;
    for key in ["first", "second"] {
        other.pay(key, "commit").await;
        sleep(SECOND).await;
    }
    other.until_standing(Standing::Proven).await;
    let restarted = shop.restarted();
    restarted.pay("last", "lost").await;
    assert_eq!(restarted.pay("last", "commit").await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_promised_before_the_store_says_what_it_remembers() {
    let shop = Shop::proven().await.restarted();
    shop.store
        .set(Op::Read, 1, Fault::Fails(ErrorKind::Unavailable));
    let refused = shop.pay("k", "500").await;
    refused.check_problem(503, "store-unavailable", "reuse-key");
    assert_eq!(shop.calls(), 0);
    assert_eq!(shop.pay("k", "commit").await.status, 201);
}

/// An unknown outcome from before a restart is resolved by its receipt after it, or executed again.
#[tokio::test(start_paused = true)]
async fn after_a_restart_receipts_tell_what_became_of_attempts_before_it() {
    let shop = Shop::proven().await;
    shop.pay("k", "lost").await;
    let shop = shop.restarted();
    let retry = shop.pay("k", "commit").await;
    assert_eq!((retry.status, shop.attempt().as_str()), (201, "2"));
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("lost", "commit-lost")
        .await
        .check_problem(502, "outcome-unknown", "wait");
    shop.database.is_down.store(false, Ordering::SeqCst);
    let shop = shop.restarted();
    assert!(shop.pay("lost", "commit").await.is_replay);
    assert_eq!(shop.standing(), Standing::Proven);
}

/// A client that is told to wait for receipts that cannot decide would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_look_up_says_wait_only_if_receipts_decide() {
    let unknown = |advice: &str| ("unknown".to_owned(), advice.to_owned());
    let shop = Shop::new();
    shop.pay("early", "lost").await;
    assert_eq!(shop.look_up("early").await, unknown("wait"));
    let shop = Shop::proven().await;
    shop.pay("proven", "lost").await;
    assert_eq!(shop.look_up("proven").await, unknown("wait"));
    assert_eq!(shop.pay("k", "forget").await.status, 201);
    shop.until_standing(Standing::Missing).await;
    assert_eq!(shop.look_up("proven").await, unknown("ask"));
    // Sent under at-most-once, so a missing receipt says nothing about it.
    shop.pay("missing", "lost").await;
    assert_eq!(shop.pay("other", "commit").await.status, 201);
    shop.until_standing(Standing::Proven).await;
    assert_eq!(shop.look_up("missing").await, unknown("ask"));
    assert_eq!(shop.look_up("proven").await, unknown("wait"));
}
