//! A cancelled request once left its answer in a shared connection, and the next request got another customer's data.
//! Here every call is dropped after each of its first polls, while others use the same connections. Each caller must
//! get its own answers only.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use refrain::{
    Outcome, RecordId, Settlement, Store as _, Verdict,
    record::State,
    store::{Query, Reading},
};
use refrain_stores::postgres::Postgres;

use crate::support::{Schema, claim, id};

const RECORDS: u64 = 40;
const POLLS: u32 = 6;

fn body(number: u64) -> String {
    format!("what belongs to {number} and to nobody else")
}

/// Polls a future this many times, with a short wait between polls, and drops it.
async fn dropped_after<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..800))).await;
    }
    None
}

fn check_outcome(id_of: RecordId, number: u64, outcome: &Outcome) {
    assert_eq!(id_of, id(number));
    assert_eq!(&outcome.body()[..], body(number).as_bytes());
}

fn check_reading(number: u64, reading: &Reading) {
    if let State::Completed { outcome, .. } = &reading.record.state {
        check_outcome(reading.id, number, outcome);
    }
}

/// Caller that sends every command for its own record, and is cancelled again and again.
async fn hurried(store: &Postgres, number: u64) {
    for polls in 0..POLLS {
        let asked = claim(number);
        if let Some(verdict) = dropped_after(polls, store.claim(asked.clone())).await {
            match verdict.unwrap() {
                Verdict::Replay(outcome) => check_outcome(asked.id, number, &outcome),
                Verdict::Granted(_) | Verdict::InFlight { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if let Some(read) = dropped_after(polls, store.read(asked.id)).await
            && let Some(reading) = read.unwrap()
        {
            check_reading(number, &reading);
        }
        let query = Query::default();
        if let Some(page) = dropped_after(polls, store.list(&query)).await {
            for reading in page.unwrap().readings {
                let number = u128::from_be_bytes(reading.id.0) as u64;
                check_reading(number, &reading);
            }
        }
        let fence = match store.read(asked.id).await.unwrap().map(|it| it.record) {
            Some(record) => record.fence().unwrap(),
            None => continue,
        };
        let _ = dropped_after(polls, store.settle(asked.id, fence, end(number))).await;
    }
}

fn end(number: u64) -> Settlement {
    Settlement::Complete {
        outcome: Outcome::new(200, body(number)),
        retention: Duration::from_secs(600),
        remember: Duration::ZERO,
    }
}

/// The outcome of a record; completes it first if every attempt to do so was cancelled.
async fn outcome(store: &Postgres, number: u64) -> Outcome {
    let asked = claim(number);
    // Several times, because a cancelled call may still arrive.
    for _ in 0..100 {
        if let Verdict::Replay(outcome) = store.claim(asked.clone()).await.unwrap() {
            return outcome;
        }
        let record = store.read(asked.id).await.unwrap().unwrap().record;
        let fence = record.fence().unwrap();
        let _ = store.settle(asked.id, fence, end(number)).await.unwrap();
    }
    panic!("record {number} was never completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_leaves_its_answer_to_nobody() {
    let schema = Schema::new();
    let store = Arc::new(schema.open().await);
    let tasks: Vec<_> = (0..RECORDS)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { hurried(&store, number).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Afterwards the store works, and each record has its own outcome.
    for number in 0..RECORDS {
        check_outcome(id(number), number, &outcome(&store, number).await);
    }
}
