//! The process dies at every place where it can, once, and once more on the way on. Where it died must not be seen in what came of it.
//!
//! A crash is a future that is dropped at one of its awaits: between two answers of the store, or around an effect.
//! Destructors run, other than with `kill -9`, which the neighbouring file does.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use proptest::prelude::*;
use refrain::Engine;

use crate::{
    scripted::{Fault, Op, Scripted},
    world::{Down, Reply, Reply::*, lapse, opening, trip, word},
};

/// Runs until the await of this number, and no further.
async fn crash_at<T>(await_number: usize, run: impl Future<Output = T>) -> Result<T, ()> {
    let mut run = pin!(run);
    let mut waited = 0;
    poll_fn(|context| match run.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending if waited == await_number => Poll::Ready(Err(())),
        Poll::Pending => {
            waited += 1;
            Poll::Pending
        }
    })
    .await
}

/// A store whose every answer takes a moment: done at once and told late, or done late by somebody who does not care who asked.
fn slow_store(is_done_late: bool) -> Scripted {
    let store = Scripted::on_runtime_clock();
    let moment = Duration::from_millis(1);
    let fault = match is_done_late {
        true => Fault::DoneLate(moment),
        false => Fault::AnswersLate(moment),
    };
    for op in [Op::Claim, Op::Settle, Op::Read] {
        store.set(op, usize::MAX, fault);
    }
    store
}

/// Crashes at each of these awaits, one run after the other, then runs until it has ended; whether the last crash came.
async fn check(is_done_late: bool, replies: &[(&str, Reply)], crashes: &[usize]) -> bool {
    let store = slow_store(is_done_late);
    let down = Down::default();
    for (what, reply) in replies {
        down.answers(what, [*reply]);
    }
    let opening = opening();
    let mut is_struck = false;
    for crash in crashes {
        let engine = Engine::new(store.clone());
        let run = trip(&engine, &down, &opening);
        is_struck = crash_at(*crash, run).await.is_err();
        drop(engine);
        lapse().await;
    }
    let engine = Engine::new(store.clone());
    let mut end = "";
    for _ in 0..10 {
        end = word(&trip(&engine, &down, &opening).await);
        if end == "finished" || end == "undone" {
            break;
        }
        assert_eq!(end, "failed", "{replies:?} {crashes:?}");
        lapse().await;
    }
    let effects = down.effects();
    let right: &[&[&str]] = match end {
        "finished" => &[&["ride", "charge", "mail"]],
        // Of what was refused nothing stands, and all else is undone.
        "undone" => &[
            &[],
            &["ride", "undo ride"],
            &["ride", "charge", "undo charge", "undo ride"],
        ],
        other => panic!("{replies:?} {crashes:?}: {other}"),
    };
    assert!(
        right.iter().any(|right| effects == *right),
        "{replies:?} {crashes:?}: {end} with {effects:?}"
    );
    down.check_order();
    let calls = down.calls().len();
    assert_eq!(word(&trip(&engine, &down, &opening).await), end);
    assert_eq!(down.calls().len(), calls, "the end is replayed");
    is_struck
}

/// Forward to the end, back from the last step, and with an answer that is lost.
const WAYS: [&[(&str, Reply)]; 3] = [&[], &[("mail", Refuses)], &[("mail", LosesAnswer)]];

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_await_is_not_seen_in_what_comes_of_it() {
    for is_done_late in [false, true] {
        for replies in WAYS {
            let mut awaits = 0;
            while check(is_done_late, replies, &[awaits]).await {
                awaits += 1;
            }
            assert!(awaits >= 10, "{awaits} awaits are too few to tell");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nor_are_two_crashes() {
    for replies in WAYS {
        let mut first = 0;
        while check(false, replies, &[first]).await {
            let mut second = 0;
            while check(false, replies, &[first, second]).await {
                second += 1;
            }
            first += 1;
        }
    }
}

fn replies() -> impl Strategy<Value = Vec<(&'static str, Reply)>> {
    let what = prop_oneof![
        Just("ride"),
        Just("charge"),
        Just("mail"),
        Just("undo charge"),
        Just("undo ride")
    ];
    let reply = prop_oneof![
        3 => Just(Fails),
        3 => Just(LosesAnswer),
        2 => Just(Unreachable),
        2 => Just(Hangs),
        2 => Just(Refuses),
        1 => Just(Later(20)),
    ];
    // An undo that is refused waits for a person, which is another test's story.
    let pair = (what, reply).prop_map(|(what, reply)| match reply {
        Refuses if what.starts_with("undo") => (what, Fails),
        reply => (what, reply),
    });
    proptest::collection::vec(pair, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_fails_and_crashes_each_effect_is_there_once_or_undone(
        replies in replies(),
        crashes in proptest::collection::vec(0_usize..40, 0..6),
        is_done_late: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(check(is_done_late, &replies, &crashes));
    }
}
