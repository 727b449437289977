//! A sweep of a hundred thousand ended records, with concurrent claims.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::{Outcome, Settled, Settlement, Store as _, Verdict};

use crate::support::{Schema, claim, connect, id, url};

const PAST: i64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_records_are_swept_under_load() {
    let schema = Schema::new();
    let store = Arc::new(schema.open().await);
    let admin = connect(&url()).await;
    // Every second record leaves a tombstone.
    let fill = format!(
        "INSERT INTO {}.records (id, fingerprint, state, fence_epoch, fence_counter, fence_nonce, retention_ends, remember_ends, outcome) \
         SELECT gen_random_uuid(), gen_random_uuid(), 2, 1, n, 1, 1000 + n, \
             CASE n % 2 WHEN 0 THEN 1000 + n ELSE 4000000000000 END, decode(repeat('ab', 300), 'hex') \
         FROM generate_series(1, {PAST}) n",
        schema.name
    );
    admin.batch_execute(&fill).await.unwrap();
    let census = store.census().await.unwrap();
    assert_eq!(census.completed, PAST as u64);
    let over = Arc::new(AtomicBool::new(false));
    let load = {
        let (store, over) = (store.clone(), over.clone());
        tokio::spawn(async move {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                number += 1;
                once(&store, number).await;
            }
            number
        })
    };
    let mut swept = 0;
    loop {
        match store.sweep(30_000).await.unwrap() {
            0 => break,
            some => {
                assert!(some <= 30_000);
                swept += some;
            }
        }
    }
    over.store(true, Ordering::SeqCst);
    let kept = load.await.unwrap();
    assert_eq!(i64::from(swept), PAST);
    assert!(kept > 10, "only {kept} claims got through beside the sweep");
    let census = store.census().await.unwrap();
    assert_eq!(
        (census.completed, census.tombstones, census.in_flight),
        (kept, PAST as u64 / 2, 0)
    );
}

async fn once(store: &refrain_stores::postgres::Postgres, number: u64) {
    let verdict = store.claim(claim(number)).await.unwrap();
    let Verdict::Granted(grant) = verdict else {
        panic!("{verdict:?}");
    };
    let end = Settlement::Complete {
        outcome: Outcome::new(200, "kept"),
        retention: Duration::from_secs(3_600),
        remember: Duration::ZERO,
    };
    let settled = store.settle(id(number), grant.fence, end).await.unwrap();
    assert_eq!(settled, Settled::Applied);
}

#[tokio::test]
async fn an_outcome_past_retention_leaves_a_tombstone_until_it_may_be_forgotten() {
    let schema = Schema::new();
    let store = schema.open().await;
    let verdict = store.claim(claim(1)).await.unwrap();
    let Verdict::Granted(grant) = verdict else {
        panic!("{verdict:?}");
    };
    let end = Settlement::Complete {
        outcome: Outcome::new(200, "soon gone"),
        retention: Duration::from_millis(1),
        remember: Duration::from_secs(600),
    };
    assert_eq!(
        store.settle(id(1), grant.fence, end).await.unwrap(),
        Settled::Applied
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    let admin = connect(&url()).await;
    let left = format!(
        "SELECT state, outcome IS NULL, credential IS NULL FROM {}.records",
        schema.name
    );
    let row = admin.query_one(&left, &[]).await.unwrap();
    assert_eq!(
        (
            row.get::<_, i16>(0),
            row.get::<_, bool>(1),
            row.get::<_, bool>(2)
        ),
        (4, true, true)
    );
    let verdict = store.claim(claim(1)).await.unwrap();
    assert_eq!(verdict, Verdict::Expired);
}
