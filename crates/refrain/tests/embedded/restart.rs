//! Opening a store after a clean close reads the snapshots, not the log.

use refrain::{
    Store, Verdict,
    store::embedded::{Embedded, Options},
};

use crate::common::{HOUR, ask, claim, completion, id};

const RECORDS: u64 = 200_000;
const BATCH: u64 = 20_000;

/// Claims and completes records, many at once.
async fn fill(store: &Embedded) {
    for first in (0..RECORDS).step_by(BATCH as usize) {
        let mut tasks = tokio::task::JoinSet::new();
        for number in first..first + BATCH {
            let store = store.clone();
            tasks.spawn(async move {
                let Verdict::Granted(grant) = store.claim(claim(number)).await? else {
                    panic!("{number} was claimed before");
                };
                let end = completion(b"done", HOUR, HOUR);
                store.settle(id(number), grant.fence, end).await
            });
        }
        for settled in tasks.join_all().await {
            assert!(settled.is_ok());
        }
    }
}

#[test]
fn a_store_with_many_records_opens_quickly_after_a_clean_close() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes_max: 8 << 20,
        ..Options::default()
    };
    let store = Embedded::open(folder.path(), options.clone()).unwrap();
    let start = tokio::time::Instant::now();
    crate::common::wait(fill(&store));
    drop(store);
    let filled = start.elapsed();

    let start = tokio::time::Instant::now();
    let store = Embedded::open(folder.path(), options).unwrap();
    let took = start.elapsed();
    println!("filled in {filled:?}, opened in {took:?}");
    assert_eq!(store.len() as u64, RECORDS);
    assert!(matches!(
        ask(&store, claim(RECORDS - 1)),
        Ok(Verdict::Replay(_))
    ));
    assert!(
        took < filled,
        "{took:?}, more than the {filled:?} it was filled in"
    );
}
