//! A step fails: it is retried under the same key, in this run or the next, until its attempts are used up. Under a
//! new key it could execute twice.

use std::time::Duration;

use refrain::{
    Engine, Terms,
    consume::Backoff,
    steps::{Opened, StepError},
};

use crate::{
    scripted::{Fault, Op, Scripted},
    world::{Down, Reply, Reply::*, opening, terms, trip, word},
};

/// The replies of the payment system, the tries per run, and the results of this run and the next ones, 2.5 seconds
/// apart.
const FAILURES: &[(&[Reply], u32, &[&str])] = &[
    (&[Fails], 1, &["failed", "finished"]),
    (&[Fails], 2, &["finished"]),
    (&[Fails, Fails, Fails], 3, &["failed", "finished"]),
    (&[LosesAnswer, Fails], 3, &["finished"]),
    (&[LosesAnswer], 1, &["failed", "finished"]),
    (&[Unreachable], 1, &["failed", "finished"]),
    (
        &[Unreachable, Unreachable, Fails],
        2,
        &["failed", "finished"],
    ),
    // The run does not wait longer than its longest pause; the caller has to come back.
    (&[Later(20)], 3, &["failed", "in flight", "in flight"]),
    (&[Later(5)], 3, &["finished"]),
    (&[Refuses], 3, &["undone", "undone"]),
    (&[Fails, Refuses], 3, &["undone", "undone"]),
];

#[tokio::test(start_paused = true)]
async fn failed_step_is_retried_with_the_same_key() {
    for (number, (replies, tries, expected)) in FAILURES.iter().enumerate() {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("charge", replies.iter().copied());
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let opening = opening().with_tries(*tries, backoff);
        let mut seen = Vec::new();
        for _ in 0..expected.len() {
            seen.push(word(&trip(&engine, &down, &opening).await));
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
        assert_eq!(seen, *expected, "case {number}");
        down.check_order();
    }
}

/// If a step that may have executed were forgotten, the operation could be abandoned without undoing it.
#[tokio::test(start_paused = true)]
async fn only_steps_that_provably_had_no_effect_are_forgotten() {
    let cases: [(&[Reply], &str); 4] = [
        (&[Unreachable], "undone"),
        (&[Fails], "invalid"),
        (&[LosesAnswer, Unreachable], "invalid"),
        (&[LosesAnswer], "invalid"),
    ];
    for (replies, expected) in cases {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("charge", replies.iter().copied());
        for reply in replies {
            let Opened::Open(mut steps) = opening().open::<()>(&engine).await.unwrap() else {
                panic!("{reply:?}: it has ended");
            };
            let work = async |key: refrain::Key| down.call("charge", &key).await;
            let ran = steps.step("charge", work).await;
            assert_eq!(word(&ran), "failed");
            if replies.last() == Some(reply) {
                let ended: Result<(), _> = Err(steps.abandon("enough").await);
                assert_eq!(word(&ended), expected, "{replies:?}");
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_step_waits_for_an_operator() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let down = Down::default();
    down.answers("charge", [Fails; 3]);
    let terms = Terms {
        attempts_max: 3,
        ..terms()
    };
    let opening = opening().with_terms(terms);
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(word(&trip(&engine, &down, &opening).await));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    let expected = ["failed", "failed", "indeterminate", "indeterminate"];
    assert_eq!(seen, expected);
    assert_eq!(down.keys("charge").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_takes_too_long_is_given_up_and_tried_again() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let down = Down::default();
    down.answers("charge", [Hangs, Hangs]);
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
    let opening = opening().with_tries(2, backoff);
    let began = tokio::time::Instant::now();
    let ran = trip(&engine, &down, &opening).await;
    let Err(StepError::Failed {
        step,
        reason,
        retry_after,
    }) = ran
    else {
        panic!("{ran:?}");
    };
    assert_eq!((&*step, &*reason), ("charge", "it timed out"));
    assert!(began.elapsed() >= 2 * terms().timeout);
    tokio::time::sleep(retry_after).await;
    assert_eq!(trip(&engine, &down, &opening).await.unwrap(), 123);
    assert_eq!(down.effects(), ["ride", "charge", "mail"]);
}

/// The store becomes unavailable after the effect: the engine keeps the outcome in memory, and the next run finds it.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_loses_nothing_and_runs_nothing_twice() {
    let unavailable = Fault::Fails(refrain::ErrorKind::Unavailable);
    for op in [Op::Read, Op::Claim, Op::Settle] {
        let store = Scripted::on_runtime_clock();
        let (engine, down) = (Engine::new(store.clone()), Down::default());
        store.set(op, 3, unavailable);
        let mut ends = Vec::new();
        for _ in 0..6 {
            ends.push(word(&trip(&engine, &down, &opening()).await));
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(ends[0], "store", "{op:?}");
        assert_eq!(ends[5], "finished", "{op:?}: {ends:?}");
        assert_eq!(down.calls(), ["ride", "charge", "mail"], "{op:?}");
    }
}
