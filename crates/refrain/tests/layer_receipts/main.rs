//! Exactly-once behind the layer: an operation commits its effect and its receipt together, and its response gets
//! lost in every possible way. A committed attempt is answered from its receipt, an uncommitted one is executed
//! again, and a missing receipt never leads to a second effect.

use std::{sync::atomic::Ordering, time::Duration};

use refrain::{
    engine::Count,
    receipts::{Receipt, Standing},
    store::StateName,
};
use tokio::time::sleep;

#[path = "../support/scripted.rs"]
mod scripted;
mod shop;
mod standing;

use scripted::{states, until};
use shop::{SECOND, Shop, receipt};

#[tokio::test(start_paused = true)]
async fn the_operation_is_told_record_and_fence_and_nobody_can_make_them_up() {
    let shop = Shop::new();
    let lie = [("refrain-record", "mine"), ("refrain-fence", "9.9.9")];
    shop.send("/pay", "k", "commit", &lie).await;
    shop.send("/other", "k", "200", &lie).await;
    let heads = shop.heads.lock().unwrap().clone();
    let (record, fence) = (&heads[0]["refrain-record"], &heads[0]["refrain-fence"]);
    assert_eq!(heads[0].get_all("refrain-record").iter().count(), 1);
    let record = record.to_str().unwrap();
    assert!(record.len() == 32 && record.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let fence = fence.to_str().unwrap();
    assert_eq!(fence.parse::<refrain::Fence>().unwrap().to_string(), fence);
    for name in ["refrain-record", "refrain-fence"] {
        assert!(
            !heads[1].contains_key(name),
            "{name} of an unguarded request"
        );
    }
}

/// A committed effect is the outcome, however its response was lost; the first caller and every retry get it.
#[tokio::test(start_paused = true)]
async fn a_receipt_is_the_outcome() {
    // Also before any receipt was seen: a receipt that exists counts.
    for shop in [Shop::new(), Shop::proven().await] {
        let before = shop.calls();
        let cases = ["commit-lost", "commit-hang", "commit-500", "commit-409"];
        for (key, what) in cases.map(|what| (format!("k-{what}"), what)) {
            let first = shop.pay(&key, what).await;
            assert_eq!((first.status, first.is_replay), (201, false), "{what}");
            assert!(first.body.starts_with(b"paid "), "{what}");
            let retry = shop.pay(&key, "commit").await;
            assert_eq!((retry.status, retry.is_replay), (201, true), "{what}");
            assert_eq!(shop.database.effects_of(&key), 1, "{what}");
        }
        assert_eq!(shop.calls() - before, cases.len());
        assert_eq!(shop.standing(), Standing::Proven);
    }
}

/// An attempt that did not commit is executed again under the next fence, as soon as a retry comes.
#[tokio::test(start_paused = true)]
async fn without_a_receipt_a_retry_runs() {
    let shop = Shop::proven().await;
    for what in ["lost", "hang", "500", "503"] {
        let first = shop.pay(what, what).await;
        match what {
            "lost" => first.check_problem(502, "outcome-unknown", "wait"),
            "hang" => first.check_problem(504, "outcome-unknown", "wait"),
            _ => assert_eq!(
                (first.status, &first.body[..]),
                (what.parse().unwrap(), &b"refused"[..])
            ),
        }
        let retry = shop.pay(what, "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, false), "{what}");
        assert_eq!(shop.attempt(), "2", "{what}");
        assert!(shop.pay(what, "commit").await.is_replay, "{what}");
        assert_eq!(shop.database.effects_of(what), 1, "{what}");
    }
}

/// Rejections of a first attempt count as under at-most-once.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_only_attempt_counts() {
    let shop = Shop::proven().await;
    for (what, is_kept) in [("422", true), ("404", true), ("429", false), ("401", false)] {
        let status: u16 = what.parse().unwrap();
        assert_eq!(shop.pay(what, what).await.status, status);
        let retry = shop.pay(what, "commit").await;
        let expected = if is_kept {
            (status, true)
        } else {
            (201, false)
        };
        assert_eq!((retry.status, retry.is_replay), expected, "{what}");
    }
}

/// Rejections of a later attempt do not: the attempt before it may still commit.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_later_attempt_is_not_final() {
    let shop = Shop::proven().await;
    for what in ["422", "429", "unsent", "500"] {
        shop.pay(what, "lost").await;
        let second = shop.pay(what, what).await;
        assert!(!second.is_replay, "{what}");
        let third = shop.pay(what, "commit").await;
        assert_eq!((third.status, third.is_replay), (201, false), "{what}");
        let other = shop.send("/pay?other", what, "commit", &[]).await;
        other.check_problem(422, "key-reused", "new-key");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_were_sent_are_limited_and_others_are_not_counted() {
    let shop = Shop::proven().await;
    shop.pay("k", "lost").await;
    for _ in 0..20 {
        let unsent = shop.pay("k", "unsent").await;
        unsent.check_problem(502, "upstream-unreachable", "reuse-key");
        assert_eq!(shop.attempt(), "2");
    }
    for attempt in 2..=10 {
        let lost = shop.pay("k", "lost").await;
        lost.check_problem(502, "outcome-unknown", "wait");
        assert_eq!(shop.attempt(), attempt.to_string());
    }
    let calls = shop.calls();
    let used_up = shop.pay("k", "commit").await;
    used_up.check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.calls(), calls);
}

/// The first attempt times out and commits anyway: the second one's receipt collides, and both responses are those of
/// the first.
#[tokio::test(start_paused = true)]
async fn of_two_attempts_one_commits() {
    let shop = Shop::proven().await;
    let slow = shop.pay("k", "wait").await;
    slow.check_problem(504, "outcome-unknown", "wait");
    let second = {
        let shop = shop.clone();
        tokio::spawn(async move { shop.pay("k", "wait").await })
    };
    until(|| shop.calls() == 3).await;
    // Both continue, the older one first.
    shop.gate.add_permits(2);
    let second = second.await.unwrap();
    assert_eq!(
        (second.status, second.is_replay),
        (201, false),
        "{second:?}"
    );
    let replay = shop.pay("k", "commit").await;
    assert_eq!((replay.is_replay, replay.body), (true, second.body));
    assert_eq!(shop.database.effects_of("k"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_receipt_is_reported_and_is_never_a_second_effect() {
    let shop = Shop::proven().await;
    // Sent while receipts were still proven.
    shop.pay("earlier", "lost").await;
    assert_eq!(shop.pay("k", "forget").await.status, 201);
    shop.until_standing(Standing::Missing).await;
    assert_eq!(shop.engine.tally().get(Count::ReceiptsMissing), 1);
    assert_eq!(shop.layer.witnesses().next().unwrap().missing(), 1);
    assert!(shop.pay("k", "forget").await.is_replay);
    shop.pay("lost", "forget-lost")
        .await
        .check_problem(502, "outcome-unknown", "ask");
    for key in ["lost", "earlier"] {
        sleep(SECOND * 60).await;
        shop.pay(key, "forget")
            .await
            .check_problem(409, "outcome-unknown", "ask");
    }
    // Receipts are written again: requests sent in between stay indeterminate, those sent before run.
    shop.pay("other", "commit").await;
    shop.until_standing(Standing::Proven).await;
    shop.pay("lost", "commit")
        .await
        .check_problem(409, "outcome-unknown", "ask");
    assert_eq!(shop.pay("earlier", "commit").await.status, 201);
    for key in ["k", "lost", "earlier"] {
        assert_eq!(shop.database.effects_of(key), 1, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_receipts_cannot_be_read_nothing_is_decided() {
    let shop = Shop::proven().await;
    shop.pay("not", "lost").await;
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("done", "commit-lost")
        .await
        .check_problem(502, "outcome-unknown", "wait");
    shop.pay("told", "commit-500")
        .await
        .check_problem(503, "outcome-unknown", "wait");
    let calls = shop.calls();
    for key in ["not", "done", "told"] {
        shop.pay(key, "commit")
            .await
            .check_problem(503, "store-unavailable", "reuse-key");
    }
    assert_eq!(shop.calls(), calls);
    shop.database.is_down.store(false, Ordering::SeqCst);
    for (key, is_replay) in [("not", false), ("done", true), ("told", true)] {
        let retry = shop.pay(key, "commit").await;
        assert_eq!((retry.status, retry.is_replay), (201, is_replay), "{key}");
        assert_eq!(shop.database.effects_of(key), 1, "{key}");
    }
}

/// Without a retry, the receipt is found in the background.
#[tokio::test(start_paused = true)]
async fn a_receipt_settles_without_a_retry() {
    let shop = Shop::proven().await;
    shop.database.is_down.store(true, Ordering::SeqCst);
    shop.pay("k", "commit-lost").await;
    shop.pay("never", "lost").await;
    sleep(SECOND * 10).await;
    shop.database.is_down.store(false, Ordering::SeqCst);
    sleep(SECOND * 30).await;
    let mut states = states(shop.engine.store()).await;
    states.sort_by_key(|state| *state as u8);
    let expected = [
        StateName::Completed,
        StateName::Completed,
        StateName::Indeterminate,
    ];
    assert_eq!(states, expected);
    assert_eq!(shop.engine.tally().get(Count::Resolved), 1);
}

/// A success that could not be verified is verified once receipts are readable again.
#[tokio::test(start_paused = true)]
async fn a_success_is_checked_when_it_can_be() {
    let shop = Shop::new();
    shop.database.is_down.store(true, Ordering::SeqCst);
    assert_eq!(shop.pay("k", "commit").await.status, 201);
    sleep(SECOND * 5).await;
    assert_eq!(shop.standing(), Standing::Unproven);
    shop.database.is_down.store(false, Ordering::SeqCst);
    sleep(SECOND * 20).await;
    assert_eq!(shop.standing(), Standing::Proven);
}

/// A receipt that is much older than its key belongs to another request; it blocks this one, and the operator gets a
/// warning.
#[tokio::test(start_paused = true)]
async fn a_receipt_of_an_earlier_life_of_the_key_answers_nobody() {
    let shop = Shop::proven().await;
    shop.pay("k", "429").await;
    let record = shop.heads.lock().unwrap().last().unwrap()["refrain-record"].clone();
    let old = Receipt {
        age: Duration::from_secs(400 * 86_400),
        ..receipt("1.1.00000001", "paid long ago")
    };
    let record = record.to_str().unwrap().to_owned();
    shop.database.rows.lock().unwrap().insert(record, old);
    for _ in 0..2 {
        let seen = shop.pay("k", "commit").await;
        assert_eq!((seen.status, &seen.body[..]), (500, &b"collision"[..]));
    }
    assert_eq!(shop.database.effects_of("k"), 0);
}
