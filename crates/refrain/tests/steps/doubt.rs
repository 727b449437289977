//! A step in a system without idempotency keys: a step that may have executed is not executed again until its outcome
//! is known.

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, Key, Outcome,
    engine::Resolution,
    steps::{Failure, Opened, Step, StepError},
};

use crate::{
    scripted::Scripted,
    world::{Down, Reply, Reply::*, opening, terms, word},
};

/// One step in a system without keys, and one after it.
async fn fax(engine: &Engine, down: &Down, step: Step) -> Result<u64, StepError> {
    let mut steps = match opening().open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(sum) => return Ok(sum),
    };
    let fax: u64 = steps
        .step(step, async |key: Key| down.call("fax", &key).await)
        .await?;
    let mail: u64 = steps
        .step("mail", async |key: Key| down.call("mail", &key).await)
        .await?;
    steps.finish(fax * 10 + mail).await
}

fn once() -> Step {
    Step::new("fax").at_most_once()
}

/// Waits until the attempt can no longer act.
async fn settle() {
    tokio::time::sleep(terms().settle_after + Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn step_with_unknown_outcome_is_not_repeated() {
    let cases: [(Reply, &[&str]); 5] = [
        (Fails, &["indeterminate", "indeterminate"]),
        (LosesAnswer, &["indeterminate", "indeterminate"]),
        (Hangs, &["indeterminate", "indeterminate"]),
        (Unreachable, &["failed", "finished"]),
        (Refuses, &["undone", "undone"]),
    ];
    for (reply, expected) in cases {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("fax", [reply]);
        for expected in expected {
            let ran = fax(&engine, &down, once()).await;
            assert_eq!(word(&ran), *expected, "{reply:?}");
            settle().await;
        }
        let calls = down.keys("fax").len();
        assert_eq!(calls, 1 + usize::from(reply == Unreachable), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_in_the_middle_leaves_doubt() {
    let engine = Engine::new(Scripted::on_runtime_clock());
    let down = Down::default();
    down.answers("fax", [Hangs]);
    let running = fax(&engine, &down, once());
    let cut = tokio::time::timeout(Duration::from_secs(1), running).await;
    assert!(cut.is_err());
    settle().await;
    assert_eq!(word(&fax(&engine, &down, once()).await), "indeterminate");
}

#[tokio::test(start_paused = true)]
async fn operator_resolution_resumes_the_run() {
    let terms = terms();
    let happened = Resolution::Completed {
        outcome: Outcome::new(200, "7"),
        retention: terms.retention,
        remember: terms.remember,
    };
    let cases = [(happened, 1, 72), (Resolution::NeverHappened, 2, 12)];
    for (resolution, calls, sum) in cases {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("fax", [LosesAnswer]);
        let ran = fax(&engine, &down, once()).await;
        let Err(StepError::Indeterminate { step, record }) = ran else {
            panic!("{ran:?}");
        };
        assert_eq!(step, "fax");
        settle().await;
        let resolved = engine.resolve(record, resolution, "asked them").await;
        assert_eq!(resolved.unwrap(), refrain::engine::Resolved::Applied);
        let ran = fax(&engine, &down, once()).await;
        assert_eq!(ran.unwrap(), sum, "with the result that was found");
        assert_eq!(down.keys("fax").len(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn probe_resumes_the_run_automatically() {
    // The probe's finding, and the result of the next run.
    let cases = [
        (Ok(Some(7_u64)), "finished", 1),
        (Ok(None), "finished", 2),
        (Err(Failure::retry("who knows")), "indeterminate", 1),
    ];
    for (found, expected, calls) in cases {
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("fax", [LosesAnswer]);
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let step = || {
            let (found, asked) = (found.clone(), asked.clone());
            once().with_probe(move |key: Key| {
                asked.lock().unwrap().push(key.as_str().to_owned());
                let found = found.clone();
                async move { found }
            })
        };
        let ran = fax(&engine, &down, step()).await;
        assert_eq!(word(&ran), "indeterminate");
        assert!(
            asked.lock().unwrap().is_empty(),
            "probed while the attempt may still act"
        );
        settle().await;
        let ran = fax(&engine, &down, step()).await;
        assert_eq!(word(&ran), expected, "{found:?}");
        assert_eq!(down.keys("fax").len(), calls, "{found:?}");
        let asked = asked.lock().unwrap();
        let keys = down.keys("fax");
        assert!(asked.contains(&keys[0]) && asked.iter().all(|key| *key == keys[0]));
        if let Ok(Some(_)) = found {
            assert_eq!(ran.unwrap(), 72);
        }
    }
}
