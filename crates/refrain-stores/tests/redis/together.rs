//! Concurrent claims and settlements share one script call, and nothing else: a damaged, rejected, fenced or cancelled
//! one gets its own answer, and so do the others in the batch.

use std::time::Duration;

use futures_util::future::join_all;
use refrain::{
    ErrorKind, Fence, Outcome, Result, Settled, Settlement, Store, Verdict,
    record::{Claimant, Reason},
};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::servers::{PrivateRedis, redis_url};

use crate::support::{
    Prefix, ask, claim, complete, completion, granted, id, replayed, verdict, verdicts, words,
};

fn is_corrupt<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::Corrupt)
}

#[tokio::test]
async fn one_bad_record_fails_alone() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    complete(&store, 1, "done").await;
    complete(&store, 2, "done").await;
    let cut = redis::cmd("SETRANGE")
        .arg(prefix.key(id(2), ""))
        .arg(50)
        .arg("x")
        .to_owned();
    let list = redis::cmd("LPUSH")
        .arg(prefix.key(id(3), ""))
        .arg("x")
        .to_owned();
    for damage in [cut, list] {
        let _: redis::Value = ask(&redis_url(), &damage);
    }
    let claims: Vec<_> = (0..6).map(claim).collect();
    let answers = verdicts(&store, &claims).await;
    for (number, answer) in answers.iter().enumerate() {
        let fits = match number {
            1 => matches!(answer, Ok(Verdict::Replay(_))),
            2 | 3 => is_corrupt(answer),
            _ => matches!(answer, Ok(Verdict::Granted(_))),
        };
        assert!(fits, "{number}: {answer:?}");
    }
    let kept: String = ask(
        &redis_url(),
        &words(&format!("TYPE {}", prefix.key(id(3), ""))),
    );
    assert_eq!(kept, "list", "the damaged record must not be overwritten");
}

#[tokio::test]
async fn of_one_key_twice_in_a_call_one_is_granted() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    let claims = [claim(1), claim(2), claim(1), claim(2), claim(1)];
    let again = {
        let mut again = claims[0].clone();
        again.claimant = Claimant(claims[0].claimant.0);
        again
    };
    let answers = verdicts(&store, &[&claims[..], &[again]].concat()).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    for at in [2, 3, 4] {
        assert!(
            matches!(answers[at], Verdict::InFlight { .. }),
            "{at}: {:?}",
            answers[at]
        );
    }
    assert!(matches!(answers[1], Verdict::Granted(_)));
    // The same claimant gets the same grant twice.
    assert_eq!(answers[0], answers[5]);
    assert!(matches!(answers[0], Verdict::Granted(_)));
}

#[tokio::test]
async fn settlements_that_travel_together_are_decided_each_on_its_own() {
    let later = PrivateRedis::start_with(&[("appendfsync", "everysec")]).unwrap();
    for server in [redis_url(), later.url()] {
        check_settlements(&Prefix::on(&server)).await;
    }
}

async fn check_settlements(prefix: &Prefix) {
    let store = prefix.open(Options::default()).await.unwrap();
    let fences = join_all((0..8).map(async |number| granted(&store, &claim(number)).await.fence));
    let fences = fences.await;
    let wrong = Fence {
        nonce: fences[1].nonce ^ 1,
        ..fences[1]
    };
    let list = prefix.key(id(6), "").clone();
    for line in [format!("DEL {list}"), format!("LPUSH {list} x")] {
        let _: redis::Value = ask(&prefix.server, &words(&line));
    }
    let doubt = Settlement::Doubt {
        reason: Reason::Timeout,
    };
    let ends = [
        (0, fences[0], completion("first")),
        (1, wrong, completion("fenced")),
        (2, fences[2], Settlement::Release),
        (3, fences[3], doubt),
        (4, fences[4], Settlement::NeverHappened),
        (5, fences[5], completion("fifth")),
        (6, fences[6], completion("bad")),
        (0, fences[0], completion("second")),
        (7, fences[7], completion("seventh")),
    ];
    let settle = |(number, fence, end)| store.settle(id(number), fence, end);
    let answers = join_all(ends.into_iter().map(settle)).await;
    for (at, answer) in answers.iter().enumerate() {
        let fits = match at {
            1 | 4 => matches!(answer, Ok(Settled::Fenced)),
            6 => is_corrupt(answer),
            _ => matches!(answer, Ok(Settled::Applied)),
        };
        assert!(fits, "{at}: {answer:?}");
    }
    for (number, body) in [(0, "first"), (5, "fifth"), (7, "seventh")] {
        assert_eq!(replayed(&store, number).await, body);
    }
    granted(&store, &claim(2)).await;
    let doubted = verdict(&store, &claim(3)).await.unwrap();
    assert!(matches!(doubted, Verdict::Indeterminate(_)), "{doubted:?}");
    for number in [1, 4] {
        let stands = verdict(&store, &claim(number)).await.unwrap();
        assert!(matches!(stands, Verdict::InFlight { .. }), "{stands:?}");
    }
}

/// Outcomes of all sizes, one of them above the byte limit of a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_of_all_sizes_come_back_as_they_were() {
    let later = PrivateRedis::start_with(&[("appendfsync", "everysec")]).unwrap();
    for server in [redis_url(), later.url()] {
        check_sizes(&Prefix::on(&server)).await;
    }
}

async fn check_sizes(prefix: &Prefix) {
    let store = prefix.open(Options::default()).await.unwrap();
    let body = |number: u64| vec![b'a' + (number % 26) as u8; 7_usize << (number % 19)];
    let work = async |number| {
        let fence = granted(&store, &claim(number)).await.fence;
        let end = Settlement::Complete {
            outcome: Outcome::new(200, body(number)),
            retention: Duration::from_secs(60),
            remember: Duration::from_secs(60),
        };
        let settled = store.settle(id(number), fence, end).await.unwrap();
        assert_eq!(settled, Settled::Applied);
        let Verdict::Replay(outcome) = verdict(&store, &claim(number)).await.unwrap() else {
            panic!("a completed key is replayed");
        };
        assert!(outcome.body() == body(number), "{number}");
    };
    join_all((0..200).map(work)).await;
    // More outcomes than one response carries.
    let large = |number: &u64| number % 19 > 15;
    let claims: Vec<_> = (0..200).filter(large).map(claim).collect();
    let sizes = verdicts(&store, &claims)
        .await
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Verdict::Replay(outcome) => outcome.body().len(),
            other => panic!("{other:?}"),
        });
    let whole = (0..200).filter(large).map(|number| body(number).len());
    assert_eq!(sizes.sum::<usize>(), whole.sum::<usize>());
}

#[tokio::test]
async fn a_full_server_replays_beside_the_claims_that_it_refuses() {
    let server = PrivateRedis::start().unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    complete(&store, 1, "done").await;
    let _: redis::Value = ask(&server.url(), &words("CONFIG SET maxmemory 1"));
    let answers = verdicts(&store, &[claim(0), claim(1), claim(2)]).await;
    for at in [0, 2] {
        let error = answers[at].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    }
    assert!(matches!(answers[1], Ok(Verdict::Replay(_))));
}

/// A caller that is queued while a call hangs waits no longer than that call.
#[tokio::test]
async fn requests_queued_behind_a_hung_server_time_out() {
    let server = PrivateRedis::start().unwrap();
    let mut options = Options::default();
    options.connect_timeout = Duration::from_secs(2);
    let store = Redis::open_with(&server.url(), options).await.unwrap();
    complete(&store, 1, "done").await;
    server.pause().unwrap();
    let late = async |number: u64| {
        tokio::time::sleep(Duration::from_millis(number * 10)).await;
        let error = verdict(&store, &claim(number)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    };
    // One after the other they would take longer.
    let all = join_all((2..40).map(late));
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .unwrap();
    server.resume().unwrap();
}
