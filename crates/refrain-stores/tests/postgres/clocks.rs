//! The server's clock is set forward by a year: no lease and no retention may end early, and the sweep deletes nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use refrain::{
    Claim, Guarantee, Outcome, Settled, Settlement, Store as _, Verdict, clock::Timestamp,
};
use refrain_stores::postgres::{Options, Postgres};
use refrain_testkit::ManualClock;

use crate::support::{Schema, claim, id};

const YEAR: u64 = 365 * 86_400_000;

/// Handle on a fake server clock, with a monotonic clock of its own.
async fn open(schema: &Schema, shown: &Arc<AtomicU64>, own: &ManualClock) -> Postgres {
    let shown = shown.clone();
    let time = move || Timestamp(shown.load(Ordering::SeqCst));
    let options = Options::default().with_time(time, Some(own.shared()));
    Postgres::open_with(&schema.url(), options).await.unwrap()
}

async fn ask(store: &Postgres, claim: &Claim) -> Verdict {
    store.claim(claim.clone()).await.unwrap()
}

fn repeatable(number: u64) -> Claim {
    Claim {
        guarantee: Guarantee::AtLeastOnce,
        ..claim(number)
    }
}

#[tokio::test]
async fn a_clock_that_is_set_forward_ends_nothing_early() {
    let schema = Schema::new();
    let shown = Arc::new(AtomicU64::new(1_700_000_000_000));
    let own = ManualClock::new();
    let store = open(&schema, &shown, &own).await;
    let Verdict::Granted(kept) = ask(&store, &claim(1)).await else {
        panic!("not granted");
    };
    let end = Settlement::Complete {
        outcome: Outcome::new(200, "kept"),
        retention: Duration::from_secs(3_600),
        remember: Duration::from_secs(3_600),
    };
    assert_eq!(
        store.settle(id(1), kept.fence, end).await.unwrap(),
        Settled::Applied
    );
    let Verdict::Granted(running) = ask(&store, &repeatable(2)).await else {
        panic!("not granted");
    };
    shown.fetch_add(YEAR, Ordering::SeqCst);
    assert!(matches!(ask(&store, &claim(1)).await, Verdict::Replay(_)));
    assert!(matches!(
        ask(&store, &repeatable(2)).await,
        Verdict::InFlight { .. }
    ));
    assert_eq!(store.sweep(100).await.unwrap(), 0);
    assert!(store.read(id(1)).await.unwrap().is_some());
    // A handle opened after the jump accepts the shown time; a renewed lease must hold for it, too.
    let late = open(&schema, &shown, &ManualClock::new()).await;
    let renewed = store
        .renew(id(2), running.fence, Duration::from_secs(30))
        .await;
    assert_eq!(renewed.unwrap(), Settled::Applied);
    assert!(matches!(
        ask(&late, &repeatable(2)).await,
        Verdict::InFlight { .. }
    ));
    // Time that passes on both clocks counts.
    for _ in 0..4 {
        own.advance(Duration::from_secs(1_200));
        shown.fetch_add(1_200_000, Ordering::SeqCst);
        let _ = ask(&store, &claim(3)).await;
    }
    assert_eq!(ask(&store, &claim(1)).await, Verdict::Expired);
    assert_eq!(store.sweep(100).await.unwrap(), 1);
}
