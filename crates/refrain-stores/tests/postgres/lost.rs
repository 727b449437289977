//! The connection breaks between a commit and its response: the command was applied, but the store does not know
//! that. The store retries, and the command must not be applied twice.

use std::time::Duration;

use refrain::{
    ErrorKind, Fence, Outcome, Settled, Settlement, Store as _, Verdict,
    record::{Erased, Grant},
};
use refrain_stores::postgres::Postgres;
use refrain_testkit::wait;

use crate::{
    relay::{Mood, Relay},
    support::{Schema, claim, id, url, with_query},
};

/// Relay to the server, and an address of the schema through it.
pub(crate) async fn relayed(schema: &Schema) -> (Relay, String) {
    let url = url();
    let (front, rest) = url.split_once('@').unwrap();
    let (server, tail) = rest.split_once('/').unwrap();
    let relay = Relay::start(server.to_owned()).await;
    let address = format!("{front}@127.0.0.1:{}/{tail}", relay.port);
    let query = format!("schema={}&sslmode=disable&connect_timeout=10", schema.name);
    (relay, with_query(&address, &query))
}

pub(crate) async fn through_relay(schema: &Schema) -> (Relay, Postgres) {
    let (relay, address) = relayed(schema).await;
    let store = Postgres::open(&address).await.unwrap();
    // Open all connections first, so that the cut hits the command under test.
    let grant = granted(&store, 1_000).await;
    let grant_too = granted(&store, 1_001).await;
    assert_eq!(
        store
            .settle(id(1_000), grant.fence, Settlement::Release)
            .await
            .unwrap(),
        Settled::Applied
    );
    assert_eq!(
        store
            .settle(id(1_001), grant_too.fence, Settlement::Release)
            .await
            .unwrap(),
        Settled::Applied
    );
    (relay, store)
}

/// Repeats a call while the server process of a cut connection still holds the record's lock.
async fn unlocked<T>(mut call: impl AsyncFnMut() -> refrain::Result<T>) -> T {
    let since = tokio::time::Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_retryable() && since.elapsed() < wait::PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return done.unwrap(),
        }
    }
}

async fn ask(store: &Postgres, number: u64) -> Verdict {
    // The same claimant each time.
    let claim = claim(number);
    unlocked(async || store.claim(claim.clone()).await).await
}

async fn granted(store: &Postgres, number: u64) -> Grant {
    match ask(store, number).await {
        Verdict::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn completion(body: &str) -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(200, body),
        retention: Duration::from_secs(60),
        remember: Duration::from_secs(60),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_on_a_broken_connection_is_retried_and_applied_once() {
    let schema = Schema::new();
    let (relay, store) = through_relay(&schema).await;
    let witness = schema.open().await;
    let mut number = 0;
    for mood in [Mood::LosesNextAnswer, Mood::LosesNextRequest] {
        for end in [
            completion("kept"),
            Settlement::Release,
            Settlement::Doubt {
                reason: refrain::record::Reason::Timeout,
            },
        ] {
            number += 1;
            let cuts = relay.cuts();
            relay.set(mood);
            let grant = granted(&store, number).await;
            assert_eq!(relay.cuts(), cuts + 1, "the claim did not meet the cut");
            assert_eq!(grant.attempt, 1, "{mood:?}");
            let fence = witness
                .read(id(number))
                .await
                .unwrap()
                .unwrap()
                .record
                .fence();
            assert_eq!(
                fence,
                Some(grant.fence),
                "the retry must return the committed grant"
            );
            relay.set(mood);
            let settle = async || store.settle(id(number), grant.fence, end.clone()).await;
            let settled = unlocked(settle).await;
            assert_eq!(
                relay.cuts(),
                cuts + 2,
                "the settlement did not meet the cut"
            );
            assert_eq!(settled, Settled::Applied, "{mood:?} {end:?}");
            let left = witness.read(id(number)).await.unwrap();
            assert_eq!(
                left.is_none(),
                end == Settlement::Release,
                "{mood:?} {end:?}"
            );
        }
    }
    relay.set(Mood::LosesNextAnswer);
    let renewed = store
        .renew(
            id(999),
            Fence {
                epoch: 1,
                counter: 1,
                nonce: 1,
            },
            Duration::from_secs(1),
        )
        .await;
    assert_eq!(renewed.unwrap(), Settled::Fenced);
    let erased = store.erase(id(1)).await.unwrap();
    assert_eq!(erased, Erased::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_comes_through_a_broken_connection_as_well() {
    let schema = Schema::new();
    let (relay, store) = through_relay(&schema).await;
    let grant = granted(&store, 7).await;
    let _ = store
        .settle(id(7), grant.fence, completion("seven"))
        .await
        .unwrap();
    for _ in 0..4 {
        relay.set(Mood::LosesNextAnswer);
        match ask(&store, 7).await {
            Verdict::Replay(outcome) => assert_eq!(&outcome.body()[..], b"seven"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_claims_fail_fast() {
    let schema = Schema::new();
    let (relay, store) = through_relay(&schema).await;
    let held = granted(&store, 1).await;
    relay.set(Mood::Gone);
    // All together take less time than one wait per call for a silent server.
    let asked = tokio::time::Instant::now();
    for number in 2..20 {
        check_refused(&store, number).await;
    }
    assert!(asked.elapsed() < wait::PATIENCE, "{:?}", asked.elapsed());
    let ends = [
        store.settle(id(1), held.fence, completion("late")).await,
        store.renew(id(1), held.fence, Duration::from_secs(9)).await,
    ];
    for end in ends {
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(
        store.read(id(1)).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(
        store.sweep(1).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    relay.set(Mood::Faithful);
    wait::until("it comes back", async || {
        let settled = store.settle(id(1), held.fence, completion("late")).await;
        settled.is_ok_and(|settled| {
            assert_eq!(settled, Settled::Applied, "another claimant took it over");
            true
        })
    })
    .await;
}

async fn check_refused(store: &Postgres, number: u64) {
    let refused = store.claim(claim(number)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_server_times_out() {
    let schema = Schema::new();
    let (relay, store) = through_relay(&schema).await;
    relay.set(Mood::Stuck);
    let refused = check_refused(&store, 5);
    tokio::time::timeout(wait::PATIENCE, refused).await.unwrap();
}
