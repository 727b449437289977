//! The code was changed while operations were in flight, or a key was reused for another operation. New steps must
//! not be combined with results recorded for other steps.

use std::time::Duration;

use refrain::{
    Engine, Key, Terms,
    steps::{Failure, Opened, Opening, Step, StepError},
    store::Memory,
};

use crate::world::{Down, opening, terms, word};

/// Runs these steps, each with its input; then finishes, or fails in the last step.
async fn walk(
    engine: &Engine,
    opening: &Opening,
    steps: &[(&str, u64)],
    ends: bool,
) -> Result<u64, StepError> {
    let mut walking = match opening.open(engine).await? {
        Opened::Open(steps) => steps,
        Opened::Finished(sum) => return Ok(sum),
    };
    let mut sum = 0;
    for (number, (name, input)) in steps.iter().enumerate() {
        let is_last = number + 1 == steps.len();
        let step = Step::new(*name).with_input(input);
        let done: u64 = walking
            .step(step, async |_key| match ends || !is_last {
                true => Ok(*input),
                false => Err(Failure::retry("not yet")),
            })
            .await?;
        sum += done;
    }
    walking.finish(sum).await
}

/// The steps recorded first, whether they finished, the steps of the changed code, and the result of running it.
type Case<'a> = (&'a [(&'a str, u64)], bool, &'a [(&'a str, u64)], &'a str);

const WALKS: &[Case<'_>] = &[
    (&[("a", 1), ("b", 2)], true, &[("b", 1)], "finished"),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("a", 1), ("b", 2), ("c", 3)],
        "in flight",
    ),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("b", 1), ("a", 2)],
        "changed",
    ),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("z", 1), ("a", 1)],
        "changed",
    ),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("a", 9), ("b", 2)],
        "mismatch",
    ),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("a", 1), ("c", 2)],
        "changed",
    ),
    (
        &[("a", 1), ("b", 2)],
        false,
        &[("a", 1), ("b", 9)],
        "changed",
    ),
    (&[("a", 1), ("b", 2)], false, &[("a", 1)], "changed"),
    (&[("a", 1), ("b", 2)], false, &[], "changed"),
];

#[tokio::test]
async fn another_way_than_the_recorded_one_is_refused() {
    for (number, (first, ends, then, expected)) in WALKS.iter().enumerate() {
        let engine = Engine::new(Memory::new());
        let ran = walk(&engine, &opening(), first, *ends).await;
        assert_eq!(word(&ran), if *ends { "finished" } else { "failed" });
        let ran = walk(&engine, &opening(), then, true).await;
        assert_eq!(word(&ran), *expected, "case {number}: {ran:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_was_found_and_what_was_wanted() {
    let engine = Engine::new(Memory::new());
    let ran = walk(&engine, &opening(), &[("a", 1), ("b", 2)], false).await;
    assert_eq!(word(&ran), "failed");
    let ran = walk(&engine, &opening(), &[("c", 1)], true).await;
    let text = ran.unwrap_err().to_string();
    let expected = "the code expects step `c`, but step `a` was recorded";
    assert!(text.starts_with(expected), "{text}");
}

#[tokio::test]
async fn another_input_under_the_same_key_is_a_mismatch() {
    // With nothing recorded, in flight, and finished.
    for (steps, ends) in [
        (vec![("a", 1)], false),
        (vec![("a", 1), ("b", 2)], false),
        (vec![("a", 1)], true),
    ] {
        let engine = Engine::new(Memory::new());
        let from = |amount: u64| opening().with_input(&("anna", amount));
        let _ = walk(&engine, &from(20), &steps, ends).await;
        let other = walk(&engine, &from(99), &steps, true).await;
        // An operation in flight has only a fingerprint.
        let expected = if steps.len() == 1 && !ends {
            "changed"
        } else {
            "mismatch"
        };
        assert_eq!(word(&other), expected, "{steps:?} {ends}");
    }
}

#[tokio::test]
async fn the_order_of_members_makes_no_other_input() {
    let engine = Engine::new(Memory::new());
    let maps = [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]];
    for map in maps {
        let json: serde_json::Value = map
            .iter()
            .map(|(k, v)| (k.to_string(), (*v).into()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let ran = walk(&engine, &opening().with_input(&json), &[("a", 1)], true).await;
        assert_eq!(ran.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_result_in_another_shape_is_refused() {
    let engine = Engine::new(Memory::new());
    let opening = opening();
    for round in 0..2 {
        let Opened::Open(mut steps) = opening.open::<()>(&engine).await.unwrap() else {
            panic!("it has ended");
        };
        let ran = match round {
            0 => word(&steps.step("a", async |_key| Ok("text".to_owned())).await),
            _ => word(&steps.step("a", async |_key| Ok(7_u64)).await),
        };
        assert_eq!(ran, ["finished", "changed"][round]);
    }
}

#[tokio::test]
async fn rules_that_the_code_breaks_are_named() {
    let engine = Engine::new(Memory::new());
    let down = Down::default();
    let long = "x".repeat(101);
    let cases: [(&[&str], &str); 6] = [
        (&["a", "b", "a"], "two steps are named `a`"),
        (&[""], "invalid name"),
        (&["two\nlines"], "invalid name"),
        (&["grüße"], "invalid name"),
        (&[&long], "invalid name"),
        (&["a", "b", "c", "d"], "more than 3 steps"),
    ];
    for (number, (names, expected)) in cases.iter().enumerate() {
        let opening = Opening::new("walk", Key::new(number.to_string()).unwrap()).with_steps_max(3);
        let Opened::Open(mut steps) = opening.open::<()>(&engine).await.unwrap() else {
            panic!("it has ended");
        };
        let mut last = Ok(0);
        for name in *names {
            last = steps
                .step(*name, async |key: Key| down.call("ride", &key).await)
                .await;
        }
        let text = last.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let nameless = Opening::new("", Key::new("k").unwrap());
    assert!(matches!(
        nameless.open::<()>(&engine).await,
        Err(StepError::Invalid(_))
    ));
}

/// A result that cannot be stored does not count as done; once it can be, the same key completes.
#[tokio::test]
async fn a_result_that_cannot_be_kept_is_refused_and_tried_again() {
    let engine = Engine::new(Memory::new());
    let down = Down::default();
    let terms = Terms {
        wait: Duration::from_secs(5),
        ..terms()
    };
    let run = async |bytes_max: usize| {
        let opening = opening().with_terms(terms).with_result_bytes_max(bytes_max);
        let Opened::Open(mut steps) = opening.open::<String>(&engine).await? else {
            panic!("it has ended");
        };
        let text: String = steps
            .step("ride", async |key: Key| {
                let number = down.call("ride", &key).await?;
                Ok(format!("ride {number}"))
            })
            .await?;
        steps.finish(text).await
    };
    let ran = run(4).await;
    assert_eq!(word(&ran), "unkept", "{ran:?}");
    assert_eq!(run(100).await.unwrap(), "ride 1");
    assert_eq!((down.calls().len(), down.effects().len()), (2, 1));
}
