//! Redis expires keys. Only ended records may expire, and only at the time in the record: one time limit for everything
//! either blocks a key for a day after a crash, or lets it run again while it is still running.

use std::time::Duration;

use refrain::{Settled, Settlement, Store, Verdict, record::Reason};
use refrain_stores::redis::Options;
use refrain_testkit::{servers::redis_url, wait};

use crate::support::{
    Prefix, REMEMBER, RETENTION, ask, claim, complete, granted, id, verdict, words,
};

/// Milliseconds until a key expires; -1 never, -2 missing.
fn left(key: &str) -> i64 {
    ask(&redis_url(), &words(&format!("PTTL {key}")))
}

fn is_about(left: i64, span: Duration) -> bool {
    let span = i64::try_from(span.as_millis()).unwrap();
    (span - 60_000..=span).contains(&left)
}

#[tokio::test]
async fn only_ended_records_get_an_expiry() {
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
    // One minute more than in the record, so that clock differences cannot expire it early.
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
    let moment = Duration::from_millis(150);
    let hour = Duration::from_hours(1);
    let mut fences = Vec::new();
    for (number, retention, remember) in [(1, hour, hour), (2, moment, hour), (3, moment, moment)] {
        let fence = granted(&store, &claim(number)).await.fence;
        let end = Settlement::Complete {
            outcome: refrain::Outcome::new(200, "done"),
            retention,
            remember,
        };
        assert_eq!(
            store.settle(id(number), fence, end).await.unwrap(),
            Settled::Applied
        );
        fences.push(fence);
    }
    wait::until("retention and remembering have ended", async || {
        left(&prefix.key(id(3), "")) == -2
    })
    .await;
    let grant = granted(&store, &claim(3)).await;
    assert!(grant.attempt == 1 && grant.fence > fences[2]);
    assert_eq!(verdict(&store, &claim(2)).await.unwrap(), Verdict::Expired);
    assert!(matches!(
        verdict(&store, &claim(1)).await.unwrap(),
        Verdict::Replay(_)
    ));
}
