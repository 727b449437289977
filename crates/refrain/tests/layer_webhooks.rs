//! A sender of webhooks delivers until it gets 2xx, and disables an endpoint that responds with anything else for
//! long. Attackers send to the same address without the secret. Duplicates get 2xx at once if the first delivery
//! succeeded, and never otherwise; a forged delivery creates no record.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, Guarantee, Operation, Policy,
    clock::{Clock as _, SystemClock},
    engine::Count,
    key::Sender,
    policy::{Duplicates, Mode, Signature},
    store::{Memory, StateName},
};
use refrain_testkit::{ManualClock, webhook::signed};

#[path = "support/shop.rs"]
#[allow(dead_code, reason = "no test file needs all of it")]
mod shop;
use shop::{Seen, Shop, shop, shop_on};

const SECRET: &str = "whsec_dGhpcyBpcyBhIHNlY3JldA==";

fn now() -> u64 {
    SystemClock.wall().0 / 1_000
}

fn body(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"paid","created":7}}"#)
}

/// A policy that accepts webhooks signed by `sender` at `path`.
fn hooks(path: &str, sender: Sender, change: impl FnOnce(&mut Operation)) -> Policy {
    let operation = Operation::new(&format!("POST {path}")).unwrap();
    let mut operation = operation.with_webhook(sender);
    let signature = Signature::new(sender).with_secret(SECRET).unwrap();
    operation.signature = Some(signature);
    change(&mut operation);
    Policy::new(vec![operation]).unwrap()
}

/// Sends a delivery that was signed `ago` seconds ago.
async fn deliver(shop: &Shop, path: &str, sender: Sender, id: &str, ago: u64) -> Seen {
    let body = body(id);
    let headers = signed(sender, SECRET, id, now() - ago, body.as_bytes());
    let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
    shop.post(path, &headers, body).await
}

#[tokio::test]
async fn a_delivery_runs_once_and_its_duplicates_are_answered_at_once() {
    for sender in Sender::ALL {
        let shop = shop(hooks("/pay", sender, |_| {}));
        let first = deliver(&shop, "/pay", sender, "evt_1", 0).await;
        assert_eq!((first.status, first.is_replay()), (201, false), "{sender}");
        // A retry is signed again, at another time.
        for ago in [0, 30, 200] {
            let again = deliver(&shop, "/pay", sender, "evt_1", ago).await;
            assert_eq!((again.status, again.is_replay()), (201, true), "{sender}");
        }
        let other = deliver(&shop, "/pay", sender, "evt_2", 0).await;
        assert_eq!((other.status, other.is_replay()), (201, false), "{sender}");
        assert_eq!(shop.effects(), 2, "{sender}");
    }
}

#[tokio::test]
async fn forged_webhook_executes_nothing_and_uses_no_key() {
    for sender in Sender::ALL {
        let shop = shop(hooks("/pay", sender, |_| {}));
        let sent = body("evt_1");
        let wrong = match sender {
            Sender::Svix | Sender::StandardWebhooks => "whsec_Zm9yZ2Vk",
            _ => "forged",
        };
        let forged = signed(sender, wrong, "evt_1", now(), sent.as_bytes());
        let good = signed(sender, SECRET, "evt_1", now(), sent.as_bytes());
        let unsigned: Vec<_> = good.iter().take(good.len() - 1).cloned().collect();
        for (headers, body) in [(&forged, &*sent), (&good, "{}"), (&unsigned, &*sent)] {
            let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
            let seen = shop.post("/pay", &headers, body.to_owned()).await;
            seen.check_problem(401, "signature-invalid");
        }
        assert_eq!(shop.effects(), 0, "{sender}");
        for state in [StateName::InFlight, StateName::Completed] {
            assert_eq!(shop.records(state).await, 0, "{sender}");
        }
        assert_eq!(shop.engine.tally().get(Count::Unverified), 3);
        let real = deliver(&shop, "/pay", sender, "evt_1", 0).await;
        assert_eq!((real.status, real.is_replay()), (201, false), "{sender}");
    }
}

#[tokio::test]
async fn an_old_delivery_that_was_captured_is_refused_even_where_its_record_is_known() {
    let shop = shop(hooks("/pay", Sender::Stripe, |_| {}));
    deliver(&shop, "/pay", Sender::Stripe, "evt_1", 0).await;
    for id in ["evt_1", "evt_2"] {
        let late = deliver(&shop, "/pay", Sender::Stripe, id, 400).await;
        late.check_problem(401, "signature-invalid");
    }
    assert_eq!(shop.effects(), 1);
}

/// Stripe sends an event again with another number of pending endpoints in its body.
#[tokio::test]
async fn body_members_that_senders_change_between_retries_are_ignored() {
    let shop = shop(hooks("/pay", Sender::Stripe, |_| {}));
    for (waiting, is_replay) in [(2, false), (1, true)] {
        let body =
            format!(r#"{{"id":"evt_1","type":"paid","created":7,"pending_webhooks":{waiting}}}"#);
        let headers = signed(Sender::Stripe, SECRET, "", now(), body.as_bytes());
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let seen = shop.post("/pay", &headers, body).await;
        assert_eq!((seen.status, seen.is_replay()), (201, is_replay));
    }
}

/// One event under two topics is two deliveries, and each has to be handled.
#[tokio::test]
async fn topics_and_shops_of_shopify_do_not_shadow_each_other() {
    let shop = shop(hooks("/pay", Sender::Shopify, |_| {}));
    let body = body("7");
    let headers = signed(Sender::Shopify, SECRET, "event-1", 0, body.as_bytes());
    for (topic, domain) in [
        ("orders/create", "a.example"),
        ("orders/paid", "a.example"),
        ("orders/paid", "b.example"),
    ] {
        let mut headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        headers.extend([
            ("x-shopify-topic", topic),
            ("x-shopify-shop-domain", domain),
        ]);
        for is_replay in [false, true] {
            let seen = shop.post("/pay", &headers, body.clone()).await;
            assert_eq!((seen.status, seen.is_replay()), (201, is_replay));
        }
    }
    assert_eq!(shop.effects(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_one_in_flight_is_not_told_that_it_is_done() {
    let shop = Arc::new(shop(hooks("/slow", Sender::Github, |_| {})));
    let send =
        |shop: Arc<Shop>| async move { deliver(&shop, "/slow", Sender::Github, "evt_1", 0).await };
    let first = tokio::spawn(send(shop.clone()));
    tokio::task::yield_now().await;
    let since = tokio::time::Instant::now();
    let early = send(shop.clone()).await;
    early.check_problem(409, "in-flight");
    assert!(early.header("retry-after").is_some());
    // The senders with the shortest timeout wait five seconds.
    assert!(since.elapsed() < Duration::from_secs(5));
    shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    let late = send(shop.clone()).await;
    assert_eq!((late.status, late.is_replay()), (200, true));
    assert_eq!(shop.effects(), 1);
}

/// A handler that failed has not processed the event: the next delivery runs.
#[tokio::test]
async fn failed_delivery_executes_again_on_retry() {
    let shop = shop(hooks("/pay", Sender::Github, |_| {}));
    let body = body("evt_1");
    let headers = signed(Sender::Github, SECRET, "evt_1", 0, body.as_bytes());
    for (want, effects) in [("500", 1), ("404", 2), ("202", 3), ("202", 3)] {
        let mut headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        headers.push(("want", want));
        let seen = shop.post("/pay", &headers, body.clone()).await;
        assert_eq!(seen.status.to_string(), want);
        assert_eq!(shop.effects(), effects);
    }
}

/// The response after retention, and the number of effects.
async fn after_retention(change: impl FnOnce(&mut Operation)) -> (Seen, usize) {
    let clock = ManualClock::new();
    let engine = Engine::new(Memory::with_options(64 << 20, clock.shared()));
    let shop = shop_on(hooks("/pay", Sender::Github, change), engine);
    deliver(&shop, "/pay", Sender::Github, "evt_1", 0).await;
    clock.advance(Duration::from_secs(8 * 86_400));
    let late = deliver(&shop, "/pay", Sender::Github, "evt_1", 0).await;
    (late, shop.effects())
}

#[tokio::test]
async fn after_retention_a_duplicate_is_acknowledged_where_it_stands_for_a_success() {
    let (late, effects) = after_retention(|_| {}).await;
    assert_eq!((late.status, late.is_replay(), effects), (200, true, 1));
    assert!(late.body.is_empty());
    assert_eq!(late.header("cache-control"), Some("no-store"));

    let (late, effects) = after_retention(|it| it.duplicates = Duplicates::Explain).await;
    late.check_problem(410, "key-expired");
    assert_eq!(effects, 1);

    // Under at-most-once a failure is kept as well, so the record may not stand for a success.
    let (late, effects) = after_retention(|it| it.terms.guarantee = Guarantee::AtMostOnce).await;
    late.check_problem(410, "key-expired");
    assert_eq!(effects, 1);
}

#[tokio::test]
async fn a_success_whose_body_was_not_kept_is_acknowledged_with_its_status() {
    for (duplicates, status) in [(Duplicates::Acknowledge, 201), (Duplicates::Explain, 409)] {
        let shop = shop(hooks("/pay", Sender::Github, |it| {
            it.outcome_bytes_max = 10;
            it.duplicates = duplicates;
        }));
        deliver(&shop, "/pay", Sender::Github, "evt_1", 0).await;
        let again = deliver(&shop, "/pay", Sender::Github, "evt_1", 0).await;
        assert_eq!(again.status, status);
        assert_eq!(again.header("location"), Some("/pay/1"));
        assert_eq!(again.is_replay(), status == 201);
        assert_eq!(again.body.is_empty(), status == 201);
        assert_eq!(shop.effects(), 1);
    }
}

/// Neither a key nor its absence bypasses the signature check.
#[tokio::test]
async fn unsigned_requests_do_not_pass_where_a_key_is_not_required() {
    let shop = shop(hooks("/pay", Sender::Github, |it| it.required = false));
    shop.post("/pay", &[], "x")
        .await
        .check_problem(401, "signature-invalid");
    let headers = signed(Sender::Github, SECRET, "", 0, b"x");
    let (name, value) = headers.last().unwrap();
    let passed = shop.post("/pay", &[(name, value)], "x").await;
    assert_eq!((passed.status, shop.effects()), (201, 1));
}

#[tokio::test]
async fn observing_lets_everything_pass_and_counts_what_would_be_refused() {
    let shop = shop(hooks("/pay", Sender::Github, |it| it.mode = Mode::Observe));
    for _ in 0..2 {
        let seen = deliver(&shop, "/pay", Sender::Github, "evt_1", 0).await;
        assert_eq!((seen.status, seen.is_replay()), (201, false));
        settled(&shop, 1).await;
    }
    let unsigned = [("x-github-delivery", "evt_2")];
    assert_eq!(shop.post("/pay", &unsigned, "x").await.status, 201);
    let tally = shop.engine.tally();
    while tally.get(Count::Unverified) == 0 || tally.get(Count::Replayed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shop.effects(), 3);
    assert_eq!(
        tally.get(Count::Granted),
        1,
        "the forged delivery must not create a record"
    );
}

async fn settled(shop: &Shop, count: usize) {
    while shop.records(StateName::Completed).await < count {
        tokio::task::yield_now().await;
    }
}
