//! Two processes share a store, keys come and go: what was encrypted stays readable exactly as long as it should, and
//! nothing runs while it cannot be known.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use refrain::{
    Encryption, Engine, ErrorKind, Intent, Key, Outcome, Scope, Settled, Store, Verdict,
    encryption::MasterKey,
    engine::Resolution,
    record::{Reason, ScopeDigest, State},
    store::{AnyStore, Guarantees, Memory, Query, REREAD_AFTER, StateName},
};
use refrain_testkit::{ManualClock, Model};

fn keys(byte: u8) -> Encryption {
    Encryption::new(MasterKey::new([byte; 32]))
}

fn shared_model() -> Model {
    Model::new(ManualClock::new().shared()).with_guarantees(Guarantees {
        survives_process: true,
        survives_power: true,
        lossy_failover: false,
        shared: true,
    })
}

fn node(model: &Model, keys: Encryption) -> Engine {
    Engine::new(AnyStore::new(model.clone()).with_encryption(keys))
}

fn scope(tenant: &str) -> Scope {
    Scope::none().with("tenant", tenant)
}

fn intent(tenant: &str, key: &str) -> Intent {
    Intent::new(scope(tenant), Key::new(key).unwrap())
}

async fn complete(engine: &Engine, tenant: &str, key: &str) {
    let Verdict::Granted(guard) = engine.claim(&intent(tenant, key)).await.unwrap() else {
        panic!("{key} is not free");
    };
    let outcome = Outcome::new(201, format!("made {key}"));
    let settled = guard.start().complete(outcome).await.unwrap();
    assert_eq!(settled, Settled::Applied);
}

#[track_caller]
fn assert_replay<G: std::fmt::Debug>(verdict: Verdict<G>, body: &str) {
    let Verdict::Replay(outcome) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(
        (outcome.status(), &outcome.body()[..]),
        (201, body.as_bytes())
    );
}

/// The digest of a scope in the engine's store.
fn digest(engine: &Engine, tenant: &str) -> ScopeDigest {
    ScopeDigest::derive(engine.secret(), &scope(tenant))
}

#[tokio::test]
async fn processes_that_start_in_one_scope_at_once_agree_on_its_key() {
    for round in 0..20 {
        let model = shared_model();
        let (one, two) = (node(&model, keys(1)), node(&model, keys(1)));
        tokio::join!(complete(&one, "acme", "a"), complete(&two, "acme", "b"));
        for (engine, key) in [(&one, "b"), (&two, "a")] {
            let verdict = engine.claim(&intent("acme", key)).await.unwrap();
            assert_replay(verdict, &format!("made {key}"));
        }
        let keys = model.scope_keys(None).await.unwrap().keys;
        assert_eq!(keys.len(), 1, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_erased_key_is_forgotten_by_every_process_in_time() {
    let model = shared_model();
    let (one, two) = (node(&model, keys(1)), node(&model, keys(1)));
    complete(&one, "acme", "a").await;
    assert_replay(two.claim(&intent("acme", "a")).await.unwrap(), "made a");
    assert!(one.erase_scope(digest(&one, "acme"), "left").await.unwrap());
    assert!(!one.erase_scope(digest(&one, "acme"), "left").await.unwrap());
    let erased = one.claim(&intent("acme", "a")).await.unwrap();
    assert!(matches!(erased, Verdict::Expired), "{erased:?}");
    tokio::time::advance(REREAD_AFTER + Duration::from_millis(1)).await;
    let erased = two.claim(&intent("acme", "a")).await.unwrap();
    assert!(matches!(erased, Verdict::Expired), "{erased:?}");
    let id = two.record_id(&intent("acme", "a"));
    let reading = two.store().read(id).await.unwrap().unwrap();
    assert_eq!(reading.record.state.name(), StateName::Tombstone);
    complete(&two, "acme", "b").await;
    assert_replay(two.claim(&intent("acme", "b")).await.unwrap(), "made b");
}

#[tokio::test]
async fn a_request_that_runs_while_its_scope_is_erased_is_stored_under_the_new_key() {
    let engine = Engine::new(AnyStore::new(Memory::new()).with_encryption(keys(1)));
    let verdict = engine.claim(&intent("acme", "a")).await.unwrap();
    let Verdict::Granted(guard) = verdict else {
        panic!("{verdict:?}");
    };
    let running = guard.start();
    assert!(
        engine
            .erase_scope(digest(&engine, "acme"), "left")
            .await
            .unwrap()
    );
    let settled = running.complete(Outcome::new(201, "made a")).await.unwrap();
    assert_eq!(settled, Settled::Applied);
    assert_replay(engine.claim(&intent("acme", "a")).await.unwrap(), "made a");
}

#[tokio::test]
async fn without_the_right_key_nothing_runs_and_the_error_names_it() {
    let model = shared_model();
    complete(&node(&model, keys(1)), "acme", "a").await;
    let id = MasterKey::new([1; 32]).id().to_string();
    let wrong = node(&model, keys(2));
    for key in ["a", "new"] {
        let error = wrong.claim(&intent("acme", key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&id), "{error}");
    }
    // Another scope gets its own key.
    complete(&wrong, "other", "a").await;
    let bare = Engine::new(AnyStore::new(model.clone()));
    let error = bare.claim(&intent("acme", "a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("[encryption]"), "{error}");
    let record = bare.record_id(&intent("acme", "a"));
    assert!(bare.store().read(record).await.is_err());
    let listed = bare.store().list(&Query::default()).await.unwrap();
    assert_eq!(listed.readings.len(), 2, "lists show what can be shown");
    for engine in [&wrong, &bare] {
        let error = engine.store().check_encryption().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let right = node(&model, keys(1).with_previous([MasterKey::new([2; 32])]));
    right.store().check_encryption().await.unwrap();
    let counts = right.store().renew_scope_keys().await.unwrap();
    assert_eq!((counts.total(), counts.renewed), (2, 1));
    let only = node(&model, keys(1));
    assert_replay(only.claim(&intent("acme", "a")).await.unwrap(), "made a");
    assert_replay(only.claim(&intent("other", "a")).await.unwrap(), "made a");
}

#[tokio::test]
async fn lost_data_keys_are_an_error_and_not_an_erasure() {
    let model = shared_model();
    complete(&node(&model, keys(1)), "acme", "a").await;
    // A copy of the records without the data keys.
    let id = node(&model, keys(1)).record_id(&intent("acme", "a"));
    let record = model.read(id).await.unwrap().unwrap().record;
    let State::Completed { outcome, fence, .. } = record.state else {
        panic!("{record:?}");
    };
    assert!(outcome.is_encrypted() && outcome.fits(fence));
    let copy = shared_model();
    let engine = node(&copy, keys(1));
    let claim = intent("acme", "a");
    let Verdict::Granted(guard) = engine.claim(&claim).await.unwrap() else {
        panic!("the key is not free");
    };
    drop(engine);
    // The fence is the same: both models count from the beginning.
    let running = guard.start();
    assert_eq!(running.fence(), fence);
    let restored = running.complete(outcome).await.unwrap();
    assert_eq!(restored, Settled::Applied);
    let error = node(&copy, keys(1)).claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn an_outcome_that_an_operator_stores_is_encrypted() {
    let model = shared_model();
    let engine = node(&model, keys(1));
    let verdict = engine.claim(&intent("acme", "a")).await.unwrap();
    let Verdict::Granted(guard) = verdict else {
        panic!("{verdict:?}");
    };
    let mut running = guard.start();
    let settled = running.doubt(Reason::Timeout).await.unwrap();
    assert_eq!(settled, Settled::Applied);
    let resolution = Resolution::Completed {
        outcome: Outcome::new(201, "found"),
        retention: Duration::from_secs(60),
        remember: Duration::from_secs(60),
    };
    let id = engine.record_id(&intent("acme", "a"));
    let resolved = engine.resolve(id, resolution, "in the ledger").await;
    assert_eq!(resolved.unwrap(), refrain::engine::Resolved::Applied);
    let stored = model.read(id).await.unwrap().unwrap();
    let State::Completed { outcome, .. } = stored.record.state else {
        panic!("{stored:?}");
    };
    assert!(outcome.is_encrypted());
    assert_replay(engine.claim(&intent("acme", "a")).await.unwrap(), "found");
}
