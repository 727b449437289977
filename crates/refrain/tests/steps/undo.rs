//! A step is rejected permanently: the steps before it are undone in reverse order, across any crash, and no run goes
//! forward again.

use std::time::Duration;

use refrain::{
    Engine, Key, Outcome,
    engine::Resolution,
    steps::{Cause, Opened, StepError},
    store::{Query, StateName},
};

use crate::{
    scripted::Scripted,
    world::{Down, Reply, Reply::*, lapse, opening, terms, trip, word},
};

#[tokio::test]
async fn completed_steps_are_undone_in_reverse_order() {
    let cases: [(&str, &[&str]); 3] = [
        ("ride", &["ride"]),
        ("charge", &["ride", "charge", "undo ride"]),
        (
            "mail",
            &["ride", "charge", "mail", "undo charge", "undo ride"],
        ),
    ];
    for (refused, calls) in cases {
        let engine = Engine::new(Scripted::new());
        let down = Down::default();
        down.answers(refused, [Refuses]);
        for _ in 0..3 {
            let ran = trip(&engine, &down, &opening()).await;
            let Err(StepError::Undone { cause }) = ran else {
                panic!("{refused}: {ran:?}");
            };
            let (step, reason) = (Some(refused.into()), "no".into());
            assert_eq!(cause, Cause { step, reason });
        }
        assert_eq!(down.calls(), calls, "{refused}");
        down.check_order();
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_fails_is_tried_again_and_no_run_goes_forward() {
    let failures: [&[Reply]; 4] = [
        &[Fails],
        &[Unreachable, Fails],
        &[LosesAnswer],
        &[Hangs, LosesAnswer],
    ];
    for replies in failures {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("mail", [Refuses]);
        down.answers("undo charge", replies.iter().copied());
        for _ in replies {
            let ran = trip(&engine, &down, &opening()).await;
            assert_eq!(word(&ran), "failed", "{replies:?}");
            lapse().await;
        }
        let ran = trip(&engine, &down, &opening()).await;
        assert_eq!(word(&ran), "undone", "{replies:?}");
        let effects = ["ride", "charge", "undo charge", "undo ride"];
        assert_eq!(down.effects(), effects);
        down.check_order();
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_undo_waits_for_an_operator_and_skips_nothing() {
    let store = Scripted::on_runtime_clock();
    let (engine, down) = (Engine::new(store.clone()), Down::default());
    down.answers("mail", [Refuses]);
    down.answers("undo charge", [Refuses]);
    let mut stuck = None;
    for _ in 0..3 {
        let ran = trip(&engine, &down, &opening()).await;
        let Err(StepError::Stuck { what, record, .. }) = ran else {
            panic!("{ran:?}");
        };
        assert_eq!(what, "the undo of step `charge`");
        stuck = Some(record);
        lapse().await;
    }
    assert_eq!(down.keys("undo charge").len(), 1);
    // Operators find it in the list of unknown outcomes.
    let query = Query {
        state: Some(StateName::Indeterminate),
        ..Query::default()
    };
    let listed = refrain::Store::list(&store, &query).await.unwrap().readings;
    assert_eq!(listed.len(), 1);
    assert_eq!(Some(listed[0].id), stuck);
    let history = listed[0].record.trace.read().unwrap();
    assert_eq!(history.target, "the undo of step `charge`");

    let by_hand = Resolution::Completed {
        outcome: Outcome::new(200, "null"),
        retention: terms().retention,
        remember: terms().remember,
    };
    let resolved = engine.resolve(listed[0].id, by_hand, "paid back by hand");
    let _ = resolved.await.unwrap();
    let ran = trip(&engine, &down, &opening()).await;
    assert_eq!(word(&ran), "undone");
    assert_eq!(down.effects(), ["ride", "charge", "undo ride"]);
    down.check_order();
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_is_said_not_to_have_happened_is_tried_again() {
    let store = Scripted::on_runtime_clock();
    let (engine, down) = (Engine::new(store.clone()), Down::default());
    down.answers("mail", [Refuses]);
    down.answers("undo charge", [Refuses]);
    let ran = trip(&engine, &down, &opening()).await;
    let Err(StepError::Stuck { record, .. }) = ran else {
        panic!("{ran:?}");
    };
    tokio::time::sleep(terms().settle_after).await;
    let mended = Resolution::NeverHappened;
    let _ = engine
        .resolve(record, mended, "their bug is fixed")
        .await
        .unwrap();
    assert_eq!(word(&trip(&engine, &down, &opening()).await), "undone");
    assert_eq!(down.keys("undo charge").len(), 2);
    down.check_order();
}

/// A ride, and then a decision by the code to give up.
async fn decide(engine: &Engine, down: &Down, gives_up: bool) -> Result<u64, StepError> {
    let mut steps = match opening().open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(sum) => return Ok(sum),
    };
    let ride: u64 = steps
        .step_or_undo(
            "ride",
            async |key: Key| down.call("ride", &key).await,
            async |key: Key, _ride: u64| down.call("undo ride", &key).await.map(|_| ()),
        )
        .await?;
    if gives_up {
        return Err(steps.abandon("nobody drives tonight").await);
    }
    let charge: u64 = steps
        .step("charge", async |key: Key| down.call("charge", &key).await)
        .await?;
    steps.finish(ride * 10 + charge).await
}

#[tokio::test(start_paused = true)]
async fn a_decision_to_give_up_stands_whatever_later_runs_decide() {
    for is_undo_cut in [false, true] {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        if is_undo_cut {
            down.answers("undo ride", [Hangs]);
            let cut = decide(&engine, &down, true);
            let cut = tokio::time::timeout(Duration::from_secs(1), cut).await;
            assert!(cut.is_err());
            lapse().await;
        }
        for gives_up in [!is_undo_cut, false, true] {
            let ran = decide(&engine, &down, gives_up).await;
            let Err(StepError::Undone { cause }) = ran else {
                panic!("{ran:?}");
            };
            assert_eq!(cause.to_string(), "nobody drives tonight");
        }
        assert_eq!(down.effects(), ["ride", "undo ride"]);
    }
}

#[tokio::test(start_paused = true)]
async fn run_cannot_be_abandoned_while_a_step_is_open() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let down = Down::default();
    down.answers("charge", [LosesAnswer]);
    assert_eq!(word(&decide(&engine, &down, false).await), "failed");
    lapse().await;
    assert_eq!(word(&decide(&engine, &down, true).await), "invalid");
    assert_eq!(decide(&engine, &down, false).await.unwrap(), 12);
    assert_eq!(down.effects(), ["ride", "charge"], "nothing was undone");
}

/// The ride can be undone; after the payment nothing can.
async fn pay(engine: &Engine, down: &Down, gives_up: bool) -> Result<u64, StepError> {
    let mut steps = match opening().open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(sum) => return Ok(sum),
    };
    let ride: u64 = steps
        .step_or_undo(
            "ride",
            async |key: Key| down.call("ride", &key).await,
            async |key: Key, _ride: u64| down.call("undo ride", &key).await.map(|_| ()),
        )
        .await?;
    let charge: u64 = steps
        .step("charge", async |key: Key| down.call("charge", &key).await)
        .await?;
    steps.point_of_no_return();
    if gives_up {
        return Err(steps.abandon("too late").await);
    }
    let mail: u64 = steps
        .step("mail", async |key: Key| down.call("mail", &key).await)
        .await?;
    steps.finish(ride * 100 + charge * 10 + mail).await
}

#[tokio::test(start_paused = true)]
async fn nothing_is_undone_after_the_point_of_no_return() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let down = Down::default();
    assert_eq!(word(&pay(&engine, &down, true).await), "invalid");
    down.answers("mail", [Refuses]);
    let mut stuck = None;
    for _ in 0..2 {
        let ran = pay(&engine, &down, false).await;
        let Err(StepError::Stuck { what, record, .. }) = ran else {
            panic!("{ran:?}");
        };
        assert_eq!(what, "step `mail`");
        stuck = Some(record);
        lapse().await;
    }
    let by_hand = Resolution::Completed {
        outcome: Outcome::new(200, "9"),
        retention: terms().retention,
        remember: terms().remember,
    };
    let resolved = engine.resolve(stuck.unwrap(), by_hand, "sent by post");
    let _ = resolved.await.unwrap();
    assert_eq!(pay(&engine, &down, false).await.unwrap(), 129);
    assert_eq!(down.effects(), ["ride", "charge"]);
}

#[tokio::test]
async fn steps_are_undone_before_the_point_of_no_return() {
    let engine = Engine::new(Scripted::new());
    let down = Down::default();
    down.answers("charge", [Refuses]);
    assert_eq!(word(&pay(&engine, &down, false).await), "undone");
    assert_eq!(down.effects(), ["ride", "undo ride"]);
}
