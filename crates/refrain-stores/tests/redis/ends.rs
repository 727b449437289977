//! Redis drops keys by itself when they are told to end. What has ended may go that way, and only when its record says so:
//! a key with one time limit for everything either blocks for a day after a crash, or runs again while it is still running.

use std::time::Duration;

use refrain::{Settled, Settlement, Store, Verdict, record::Reason};
use refrain_stores::redis::Options;
use refrain_testkit::servers::redis_url;

use crate::support::{
    Prefix, REMEMBER, RETENTION, ask, claim, complete, granted, id, verdict, words,
};

/// Milliseconds until a key ends; -1 never, -2 gone.
fn left(key: &str) -> i64 {
    ask(&redis_url(), &words(&format!("PTTL {key}")))
}

fn is_about(left: i64, span: Duration) -> bool {
    let span = i64::try_from(span.as_millis()).unwrap();
    (span - 60_000..=span).contains(&left)
}

#[tokio::test]
async fn only_what_has_ended_is_told_to_end() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    granted(&store, &claim(1)).await;
    let fence = granted(&store, &claim(2)).await.fence;
    let reason = Reason::Timeout;
    let doubted = store.settle(id(2), fence, Settlement::Doubt { reason });
    assert_eq!(doubted.await.unwrap(), Settled::Applied);
    complete(&store, 3, "done").await;
    for (number, state) in [(1, "in flight"), (2, "indeterminate")] {
        assert_eq!(left(&prefix.key(id(number), "")), -1, "{state}");
    }
    assert_eq!(left(&prefix.mark()), -1, "the mark");
    let record = left(&prefix.key(id(3), ""));
    assert!(is_about(record, RETENTION + REMEMBER), "{record}");
    // A minute more than the record says, so that no clock can take it away too early.
    let outcome = left(&prefix.outcome_key(id(3)));
    assert!(
        is_about(outcome, RETENTION + Duration::from_secs(60)),
        "{outcome}"
    );
}

#[tokio::test]
async fn the_servers_own_clock_ends_retention_and_then_remembering() {
    let prefix = Prefix::new();
    let store = prefix.open(Options::default()).await.unwrap();
    let fence = granted(&store, &claim(1)).await.fence;
    let end = Settlement::Complete {
        outcome: refrain::Outcome::new(200, "done"),
        retention: Duration::from_millis(150),
        remember: Duration::from_millis(300),
    };
    assert_eq!(
        store.settle(id(1), fence, end).await.unwrap(),
        Settled::Applied
    );
    assert!(matches!(
        verdict(&store, &claim(1)).await.unwrap(),
        Verdict::Replay(_)
    ));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(verdict(&store, &claim(1)).await.unwrap(), Verdict::Expired);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(left(&prefix.key(id(1), "")), -2);
    let grant = granted(&store, &claim(1)).await;
    assert!(grant.attempt == 1 && grant.fence > fence);
}
