//! A completed step is not executed again, its key never changes, and its result is kept for the whole retention
//! period.

use std::{collections::HashSet, time::Duration};

use refrain::{
    Engine, Key, Scope, Terms,
    steps::{Opened, Opening, Steps},
    store::{Memory, Query},
};

use crate::{
    scripted::Scripted,
    world::{Down, key, lapse, opening, terms, trip, word},
};

async fn open(engine: &Engine, opening: &Opening) -> Box<Steps<'static>> {
    match opening.open::<()>(engine).await.unwrap() {
        Opened::Open(steps) => steps,
        Opened::Finished(()) => panic!("it is finished"),
    }
}

#[tokio::test]
async fn completed_steps_are_replayed_on_every_node() {
    let (store, down) = (Memory::new(), Down::default());
    let first = trip(&Engine::new(store.clone()), &down, &opening()).await;
    assert_eq!(first.unwrap(), 123);
    for _ in 0..2 {
        let again = trip(&Engine::new(store.clone()), &down, &opening()).await;
        assert_eq!(again.unwrap(), 123);
    }
    assert_eq!(down.calls(), ["ride", "charge", "mail"]);
}

#[tokio::test]
async fn run_resumes_after_the_last_completed_step() {
    let (store, down) = (Memory::new(), Down::default());
    let mut steps = open(&Engine::new(store.clone()), &opening()).await;
    let ride: u64 = steps
        .step("ride", async |key| down.call("ride", &key).await)
        .await
        .unwrap();
    drop(steps);
    let ran = trip(&Engine::new(store), &down, &opening()).await;
    assert_eq!((ride, ran.unwrap()), (1, 123));
    assert_eq!(down.calls(), ["ride", "charge", "mail"]);
}

#[tokio::test]
async fn the_key_for_the_next_system_is_the_steps_own_and_never_changes() {
    let store = Memory::new();
    let key_of = async |opening: Opening, name: &str| {
        let mut steps = open(&Engine::new(store.clone()), &opening).await;
        // Results are not recorded, so that each run calls the system again.
        let seen = std::sync::Mutex::new(String::new());
        let ran = steps
            .step(name, async |key: Key| {
                *seen.lock().unwrap() = key.as_str().into();
                Err::<(), _>(refrain::steps::Failure::retry("again").without_effect())
            })
            .await;
        assert_eq!(word(&ran), "failed");
        seen.into_inner().unwrap()
    };
    let tenant = Scope::none().with("tenant", "a");
    let cases = [
        (opening(), "ride"),
        (opening(), "charge"),
        (opening().with_scope(tenant), "ride"),
        (
            Opening::new("book-ride", Key::new("order-8").unwrap()),
            "ride",
        ),
        (Opening::new("cancel-ride", key()), "ride"),
    ];
    let mut seen = HashSet::new();
    for (opening, name) in cases {
        let opening = opening.with_tries(1, Default::default());
        let first = key_of(opening.clone(), name).await;
        assert_eq!(key_of(opening, name).await, first);
        assert!((16..=64).contains(&first.len()), "{first}");
        assert!(seen.insert(first), "two steps share a key");
    }
}

#[tokio::test]
async fn places_are_no_records_of_requests_or_messages() {
    let (store, down) = (Memory::new(), Down::default());
    let engine = Engine::new(store.clone());
    let scope = Scope::none().with("consumer", "billing");
    for scope in [Scope::none(), scope.clone()] {
        let intent = refrain::Intent::new(scope, key());
        let outcome = refrain::Outcome::new(200, "another's");
        let ran = engine.run(&intent, |_| async { outcome }).await.unwrap();
        assert!(matches!(ran, refrain::Verdict::Granted(_)));
    }
    for opening in [opening(), opening().with_scope(scope)] {
        assert_eq!(word(&trip(&engine, &down, &opening).await), "finished");
    }
    assert_eq!(down.calls().len(), 6);
}

/// The retention of each step starts with that step, so the first one expires long before the last.
#[tokio::test(start_paused = true)]
async fn steps_are_kept_as_long_as_their_outcome() {
    const SPAN: Duration = Duration::from_mins(24);
    let store = Scripted::on_runtime_clock();
    let (engine, down) = (Engine::new(store.clone()), Down::default());
    let terms = Terms {
        retention: SPAN,
        remember: 3 * SPAN,
        ..terms()
    };
    let opening = opening().with_terms(terms).with_lasts_max(2 * SPAN);
    let mut steps = open(&engine, &opening).await;
    let step = steps.step("ride", async |key| down.call("ride", &key).await);
    let _ride: u64 = step.await.unwrap();
    drop(steps);
    tokio::time::sleep(2 * SPAN - Duration::from_mins(1)).await;
    assert_eq!(trip(&engine, &down, &opening).await.unwrap(), 123);
    let later = [
        (SPAN, "finished"),
        (Duration::from_mins(2), "expired"),
        (2 * SPAN, "expired"),
    ];
    for (later, expected) in later {
        tokio::time::sleep(later).await;
        assert_eq!(word(&trip(&engine, &down, &opening).await), expected);
    }
    assert_eq!(down.calls().len(), 3);
    // The record of the first step has expired, those of later steps have not: they belong to another generation.
    tokio::time::sleep(SPAN).await;
    let left = refrain::Store::list(&store, &Query::default())
        .await
        .unwrap();
    assert!(!left.readings.is_empty(), "all records expired at once");
    assert_eq!(word(&trip(&engine, &down, &opening).await), "finished");
    assert_eq!(down.calls().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_in_the_middle_of_a_step_is_as_one_that_died() {
    let store = Scripted::on_runtime_clock();
    let (engine, down) = (Engine::new(store.clone()), Down::default());
    down.answers("charge", [crate::world::Reply::Hangs]);
    let opening = opening();
    let running = trip(&engine, &down, &opening);
    let cut = tokio::time::timeout(Duration::from_secs(1), running).await;
    assert!(cut.is_err());
    let again = trip(&engine, &down, &opening).await;
    assert_eq!(word(&again), "in flight", "it is never silently released");
    lapse().await;
    assert_eq!(trip(&engine, &down, &opening).await.unwrap(), 123);
    assert_eq!(down.calls(), ["ride", "charge", "charge", "mail"]);
    assert_eq!(down.effects(), ["ride", "charge", "mail"]);
    down.check_order();
}
