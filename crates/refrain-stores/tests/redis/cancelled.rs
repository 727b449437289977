//! In 2023 a cancelled request left its answer in a shared Redis connection, and the next caller got another user's
//! data. Here futures are dropped at every await, and the next caller must get its own answer.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use refrain::{Store, Verdict, store::Reading};
use refrain_stores::redis::Options;

use crate::support::{Prefix, claim, complete, completion, granted, id, verdict};

/// Polls a future this many times, with a short wait between polls, and drops it.
async fn cut<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = pin!(future);
    for poll in 0..polls {
        let polled = {
            let mut context = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut context)
        };
        if let Poll::Ready(answer) = polled {
            return Some(answer);
        }
        // First without delay, then with enough delay for progress.
        match poll {
            0 | 1 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(std::time::Duration::from_micros(100)).await,
        }
    }
    None
}

fn body(number: u64) -> String {
    format!("the outcome of {number}")
}

fn body_of(reading: &Reading) -> String {
    match &reading.record.state {
        refrain::record::State::Completed { outcome, .. } => {
            String::from_utf8(outcome.body().to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_question_never_gives_its_answer_to_another() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    for number in 0..50 {
        complete(&store, number, &body(number)).await;
    }
    let mut tasks = Vec::new();
    for task in 0..8 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut answered = 0;
            for round in 0..200 {
                let number = (task * 31 + round * 7) % 50;
                let polls = match round % 9 {
                    // Some are not cut off, however slow the machine is.
                    8 => u32::MAX,
                    polls => u32::try_from(polls).unwrap(),
                };
                if let Some(reading) = cut(store.read(id(number)), polls).await {
                    assert_eq!(body_of(&reading.unwrap().unwrap()), body(number));
                    answered += 1;
                }
                drop(cut(store.claim(claim(number)), polls).await);
                let asked = claim((number + 1) % 50);
                let Verdict::Replay(outcome) = verdict(&store, &asked).await.unwrap() else {
                    panic!("a completed key is replayed");
                };
                assert_eq!(outcome.body(), body((number + 1) % 50));
            }
            answered
        }));
    }
    for task in tasks {
        assert!(task.await.unwrap() >= 200 / 9, "some are answered");
    }
}

/// A dropped call may have been applied: its claimant retries and gets the same answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_claim_or_completion_can_be_asked_again() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    for number in 0..100 {
        let polls = u32::try_from(number % 9).unwrap();
        let ask = claim(number);
        drop(cut(store.claim(ask.clone()), polls).await);
        let grant = granted(&store, &ask).await;
        assert_eq!((grant.attempt, granted(&store, &ask).await), (1, grant));
        let end = || completion(&body(number));
        drop(cut(store.settle(id(number), grant.fence, end()), polls).await);
        let settled = store.settle(id(number), grant.fence, end()).await.unwrap();
        assert_eq!(settled, refrain::Settled::Applied);
    }
}
