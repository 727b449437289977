//! The process dies at every point where it can, once, and a second time while it recovers. The final result must not
//! depend on where it died.
//!
//! A crash is a future that is dropped at one of its awaits: between two responses of the store, or around an effect.
//! Destructors run, unlike with `kill -9`, which `kill.rs` tests.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use proptest::prelude::*;
use refrain::Engine;

use crate::{
    scripted::{Fault, Op, Scripted},
    world::{Down, Reply, Reply::*, lapse, opening, trip, word},
};

/// Polls until the await with this number, then drops the future.
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

/// A store whose every response takes a moment: applied at once and acknowledged late, or applied late even if the
/// caller was dropped.
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

/// Crashes at each of these awaits, one run after the other, then runs to the end; returns whether the last crash
/// happened.
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
        // A rejected step has no effect, and all the others are undone.
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

/// Forward to the end, back from the last step, and with a lost response.
const WAYS: [&[(&str, Reply)]; 3] = [&[], &[("mail", Refuses)], &[("mail", LosesAnswer)]];

#[tokio::test(start_paused = true)]
async fn crash_at_any_await_does_not_change_the_result() {
    for is_done_late in [false, true] {
        for replies in WAYS {
            let mut awaits = 0;
            while check(is_done_late, replies, &[awaits]).await {
                awaits += 1;
            }
            assert!(awaits >= 10, "{awaits} awaits are too few for a valid test");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_crashes_at_any_await_do_not_change_the_result() {
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
    // A rejected undo waits for an operator, which another test covers.
    let pair = (what, reply).prop_map(|(what, reply)| match reply {
        Refuses if what.starts_with("undo") => (what, Fails),
        reply => (what, reply),
    });
    proptest::collection::vec(pair, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_effect_happens_once_or_is_undone_after_failures_and_crashes(
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
